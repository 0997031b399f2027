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

import warnings
from collections.abc import Callable
from typing import Any

from trnlab import chips
from trnlab.checks import checks
from trnlab.nki import collectives, dtype, isa, jax_calls, language, typing  # noqa: F401  (jax_calls registers)
from trnlab.nki.imports import install_imports
from trnlab.nki.kernel import Kernel
from trnlab.nki.measure import benchmark
from trnlab.nki.ranks import RankedKernel, per_rank
from trnlab.policy import use as schedule
from trnlab.runtime.settings import GENERATIONS

__all__ = [
    "Kernel",
    "RankedKernel",
    "benchmark",
    "checks",
    "collectives",
    "cpu_simulate",
    "dtype",
    "install_imports",
    "isa",
    "jit",
    "language",
    "per_rank",
    "schedule",
    "simulate",
    "typing",
]

COMPILER_OPTIONS = frozenset({"additional_compile_opt", "debug_kernel", "experimental_flags", "show_compiler_tb"})


def jit(
    fn: Callable[..., Any] | None = None, mode: str | None = None, platform_target: str | None = None, **options: Any
) -> Any:
    """Decorator: a function over tensors becomes a kernel over arrays.

    platform_target: the chip that it is for, if not the session's (trn1, inf2, trn2, trn3, gen2 to gen4). mode, and
    options that steer the vendor's compiler, change nothing; an option that is not known causes a warning.
    """
    unknown = ", ".join(sorted(set(options) - COMPILER_OPTIONS))
    if unknown:
        warnings.warn(f"nki.jit: options that mean nothing here: {unknown}", stacklevel=2)
    chip = None if platform_target is None else chips.get(GENERATIONS.get(platform_target, platform_target))

    def decorate(function: Any) -> Kernel:
        if isinstance(function, Kernel) and chip is None:
            return function
        return Kernel(function.function if isinstance(function, Kernel) else function, chip=chip)

    return decorate if fn is None else decorate(fn)


def simulate(kernel: Any, *, ranks: int | None = None) -> Any:
    """The kernel, runnable on this machine; kernels made by `jit` already are.

    ranks: run it on so many simulated ranks, which nki.collectives communicate between; see `RankedKernel`.
    """
    made = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    return made if ranks is None else RankedKernel(made, ranks)


cpu_simulate = simulate
