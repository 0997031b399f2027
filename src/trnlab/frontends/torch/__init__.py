# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the simulated chip.

    import torch, trnlab.frontends.torch as neuron

    model.to("neuron")
    step = neuron.compile_step(model, optimizer)      # or torch.compile(model, backend="neuron")

`import torch` alone makes the device known, through the `torch.backends` entry point; so what is here loads on first
use.
"""

import sys
from importlib import import_module
from typing import Any

from trnlab import kernel_hooks
from trnlab.kernel_hooks import NOT_HANDLED

_HOME = {
    "compile_step": "step",
    "TrainStep": "step",
    "step_time": "estimate",
    "capture_step": "capture.step_capture",
    "Captured": "capture.step_capture",
    "import_fx": "capture.import_fx",
    "operators": "capture.import_fx",
    "InterpreterEngine": "trnlab.frontends.common.engine",
    "DeviceEngine": "trnlab.frontends.common.engine",
    "use": "trnlab.frontends.common.engine",
    "report_step": "trnlab.frontends.common.engine",
    "kernel_op": "kernels",
    "fallback_counts": "device.host_ops",
    "reset_fallback_counts": "device.host_ops",
    "PadToBuckets": "padding",
    "to_numpy_alias": "device.dlpack",
    "from_numpy_alias": "device.dlpack",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("torch")  # first: it loads the device itself
    import_module(f"{__name__}.pytorch")  # raises UsageError (TRN199) on a release of PyTorch that was not tried
    home = _HOME[name]
    return getattr(import_module(home if home.startswith("trnlab.") else f"{__name__}.{home}"), name)


def _first_call(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first call of a kernel with tensors loads the rest of this package, which takes the place of this hook."""
    from trnlab.nki.tracing.arguments import iter_leaves

    torch = sys.modules.get("torch")
    if torch is None or not any(isinstance(x, torch.Tensor) for x in iter_leaves((args, kwargs))):
        return NOT_HANDLED
    from trnlab.frontends.torch import kernels

    return kernels.trace_call(kernel, args, kwargs)


kernel_hooks.register("torch", _first_call)
