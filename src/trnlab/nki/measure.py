# SPDX-License-Identifier: Apache-2.0
"""How long a kernel takes, through the interface that benchmark scripts already use."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.errors import RunError
from trnlab.files import write_atomic
from trnlab.nki import explain
from trnlab.nki.kernel import Kernel
from trnlab.nki.target import default_chip
from trnlab.nki.tracing.arguments import map_objects
from trnlab.nki.tracing.traces import Trace
from trnlab.nki.typing import TensorAnnotation
from trnlab.program.routine import Program
from trnlab.timeline import Timeline, save
from trnlab.units import PS_PER_US


@dataclass(frozen=True)
class Latency:
    """Latency of one call. The model is deterministic, so that every percentile is the same figure."""

    picoseconds: int

    def get_latency_percentile(self, percentile: float) -> float:
        """Microseconds."""
        return self.picoseconds / PS_PER_US


@dataclass(frozen=True)
class BenchmarkResult:
    """What `benchmark` found."""

    nc_latency: Latency


class Benchmark:
    """A kernel that is timed when it is called; its numbers are not computed.

    program, trace: files to write, replacing what is there: the recorded kernel (`portable`), where the vendor's
    tools have an executable, and the timeline with the profiler's counters, which `timeline.load` and the stand-in
    for neuron-profile (`vendor_tools`) read. None writes nothing.
    """

    def __init__(
        self, kernel: Kernel, quiet: bool = False, program: Path | None = None, trace: Path | None = None
    ) -> None:
        self.kernel, self.quiet, self.program, self.trace = kernel, quiet, program, trace
        self.benchmark_result: BenchmarkResult | None = None

    def __getitem__(self, grid: Any) -> Benchmark:
        return Benchmark(self.kernel[grid], self.quiet, self.program, self.trace)

    def __call__(self, *args: Any, **kwargs: Any) -> BenchmarkResult:
        """Time the kernel on these arguments; `nki.typing.tensor[[rows, columns], dtype]` stands for an array."""
        from trnlab.runtime import kernels

        args, kwargs = map_objects(TensorAnnotation.zeros, (args, kwargs), TensorAnnotation)
        timeline = self.kernel.timeline(*args, **kwargs)
        trace, chip = self.kernel.trace(*args, **kwargs), self.kernel.chip or default_chip()
        kernels.called(trace.program, chip, self.kernel.policy(chip), executed=False)
        explain.called(self.kernel, trace.routine, args, kwargs)
        self.benchmark_result = BenchmarkResult(Latency(timeline.total))
        if self.program is not None:
            save_program(self.kernel, trace, chip, self.program)
        if self.trace is not None:
            save_profile(timeline, trace.program, chip, self.trace)
        if not self.quiet:
            name = self.kernel.function.__name__
            time = f"{timeline.total / PS_PER_US:.2f} us"
            print(f"{name}: {time} predicted for {timeline.target}, {len(timeline)} instructions")
        return self.benchmark_result


def save_program(kernel: Kernel, trace: Trace, chip: Chip, path: Path) -> None:
    """Write the recorded kernel, where the vendor's tools have an executable."""
    from trnlab.nki import portable  # with everything that executes and times

    write_atomic(path, portable.dump(kernel, trace, chip))


def save_profile(timeline: Timeline, program: Program, chip: Chip, path: Path) -> None:
    """Write a timeline of a kernel's program with the profiler's counters."""
    from trnlab.runtime.analysis.counters import with_counters

    save(with_counters(timeline, program, chip), path)


class SavingKernel:
    """A kernel that runs, and leaves the files that a script looks for."""

    def __init__(self, kernel: Kernel, program: Path | None, ntff: Path | None) -> None:
        self.kernel, self.program, self.ntff = kernel, program, ntff

    def __getitem__(self, grid: Any) -> SavingKernel:
        return SavingKernel(self.kernel[grid], self.program, self.ntff)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays."""
        result = self.kernel(*args, **kwargs)
        chip, trace = self.kernel.chip or default_chip(), self.kernel.trace(*args, **kwargs)
        if self.program is not None:
            save_program(self.kernel, trace, chip, self.program)
        if self.ntff is not None:
            save_profile(self.kernel.timeline(*args, **kwargs), trace.program, chip, self.ntff)
        return result


class KernelProfiler(Benchmark):
    """A kernel that is timed when it is called, and what was found kept in a folder.

    `program` and `trace` are as for `Benchmark`, with a trace per profiled execution; json_reports/ has a summary of
    each.
    """

    def __init__(
        self,
        kernel: Kernel,
        folder: Path,
        program: str,
        trace: str,
        executions: tuple[int, ...],
        overwrite: bool,
        quiet: bool = False,
    ) -> None:
        super().__init__(kernel, quiet, program=folder / program)
        self.folder, self.names = folder, (program, trace)
        self.executions, self.overwrite = executions, overwrite

    def __getitem__(self, grid: Any) -> KernelProfiler:
        return KernelProfiler(
            self.kernel[grid], self.folder, *self.names, self.executions, self.overwrite, self.quiet
        )

    def __call__(self, *args: Any, **kwargs: Any) -> BenchmarkResult:
        """Time the kernel on these arguments. Raises RunError where files are in the way and may not be replaced."""
        args, kwargs = map_objects(TensorAnnotation.zeros, (args, kwargs), TensorAnnotation)
        reports = self.folder / "json_reports"
        self._make_room(reports)
        result = super().__call__(*args, **kwargs)
        from trnlab.runtime.analysis.counters import with_counters

        chip, trace = self.kernel.chip or default_chip(), self.kernel.trace(*args, **kwargs)
        timeline = with_counters(self.kernel.timeline(*args, **kwargs), trace.program, chip)
        about = {"kernel": self.kernel.function.__name__, "target": timeline.target}
        report = json.dumps({"metadata": about, "summary": [timeline.meta["counters"]]}, indent=2).encode()
        stem, suffix = Path(self.names[1]).stem, Path(self.names[1]).suffix
        for number in self.executions:
            name = stem if number == 1 else f"{stem}_exec_{number}"
            save(timeline, self.folder / f"{name}{suffix}")
            write_atomic(reports / f"{name}_profile_full.json", report)
        return result

    def _make_room(self, reports: Path) -> None:
        old = [p for p in (self.folder / self.names[0], reports) if p.exists()]
        if old and not self.overwrite:
            raise RunError(
                "a profile is already there",
                code="TRN800",
                got=str(old[0]),
                limit="an empty folder",
                remedy="choose another working_directory, or pass overwrite=True",
            )
        reports.mkdir(parents=True, exist_ok=True)


def benchmark(
    kernel: Any = None, *, warmup: int = 0, iters: int = 1, make: Callable[[Any], Kernel] = Kernel, **options: Any
) -> Any:
    """`benchmark(kernel)` or `benchmark(warmup=..., iters=...)(kernel)`; others name files, not made."""
    if kernel is None:
        return lambda k: benchmark(k, warmup=warmup, iters=iters, make=make)
    return Benchmark(kernel if isinstance(kernel, Kernel) else make(kernel))
