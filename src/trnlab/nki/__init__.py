# SPDX-License-Identifier: Apache-2.0
"""The kernel API: kernels written for NKI are recorded, run and timed here.

    import trnlab.nki as nki
    import trnlab.nki.isa as nisa
    import trnlab.nki.language as nl

    @nki.jit
    def kernel(x): ...

`install_imports()` makes `import nki` mean this package, so that existing files run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnlab.nki import collectives, dtype, isa, language, typing
from trnlab.nki.imports import install_imports
from trnlab.nki.kernel import Kernel
from trnlab.nki.measure import benchmark
from trnlab.nki.ranks import RankedKernel, per_rank

__all__ = [
    "Kernel",
    "RankedKernel",
    "benchmark",
    "collectives",
    "cpu_simulate",
    "dtype",
    "install_imports",
    "isa",
    "jit",
    "language",
    "per_rank",
    "simulate",
    "typing",
]


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: a function over tensors becomes a kernel over arrays. Options steer the vendor's compiler only."""
    if fn is None:
        return jit
    return fn if isinstance(fn, Kernel) else Kernel(fn)


def simulate(kernel: Any, *, ranks: int | None = None) -> Any:
    """The kernel, runnable on this machine; kernels made by `jit` already are.

    ranks: run it on so many simulated ranks, which nki.collectives communicate between; see `RankedKernel`.
    """
    made = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    return made if ranks is None else RankedKernel(made, ranks)


cpu_simulate = simulate
