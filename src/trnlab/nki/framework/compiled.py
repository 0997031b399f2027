# SPDX-License-Identifier: Apache-2.0
"""nki.framework.compiled: a kernel as a file, without a framework.

Source: uses in public harnesses (ucb-bar/autocomp at dd26a56); the class is not documented.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trnlab.nki.kernel import Kernel
from trnlab.nki.measure import save_program
from trnlab.nki.target import default_chip

FILE = "kernel.neff"


class CompileKernel:
    """A function or kernel that runs when it is called, and leaves `kernel.neff` in a folder, which
    `neuron-profile capture` reads (`vendor_tools`). Other options mean nothing here."""

    def __init__(self, func: Callable[..., Any], artifacts_dir: str, **options: Any) -> None:
        self.kernel = func if isinstance(func, Kernel) else Kernel(func)
        self.folder = Path(artifacts_dir)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays."""
        result = self.kernel(*args, **kwargs)
        self.folder.mkdir(parents=True, exist_ok=True)
        chip = self.kernel.chip or default_chip()
        save_program(self.kernel, self.kernel.trace(*args, **kwargs), chip, self.folder / FILE)
        return result
