# SPDX-License-Identifier: Apache-2.0
"""What the chip's documented limits allow at best of the work that a graph asks for, whoever compiles it.

A time below it is wrong. Three limits stand beside each other, and the longest is the program's:

- products at the published peak of the PE array; of what a causal mask hides, and a program leaves out, nothing;
- bytes that have to come and go, at the rate of memory or of all DMA engines together, whichever is less;
- products that need each other: each has to pass through the array and out of PSUM, the first after a load, the last
  before a store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from trnlab.chips.spec import Chip
from trnlab.graph.flops import AskedWork
from trnlab.isa.products.nc_matmul import FP8
from trnlab.program.digest import matmul_flops
from trnlab.runtime.executable import Executable
from trnlab.units import PS_PER_NS, PS_PER_S


@dataclass(frozen=True)
class ChipLimit:
    """Seconds that work takes at least: its products, its bytes, its chain of products."""

    products: float = 0.0
    memory: float = 0.0
    chain: float = 0.0

    @property
    def seconds(self) -> float:
        """The longest of them."""
        return max(self.products, self.memory, self.chain)

    @property
    def by(self) -> str:
        """What sets it, in words."""
        names = {"the PE array": self.products, "HBM": self.memory, "products that need each other": self.chain}
        return max(names, key=lambda name: names[name])


@dataclass(frozen=True)
class LeastStepTime:
    """Seconds that a step takes at least, and what sets most of them."""

    seconds: float
    by: str

    def share(self, step_s: float) -> float:
        """How close a step of so many seconds is to it: 1 at the limit."""
        return self.seconds / step_s


def limit_of_step(calls: Iterable[tuple[Executable, int]], mode: str) -> LeastStepTime | None:
    """The limit of programs that are executed one after the other, so many times each; None where nothing is known
    of any. mode: the format that operands of products are rounded to."""
    spent: defaultdict[str, float] = defaultdict(float)
    for executable, times in calls:
        limit = limit_of(executable, mode)
        if limit is not None:
            spent[limit.by] += limit.seconds * times
    return LeastStepTime(sum(spent.values()), max(spent, key=lambda name: spent[name])) if spent else None


def limit_of(executable: Executable, mode: str) -> ChipLimit | None:
    """The limit of one execution; None of a kernel."""
    work, chip, cores = executable.asked, executable.chip, executable.cores
    if work is None:
        return None
    program = executable.program
    executed = sum(matmul_flops(program.routines[call.routine]) for call in program.calls)
    peak = max(chip.peak_flops(name) for name in {mode, *FP8.intersection(work.formats)})
    dma = chip.dma
    rate = min(dma.engines.value * dma.engine_bandwidth.value, chip.hbm.bandwidth.value)
    return ChipLimit(min(work.flops, executed) / peak / cores, work.bytes / rate / cores, _chain(work, chip))


def _chain(work: AskedWork, chip: Chip) -> float:
    if not work.bytes:
        return 0.0
    vector, scalar, tensor = chip.vector, chip.scalar, chip.tensor
    out_of_psum = min(vector.latency.value / vector.clock.value, scalar.latency.value / scalar.clock.value)
    each = tensor.latency.value / tensor.clock.value + out_of_psum
    transfer = (
        (min(chip.dma.start.value, chip.dma.start_ring.value) + chip.dma.completion.value) * PS_PER_NS / PS_PER_S
    )
    return work.chain * each + transfer * (2 if work.chain else 1)
