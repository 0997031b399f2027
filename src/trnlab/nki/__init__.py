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

from trnlab.nki import dtype, isa, language, typing
from trnlab.nki.imports import install_imports
from trnlab.nki.kernel import Kernel
from trnlab.nki.measure import benchmark

__all__ = [
    "Kernel",
    "benchmark",
    "cpu_simulate",
    "dtype",
    "install_imports",
    "isa",
    "jit",
    "language",
    "simulate",
    "typing",
]


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: a function over tensors becomes a kernel over arrays. Options steer the vendor's compiler only."""
    if fn is None:
        return jit
    return fn if isinstance(fn, Kernel) else Kernel(fn)


def simulate(kernel: Any) -> Kernel:
    """The kernel, runnable on this machine; kernels made by `jit` already are."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


cpu_simulate = simulate
