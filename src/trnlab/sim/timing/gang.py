# SPDX-License-Identifier: Apache-2.0
"""Time of calls beside each other: each core's stream passes through the timer by itself, aligned where cores meet.

At a barrier or an exchange all wait for the last: its instruction starts at one time on every core. A collective is
only triggered by the engine, which goes on; data flow once the last has triggered it. HBM is timed as the share that
each core has when all cores of the chip are at work, so that two cores of a stack need no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trnlab.program.gang import Gang, GangEvent, meeting
from trnlab.program.routine import Call, Program, Routine
from trnlab.sim.timing import layout, order
from trnlab.sim.timing.core import Core, PassColumns
from trnlab.sim.timing.memory import Memories
from trnlab.sim.timing.plan import TimingPlan
from trnlab.timeline import CAUSES

_PEER = CAUSES.index("peer")


def time_concurrent(
    program: Program,
    calls: Sequence[Call],
    gang: Gang,
    plans: Sequence[TimingPlan],
    on: Sequence[tuple[Core, Memories]],
    out: PassColumns,
    first: int,
) -> list[int]:
    """Time calls that run beside each other, whose rows of `out` begin with `first`; returns the first row of each.

    on: the core of each call, and the memories as that core has them.
    """
    streams, firsts = [], []
    for call, (core, memory) in zip(calls, on):
        routine = program.routines[call.routine]
        streams.append(_Stream(routine, plans[call.routine], core, memory.enter(call, routine), first, out))
        firsts.append(first)
        first += len(routine)
    for event in gang.events:
        for m, at in zip(event.members, event.at):
            streams[m].advance(at)
        _meet([streams[m] for m in event.members], event)
    for stream in streams:
        stream.advance(len(stream.routine))
    for call, (_, memory), stream in zip(calls, on, streams):
        memory.leave(call, stream.routine, stream.slots)
    return firsts


class _Stream:
    """A call on its way: its core, its slots, and how far it has come. first: its first row of the timeline."""

    def __init__(
        self, routine: Routine, plan: TimingPlan, core: Core, slots: layout.Ints, first: int, out: PassColumns
    ) -> None:
        self.routine, self.plan, self.core, self.slots = routine, plan, core, slots
        self.first, self.out, self.at = first, out, 0

    def advance(self, last: int) -> None:
        """Time the instructions up to `last`."""
        if self.at < last:
            self.core.run(self.plan, self.slots, self.out, self.first, self.at, last)
        self.at = last

    def row(self, i: int) -> int:
        """Where instruction i is in `out`."""
        return self.first + i - self.out.base

    def ready(self) -> int:
        """When the next instruction could start if it waited for nobody else."""
        row = self.plan.rows[self.plan.row_of[self.at]]
        who = layout.DMA if row[layout.RING] >= 0 else int(row[layout.ENGINE])
        semaphore = int(self.core.parameters[layout.SEMAPHORE] + row[layout.WAKE])
        t = int(self.core.clocks.engine[row[layout.ENGINE], layout.FREE])
        for slots, access in self.operands():
            state = self.slots[slots]
            own = (state[:, (layout.WRITER, layout.READER)] & 7 == who) & (who != layout.DMA)
            waited = ~own[:, 0] if not access & layout.READ else slice(None)
            t = max(t, int(state[waited, layout.WROTE].max(initial=layout.NEVER)) + semaphore)
            if access & layout.WRITE:
                read = np.where(own[:, 1], state[:, layout.READ_BEFORE], state[:, layout.READ_AT])
                t = max(t, int(read.max(initial=layout.NEVER)) + semaphore)
        return t

    def operands(self) -> list[tuple[slice, int]]:
        """Slots and access of each operand of the next instruction."""
        p = self.plan
        uses = p.uses[int(p.first_operand[self.at]) : int(p.first_operand[self.at + 1])]
        return [order.unpack(int(use)) for use in uses]

    def not_before(self, t: int) -> None:
        """Hold the engine of the next instruction until `t`."""
        engine = self.core.clocks.engine[self.plan.rows[self.plan.row_of[self.at]][layout.ENGINE]]
        engine[layout.FREE] = max(int(engine[layout.FREE]), t)

    def finish_at(self, i: int, begin: int, done: int) -> None:
        """Let instruction i of the stream, the last one timed, move data from `begin` on and be done at `done`."""
        self.at = i
        for slots, access in self.operands():
            if access & layout.READ:
                read = self.slots[slots, layout.READ_AT]
                np.maximum(read, done, out=read)
            if access & layout.WRITE:
                self.slots[slots, layout.WROTE] = done
        self.out.begin[self.row(i)], self.out.done[self.row(i)] = begin, done
        self.at = i + 1


def _meet(streams: Sequence[_Stream], event: GangEvent) -> None:
    """Time the sides of one event."""
    ready = [stream.ready() for stream in streams]
    last = int(np.argmax(ready))
    latest = streams[last].first + event.at[last]
    instr = meeting(streams[0].routine, event.at[0])
    assert instr is not None
    for stream, t, at in zip(streams, ready, event.at):
        if not instr.asynchronous:
            stream.not_before(ready[last])
        stream.advance(at + 1)
        row = stream.row(at)
        if instr.asynchronous:
            late = ready[last] - t
            stream.finish_at(at, int(stream.out.end[row]) + late, int(stream.out.done[row]) + late)
            stream.out.held[row] = latest if late else -1
        elif t < ready[last]:
            stream.out.blocker[row], stream.out.cause[row] = latest, _PEER
