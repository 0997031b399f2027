# SPDX-License-Identifier: Apache-2.0
"""What `import torch` runs through the `torch.backends` entry point; must stay cheap."""


def autoload() -> None:
    """Make `torch.device("neuron")` and `torch.compile(backend="neuron")` known."""
    from trnlab.frontends.torch import device

    device.register()
