# SPDX-License-Identifier: Apache-2.0
"""nki.jit, nki.baremetal, nki.benchmark, nki.profile and nki.simulate_kernel of the old dialect.

Options that only steer the vendor's tools (compiler flags, names of their files, the framework) are taken, and change
nothing; an option that is not known causes a warning.

Source: nki of the 2.2x documentation of aws-neuron-sdk.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trnlab import chips
from trnlab.chips.spec import Chip
from trnlab.errors import UsageError
from trnlab.lang import compose
from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace
from trnlab.lang.tensor import Tensor
from trnlab.nki import measure
from trnlab.nki.kernel import Kernel
from trnlab.nki.neuronxcc.assignment import settled
from trnlab.nki.neuronxcc.compiler import skips_middle_end
from trnlab.nki.neuronxcc.tile import Tile
from trnlab.nki.tracing.arguments import map_objects
from trnlab.nki.tracing.launch import LaunchGrid, programs
from trnlab.policy import Policy
from trnlab.program.passes import MIDDLE_END
from trnlab.runtime.settings import GENERATIONS

_OPTIONS = frozenset(
    {
        "additional_compile_opt",
        "artifacts_dir",
        "debug_kernel",
        "device_count",
        "disable_allocation_opt",
        "enable_cache",
        "experimental_flags",
        "iters",
        "kernel_return",
        "platform_target",
        "quiet",
        "save_neff_name",
        "save_trace_name",
        "show_compiler_tb",
        "warmup",
    }
)
_MODES = ("auto", "jax", "torchxla", "baremetal", "simulation", "trace", "benchmark", "profile")


class OldKernel(Kernel):
    """A kernel of the old dialect: its tensors have operators, and results may be any HBM tensor."""

    tensor_type: type[Tensor] = Tile
    dialect = "neuronxcc"

    def policy(self, chip: Chip) -> Policy:
        """Without what works across iterations, where the kernel asks for that."""
        made = super().policy(chip)
        skipped = [name for name in MIDDLE_END if getattr(made, name)] if skips_middle_end(self.function) else []
        return made.with_options(**dict.fromkeys(skipped, False))

    def launch(self, grid: Any) -> LaunchGrid:
        """Any number of programs, in order on one core or spread over two."""
        return programs(grid)

    def evaluate(self, inputs: dict[str, Any]) -> Any:
        """A tile that is returned leaves the chip first."""
        current().once("automatic", lambda: getattr(self.function, "force_auto_alloc", False))
        return map_objects(_to_hbm, super().evaluate(inputs), Tensor)


def _to_hbm(tensor: Tensor) -> Tensor:
    if not tensor.on_chip:
        return tensor
    out = current().tensor(tensor.shape, tensor.format, MemorySpace.shared_hbm)
    compose.store(out, settled(tensor))
    return out


def kernel_of(function: Any, target: str | None = None, flags: str = "") -> OldKernel:
    """The kernel of a function, or of what another decorator made of it.

    target: its chip, if not the session's. flags: of the compiler, see `target.static_dma`.
    """
    if isinstance(function, measure.Benchmark):
        function = function.kernel
    chip = _chip(target)
    if isinstance(function, OldKernel):
        if chip is None and not flags:
            return function
        made = OldKernel(function.function, function.grid, None, chip or function.chip, function.options)
        made.flags = flags or function.flags
        return made
    made = OldKernel(function.function if isinstance(function, Kernel) else function, chip=chip)
    made.flags = flags
    return made


def _chip(target: str | None) -> Chip | None:
    return None if target is None else chips.get(GENERATIONS.get(target, target))


def _flags(options: dict[str, Any]) -> str:
    return str(options.get("additional_compile_opt") or "")


def _check(decorator: str, options: dict[str, Any]) -> None:
    unknown = ", ".join(sorted(set(options) - _OPTIONS))
    if unknown:
        warnings.warn(f"nki.{decorator}: options that mean nothing here: {unknown}", stacklevel=3)


def jit(func: Callable[..., Any] | None = None, mode: str = "auto", **options: Any) -> Any:
    """Decorator: a function over tensors becomes a kernel over arrays, whichever framework they are of.

    mode: "benchmark" and "profile" are those decorators; all others run the kernel. platform_target: the chip.
    """
    if func is None:
        return lambda function: jit(function, mode, **options)
    if mode not in _MODES:
        raise UsageError(
            "nki.jit has no such mode", code="TRN111", limit=", ".join(_MODES), got=mode, remedy="leave mode out"
        )
    if mode in ("benchmark", "profile"):
        return (benchmark if mode == "benchmark" else profile)(func, **options)
    _check("jit", options)
    return kernel_of(func, options.get("platform_target"), _flags(options))


def trace(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """As `jit`: the older name, from which frameworks made operators."""
    return jit(func, "trace", **options)


def baremetal(kernel: Any = None, **options: Any) -> Any:
    """As `jit`: run without a framework. save_neff_name, save_trace_name: files, see `measure.SavingKernel`."""
    if kernel is None:
        return lambda function: baremetal(function, **options)
    _check("baremetal", options)
    made = kernel_of(kernel, options.get("platform_target"), _flags(options))
    files = [Path(name) if name else None for name in map(options.get, ("save_neff_name", "save_trace_name"))]
    return measure.SavingKernel(made, *files) if any(files) else made


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel; one that returns nothing writes to its array arguments."""
    return kernel_of(kernel)(*args, **kwargs)


def benchmark(kernel: Any = None, **options: Any) -> Any:
    """Time a kernel: `benchmark(kernel)` or `benchmark(warmup=..., iters=...)(kernel)`.

    save_neff_name, save_trace_name: files to write, see `measure.Benchmark`.
    """
    if kernel is None:
        return lambda function: benchmark(function, **options)
    _check("benchmark", options)
    files = (Path(name) if name else None for name in map(options.get, ("save_neff_name", "save_trace_name")))
    return measure.Benchmark(
        kernel_of(kernel, options.get("platform_target"), _flags(options)), bool(options.get("quiet")), *files
    )


def profile(
    func: Any = None,
    *,
    working_directory: str | None = None,
    save_neff_name: str = "file.neff",
    save_trace_name: str = "profile.ntff",
    overwrite: bool = False,
    profile_nth: int = 1,
    num_execs: int | None = None,
    **options: Any,
) -> Any:
    """Time a kernel and keep what was found in a folder, under the names that scripts look for.

    The files hold trnlab's own forms, see `measure.KernelProfiler`: every profiled execution is the same one.
    """
    if func is None:
        return lambda function: profile(
            function,
            working_directory=working_directory,
            save_neff_name=save_neff_name,
            save_trace_name=save_trace_name,
            overwrite=overwrite,
            profile_nth=profile_nth,
            num_execs=num_execs,
            **options,
        )
    _check("profile", options)
    kernel = kernel_of(func, options.get("platform_target"), _flags(options))
    if working_directory is None:
        return measure.Benchmark(kernel, bool(options.get("quiet")))
    executions = tuple(range(profile_nth, max(num_execs or profile_nth, profile_nth) + 1, profile_nth))
    return measure.KernelProfiler(
        kernel,
        Path(working_directory),
        save_neff_name,
        save_trace_name,
        executions,
        overwrite,
        bool(options.get("quiet")),
    )
