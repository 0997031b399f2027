# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the simulated chip.

    import torch, trnlab.frontends.torch as neuron

    model.to("neuron")
    step = neuron.compile_step(model, optimizer)      # or torch.compile(model, backend="neuron")

`import torch` alone makes the device known, through the `torch.backends` entry point; so what is here loads on first
use.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "compile_step": "step",
    "TrainStep": "step",
    "step_time": "estimate",
    "capture_step": "capture",
    "Captured": "capture",
    "import_fx": "import_fx",
    "operators": "import_fx",
    "InterpreterEngine": "engine",
    "DeviceEngine": "engine",
    "use": "engine",
    "kernel_op": "kernels",
    "fallback_counts": "host_ops",
    "reset_fallback_counts": "host_ops",
    "to_numpy_alias": "dlpack",
    "from_numpy_alias": "dlpack",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
