# SPDX-License-Identifier: Apache-2.0
"""Time of a gang: each core's stream passes through the timer by itself, aligned where cores meet.

At a barrier or an exchange all wait for the last: its instruction starts at one time on every core. A collective is
only triggered by the engine, which goes on; data flow once the last has triggered it. HBM is timed as the share that
each core has when all cores of the chip are at work, so that two cores of a stack need no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.policy import Policy, chosen
from trnlab.program.gang import Event, Gang, Member, meeting
from trnlab.program.routine import Call, Program, Tensor
from trnlab.sim.timing import order
from trnlab.sim.timing.memory import Memories
from trnlab.sim.timing.plan import Plan
from trnlab.sim.timing.schedule import planned
from trnlab.sim.timing.timer import Columns, Core, phase_of, timeline_of, to_ps
from trnlab.timeline import CAUSES, CallInfo, Timeline

_PEER = CAUSES.index("peer")


def time_gang(
    gang: Gang, chip: Chip, *, profiled: bool = False, policy: Policy | None = None
) -> Timeline:  # fmt: skip
    """When each instruction of each core starts and ends, as one timeline: a call for each core, one after the other.

    The same gang gives the same timeline, always. The total is that of the core that ends last.
    """
    out = Columns(gang.num_instructions)
    streams, first = [], 0
    for member in gang.members:
        streams.append(_Stream(member, first, chip, profiled, policy or chosen(chip.name), out))
        first += len(member.routine)
    for event in gang.events:
        for m, at in zip(event.members, event.at):
            streams[m].advance(at)
        _meet([streams[m] for m in event.members], event)
    for stream in streams:
        stream.advance(len(stream.member.routine))
    return _timeline(gang, chip, streams, out, streams[0].core.startup)


class _Stream:
    """One core on its way: its clocks, its slots, and how far it has come. first: its first row of the timeline."""

    def __init__(self, member: Member, first: int, chip: Chip, profiled: bool, policy: Policy, out: Columns) -> None:
        self.member, self.first, self.chip, self.out = member, first, chip, out
        self.plan = planned(member.routine, chip, policy)
        phase = phase_of(policy, chip, [member.routine])
        self.core = Core(chip, profiled=profiled, window_phase=phase)
        self.slots = _at_rest(member, self.plan, chip)
        self.at = 0

    def advance(self, last: int) -> None:
        """Time the instructions up to `last`."""
        if self.at < last:
            self.core.run(self.plan, self.slots, self.out, self.first, self.at, last)
        self.at = last

    def ready(self) -> int:
        """When the next instruction could start if it waited for nobody else."""
        row = self.plan.rows[self.plan.row_of[self.at]]
        who = order.DMA if row[order.RING] >= 0 else int(row[order.ENGINE])
        semaphore = to_ps(self.chip.sync.semaphore.value) + int(row[order.WAKE])
        t = int(self.core.clocks.engine[row[order.ENGINE], order.FREE])
        for slots, access in self.operands():
            state = self.slots[slots]
            own = (state[:, (order.WRITER, order.READER)] & 7 == who) & (who != order.DMA)
            waited = ~own[:, 0] if not access & order.READ else slice(None)
            t = max(t, int(state[waited, order.WROTE].max(initial=order.NEVER)) + semaphore)
            if access & order.WRITE:
                read = np.where(own[:, 1], state[:, order.READ_BEFORE], state[:, order.READ_AT])
                t = max(t, int(read.max(initial=order.NEVER)) + semaphore)
        return t

    def operands(self) -> list[tuple[slice, int]]:
        """Slots and access of each operand of the next instruction."""
        p = self.plan
        uses = p.uses[int(p.first_operand[self.at]) : int(p.first_operand[self.at + 1])]
        return [order.unpack(int(use)) for use in uses]

    def not_before(self, t: int) -> None:
        """Hold the engine of the next instruction until `t`."""
        engine = self.core.clocks.engine[self.plan.rows[self.plan.row_of[self.at]][order.ENGINE]]
        engine[order.FREE] = max(int(engine[order.FREE]), t)

    def finish_at(self, i: int, begin: int, done: int) -> None:
        """Let instruction i of the stream, the last one timed, move data from `begin` on and be done at `done`."""
        self.at = i
        for slots, access in self.operands():
            if access & order.READ:
                read = self.slots[slots, order.READ_AT]
                np.maximum(read, done, out=read)
            if access & order.WRITE:
                self.slots[slots, order.WROTE] = done
        self.out.begin[self.first + i], self.out.done[self.first + i] = begin, done
        self.at = i + 1


def _meet(streams: Sequence[_Stream], event: Event) -> None:
    """Time the sides of one event."""
    ready = [stream.ready() for stream in streams]
    last = int(np.argmax(ready))
    latest = streams[last].first + event.at[last]
    instr = meeting(streams[0].member.routine, event.at[0])
    assert instr is not None
    for stream, t, at in zip(streams, ready, event.at):
        if not instr.asynchronous:
            stream.not_before(ready[last])
        stream.advance(at + 1)
        row = stream.first + at
        if instr.asynchronous:
            late = ready[last] - t
            stream.finish_at(at, int(stream.out.end[row]) + late, int(stream.out.done[row]) + late)
            stream.out.held[row] = latest if late else -1
        elif t < ready[last]:
            stream.out.blocker[row], stream.out.cause[row] = latest, _PEER


def _at_rest(member: Member, p: Plan, chip: Chip) -> order.Ints:
    """The slots of a stream whose parameters are at rest in HBM."""
    routine = member.routine
    buffers = [routine.buffers[i] for i in routine.params]
    tensors = tuple(Tensor(b.id, b.name, b.shape, b.dtype, b.nbytes, "input") for b in buffers)
    call = Call(0, tuple(t.id for t in tensors), label=routine.name)
    program = Program(routine.name, routine.target, (routine,), tensors, (call,), call.args, ())
    return Memories(program, [p], chip).enter(call, routine)


def _timeline(gang: Gang, chip: Chip, streams: Sequence[_Stream], out: Columns, startup: int) -> Timeline:
    calls = [
        CallInfo(str(s.member.place), s.member.routine.name, s.first, len(s.member.routine), core=core)
        for core, s in enumerate(streams)
    ]
    return timeline_of(gang.name, chip, [s.plan for s in streams], calls, range(len(streams)), out, startup)
