# SPDX-License-Identifier: Apache-2.0
"""How long a kernel takes, through the interface that benchmark scripts already use."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnlab.errors import RunError
from trnlab.files import write_atomic
from trnlab.nki import explain
from trnlab.nki.kernel import Kernel
from trnlab.nki.target import default_chip
from trnlab.nki.tracing.arguments import map_objects
from trnlab.nki.typing import TensorAnnotation
from trnlab.program.text import routine_text
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

    program, trace: files to write, replacing what is there: the recorded instructions as text, where the vendor's
    tools have an executable, and the timeline, which `timeline.load` reads. None writes nothing.
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
            write_atomic(self.program, routine_text(trace.routine).encode())
        if self.trace is not None:
            save(timeline, self.trace)
        if not self.quiet:
            name = self.kernel.function.__name__
            time = f"{timeline.total / PS_PER_US:.2f} us"
            print(f"{name}: {time} predicted for {timeline.target}, {len(timeline)} instructions")
        return self.benchmark_result


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
        timeline = self.kernel.timeline(*args, **kwargs)
        report = json.dumps(_report(self.kernel, timeline), indent=2).encode()
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


def _report(kernel: Kernel, timeline: Timeline) -> dict[str, Any]:
    """Times in seconds and shares of the total, under the names of the vendor's summary."""
    from trnlab.sim.timing.summary import engine_use

    summary: dict[str, Any] = {"total_time": timeline.total / 1e12}
    for use in engine_use(timeline):
        engine = use.name if use.name == "dma" else f"{use.name}_engine"
        summary[f"{engine}_active_time"] = use.active / 1e12
        summary[f"{engine}_active_time_percent"] = use.active / timeline.total
        summary[f"{engine}_instruction_count"] = use.instructions
    return {"metadata": {"kernel": kernel.function.__name__, "target": timeline.target}, "summary": [summary]}


def benchmark(
    kernel: Any = None, *, warmup: int = 0, iters: int = 1, make: Callable[[Any], Kernel] = Kernel, **options: Any
) -> Any:
    """`benchmark(kernel)` or `benchmark(warmup=..., iters=...)(kernel)`; others name files, not made."""
    if kernel is None:
        return lambda k: benchmark(k, warmup=warmup, iters=iters, make=make)
    return Benchmark(kernel if isinstance(kernel, Kernel) else make(kernel))
