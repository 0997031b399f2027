# SPDX-License-Identifier: Apache-2.0
"""What `import torch` runs through the `torch.backends` entry point; must stay cheap."""

import os
import sys
from pathlib import Path


def autoload() -> None:
    """Make `torch.device("neuron")` and `torch.compile(backend="neuron")` known.

    On a release of PyTorch that was not tried it says so, in a line, and leaves PyTorch as it is.

    With TRNLAB_TARGET, as in the processes that torchrun and `accelerate launch` start, the imports of the vendor's
    packages too, by which libraries find the device; packages that are installed win.
    """
    from trnlab.errors import UsageError

    try:
        from trnlab.frontends.torch import registration
    except UsageError as error:  # of the release of PyTorch, which shall work for others all the same
        from trnlab.runtime.notices import tell

        tell(error)
        return
    registration.register()
    script_starts(sys.argv[0] if sys.argv else "")
    if os.environ.get("TRNLAB_TARGET"):
        from trnlab.frontends import vendor_imports
        from trnlab.nki.imports import install_imports

        install_imports()
        vendor_imports.install()


def script_starts(file: str) -> None:
    """A script is about to run, in a process that has imported PyTorch: before it by itself, or just now."""
    script = Path(file)
    if script.suffix == ".py" and script.is_file():
        from trnlab.frontends.torch.cuda import scripts
        from trnlab.frontends.torch.device import pinned_scripts
        from trnlab.frontends.torch.device.script_texts import look_at_script

        look_at_script(script, [pinned_scripts.look, *scripts.begin()])
