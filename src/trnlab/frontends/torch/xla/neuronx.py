# SPDX-License-Identifier: Apache-2.0
"""torch_neuronx: kernels as functions of tensors, traced models, and the name of the chip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trnlab.chips import catalog
from trnlab.frontends.torch.xla import script_classes
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.tracing import (
    DataParallel,
    async_load,
    dynamic_batch,
    lazy_load,
    move_trace_to_device,
    trace,
)
from trnlab.nki.neuronxcc import jit
from trnlab.nki.target import default_chip

__all__ = [
    "DataParallel",
    "assert_close",
    "async_load",
    "dynamic_batch",
    "get_platform_target",
    "lazy_load",
    "move_trace_to_device",
    "neuron_allclose",
    "nki_jit",
    "nki_op",
    "set_neuron_cores",
    "trace",
    "wrap_nki",
]
__version__ = "2.9.0+trnlab"  # the release of PyTorch whose vendor's package has these names
assert_close = torch.testing.assert_close
SUPPORTED_TYPES = catalog.NAMES
script_classes.register()


def nki_jit(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """As @nki.jit of the old dialect: a kernel that returns nothing writes to its array arguments."""
    return jit(func, **options)


def wrap_nki(kernel: Any) -> Any:
    """The kernel itself, which takes tensors."""
    return kernel


def nki_op(name: str, mutates_args: Any = (), **_: Any) -> Callable[[Any], Any]:
    """A decorator of the function that launches a kernel, which it leaves as it is."""
    return lambda function: function


def get_platform_target(*_: Any) -> str:
    """The chip, e.g. trn2."""
    return default_chip().name


class _Closeness:
    """Whether values are close, and what is not."""

    def __init__(self, close: Any) -> None:
        self.allclose = bool(close.all())
        self.num_mismatches, self.total_elements = int((~close).sum()), close.numel()

    def __bool__(self) -> bool:
        return self.allclose


def neuron_allclose(actual: Any, expected: Any, rtol: float = 1e-2, atol: float = 1e-5, **_: Any) -> _Closeness:
    """torch.isclose, with a summary."""
    return _Closeness(torch.isclose(actual.float().cpu(), expected.float().cpu(), rtol, atol))


def set_neuron_cores(model: Any, *_: Any, **__: Any) -> Any:
    """The model: a process has one core."""
    return model


set_multicore = set_neuron_cores
_REFUSED = {
    "BucketModelConfig": "torch.compile(backend='neuron'), which compiles each shape once",
    "bucket_model_trace": "torch.compile(backend='neuron'), which compiles each shape once",
    "analyze": "trnlab check SCRIPT",
    "PartitionerConfig": "torch.compile(backend='neuron'), which leaves to the host what it must",
    "replace_weights": "trace the model anew",
}
__getattr__ = refusing(
    "torch_neuronx", "compile models with torch.compile(backend='neuron') or compile_step", _REFUSED, __all__
)
