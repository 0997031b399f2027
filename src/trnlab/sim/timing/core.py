# SPDX-License-Identifier: Apache-2.0
"""One core on its way through time: the state of its engines, carried from call to call, and what the pass fills."""

from __future__ import annotations

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine
from trnlab.sim.timing import layout, order
from trnlab.sim.timing.plan import TimingPlan
from trnlab.sim.timing.replay import TimingReplay
from trnlab.sim.timing.streams import CollectiveStreams, StreamUse
from trnlab.units import PS_PER_NS, cycles_to_ps

PAGE, APART = 4096, 576  # bytes


class PassColumns:
    """The columns that the pass fills, for `count` instructions. base: the number of the first."""

    def __init__(self, count: int) -> None:
        self.base = 0
        times, indices = [np.int64] * 4, [np.int32] * 2
        self.start, self.end, self.begin, self.done, self.blocker, self.held, self.cause = _apart(
            count, *times, *indices, np.int8
        )

    def rows(self, first: int, last: int) -> slice:
        """Where instructions [first, last) are."""
        return slice(first - self.base, last - self.base)


def _apart(count: int, *kinds: type[np.generic]) -> list[layout.Array]:
    """Arrays of these kinds, without values, in one block, and each at another place within a page: of places that
    are a whole number of pages apart the processor keeps only a few at hand, and the pass writes to all in turn."""
    widths = [count * np.dtype(kind).itemsize for kind in kinds]
    block = np.empty(sum(widths) + (len(kinds) + 1) * (PAGE + APART), np.int8)
    at, found = -block.ctypes.data % PAGE, []
    for number, (kind, width) in enumerate(zip(kinds, widths)):
        at += number * APART
        found.append(block[at : at + width].view(kind))
        at += -(-width // PAGE) * PAGE - number * APART
    return found


class Core:
    """One core at work: the state of its engines and DMA engines, carried from stream to stream.

    startup: when its first instruction may start, in picoseconds. Other arguments as for `time_program`.
    """

    def __init__(
        self,
        chip: Chip,
        *,
        profiled: bool = False,
        window_phase: int | None = None,
        arbitration: int = layout.READY_FIRST,
    ) -> None:
        self.startup = to_ps(chip.sync.program_start.value + (chip.sync.profiler.value if profiled else 0))
        self.parameters = _parameters(chip, window_phase, arbitration)
        self.parameters[layout.BEGAN] = self.startup
        self.clocks = order.Clocks(self.startup)
        self.clocks.engine[Engine.GPSIMD, layout.FREE] += to_ps(chip.sync.gpsimd_start.value)
        self.clocks.window[layout.WINDOW_END] = window_phase or 0
        self.replay = TimingReplay(self.clocks, self.parameters)
        self.streams = CollectiveStreams(1, self.startup, competes=False)

    def call(self, p: TimingPlan, slots: layout.Ints, out: PassColumns, index: int, calls: int = 1) -> None:
        """Time one of `calls` calls of a routine; its instruction 0 is row `index` of `out`."""
        if self.parameters[layout.WINDOW] or not TimingReplay.pays(p, slots, calls):
            self.run(p, slots, out, index)
            return
        situation = self.replay.situation(p, slots, index)
        course = self.replay.known(p, situation)
        if course is not None:
            self.replay.apply(course, situation, slots, out, index)
            return
        self.run(p, slots, out, index)
        self.replay.remember(p, situation, slots, out, index)

    def collective(
        self, p: TimingPlan, slots: layout.Ints, out: PassColumns, index: int, use: StreamUse, waits: bool
    ) -> None:
        """Time a collective: all its tensors are there when the last one is. waits: nothing else starts before."""
        engine, stream = self.clocks.engine, self.streams.of(use)
        engine[Engine.CC] = stream
        self.run(p, slots, out, index)
        final = index + len(p.row_of) - 1
        rows = out.rows(index, final + 1)
        taken = out.end[rows] - out.start[rows]
        end = int(out.done[rows].max())
        if self.parameters[layout.ARBITRATION] != layout.NO_CONTENTION:
            begin = int(out.start[rows][-1] - taken[:-1].sum())  # its tensors follow each other on the stream
            end = self.streams.place(use, begin, int(taken.sum()))
            stream[:] = end, final
            self.clocks.cut = self.streams.cut()
        out.end[rows.stop - 1] = out.done[rows] = end
        for time, who in ((layout.WROTE, layout.WRITER), (layout.READ_AT, layout.READER)):
            slots[slots[:, who] >> 3 >= index, time] = end
        if waits:
            late = engine[:, layout.FREE] < end
            engine[late, layout.FREE], engine[late, layout.LAST] = end, final

    def run(
        self,
        p: TimingPlan,
        slots: layout.Ints,
        out: PassColumns,
        index: int,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        """Time instructions [first, last) of a plan, all by default; its instruction 0 has the number `index`.

        A part begins and ends where nothing moves past, see `schedule`.
        """
        last = len(p.row_of) if last is None else last
        here, c = out.rows(index + first, index + last), self.clocks
        order.run(
            p.rows,
            p.row_of[first:last],
            p.visit[first:last] - np.int32(first),
            p.first_operand[first : last + 1],
            p.uses,
            index + first,
            self.parameters,
            c.engine,
            c.part,
            c.window,
            c.unit,
            c.port.reshape(-1),
            c.port_count.reshape(-1),
            c.issued,
            c.ring,
            c.lane,
            c.gap,
            c.gaps,
            c.cut,
            slots.reshape(-1),
            out.start[here],
            out.end[here],
            out.begin[here],
            out.done[here],
            out.blocker[here],
            out.cause[here],
            out.held[here],
        )


def _parameters(chip: Chip, window_phase: int | None, arbitration: int) -> layout.Ints:
    """What the pass needs to know of the chip, see `order`; the half-rate windows are off without a phase."""
    pe, parameters = chip.tensor, np.zeros(layout.PARAMETERS, np.int64)
    parameters[layout.SEMAPHORE] = to_ps(chip.sync.semaphore.value)
    parameters[layout.INTERVAL] = to_ps(chip.dma.queue_interval.value)
    parameters[layout.COMPLETION] = to_ps(chip.dma.completion.value)
    parameters[layout.MOST_WAKE] = to_ps(chip.dma.wake_gpsimd.value)
    parameters[layout.TABLE_LOAD] = to_ps(chip.scalar.table_load.value)
    parameters[layout.ARBITRATION] = arbitration
    if window_phase is not None:
        window = pe.rate_window.value
        parameters[layout.WINDOW] = to_ps(window)
        parameters[layout.FULL_ABOVE] = to_ps(window * pe.full_rate_above.value)
        longer = pe.half_rate_latency.value - pe.latency.value + pe.issue.value
        parameters[layout.HALF_LATENCY] = cycles_to_ps(longer, pe.clock.value)
    return parameters


def to_ps(ns: float) -> int:
    """Whole picoseconds."""
    return round(ns * PS_PER_NS)
