# SPDX-License-Identifier: Apache-2.0
"""How long a kernel takes, through the interface that benchmark scripts already use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trnlab.nki.kernel import Kernel
from trnlab.nki.target import default_chip
from trnlab.runtime import kernels
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
    """A kernel that is timed when it is called; its numbers are not computed."""

    def __init__(self, kernel: Kernel, quiet: bool = False) -> None:
        self.kernel, self.quiet = kernel, quiet
        self.benchmark_result: BenchmarkResult | None = None

    def __getitem__(self, grid: Any) -> Benchmark:
        return Benchmark(self.kernel[grid], self.quiet)

    def __call__(self, *args: Any, **kwargs: Any) -> BenchmarkResult:
        """Time the kernel on these arguments."""
        timeline = self.kernel.timeline(*args, **kwargs)
        trace, chip = self.kernel.trace(*args, **kwargs), self.kernel.chip or default_chip()
        kernels.called(trace.members, trace.tensors, trace.gang, chip, executed=False)
        self.benchmark_result = BenchmarkResult(Latency(timeline.total))
        if not self.quiet:
            name = self.kernel.function.__name__
            time = f"{timeline.total / PS_PER_US:.2f} us"
            print(f"{name}: {time} predicted for {timeline.target}, {len(timeline)} instructions")
        return self.benchmark_result


def benchmark(
    kernel: Any = None, *, warmup: int = 0, iters: int = 1, make: Callable[[Any], Kernel] = Kernel, **options: Any
) -> Any:
    """`benchmark(kernel)` or `benchmark(warmup=..., iters=...)(kernel)`; others name files, not made."""
    if kernel is None:
        return lambda k: benchmark(k, warmup=warmup, iters=iters, make=make)
    return Benchmark(kernel if isinstance(kernel, Kernel) else make(kernel))
