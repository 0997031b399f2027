# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki: the old dialect, in which operations return tiles. It records through the same recorder as the new.

import neuronxcc.nki as nki           # after trnlab.nki.install_imports()
import neuronxcc.nki.language as nl
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnlab.lang import compose
from trnlab.lang.recorder import current
from trnlab.lang.tensor import Region, Tensor
from trnlab.nki import measure
from trnlab.nki.kernel import Kernel, map_objects
from trnlab.nki.launch import Launch, programs
from trnlab.nki.neuronxcc import compiler, isa, language, typing
from trnlab.nki.neuronxcc.tile import Tile

__all__ = [
    "baremetal", "benchmark", "compiler", "isa", "jit", "language", "profile", "simulate_kernel", "tensor", "trace",
    "typing",
]  # fmt: skip

tensor = typing.tensor


class OldKernel(Kernel):
    """A kernel of the old dialect: its tensors have operators, and results may be any HBM tensor."""

    tensor_type: type[Tensor] = Tile

    def launch(self, grid: Any) -> Launch:
        """Any number of programs, in order on one core or spread over two."""
        return programs(grid)

    def _run_function(self, inputs: dict[str, Any]) -> Any:
        """A tile that is returned leaves the chip first."""
        current().once("automatic", lambda: getattr(self.function, "force_auto_alloc", False))
        return map_objects(_to_hbm, super()._run_function(inputs), Tensor)


def _to_hbm(tensor: Tensor) -> Tensor:
    if not tensor.on_chip:
        return tensor
    out = current().tensor(tensor.shape, tensor.format, Region.shared_hbm)
    compose.store(out, tensor)
    return out


def _kernel(function: Any) -> OldKernel:
    if isinstance(function, OldKernel):
        return function
    return OldKernel(function.function if isinstance(function, Kernel) else function)


def jit(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: a function over tensors becomes a kernel over arrays. Options steer the vendor's tools only."""
    return jit if func is None else _kernel(func)


trace = jit


def baremetal(func: Any = None, **options: Any) -> Any:
    """As `jit`."""
    return baremetal if func is None else _kernel(func)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel; one that returns nothing writes to its array arguments."""
    return _kernel(kernel)(*args, **kwargs)


def benchmark(kernel: Any = None, **options: Any) -> Any:
    """Time a kernel: `benchmark(kernel)` or `benchmark(warmup=..., iters=...)(kernel)`."""
    return measure.benchmark(kernel, make=_kernel, **options)


profile = benchmark
