# SPDX-License-Identifier: Apache-2.0
"""Programs in, timelines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.errors import Location
from trnlab.isa.base import Engine
from trnlab.policy import PHASES, Policy, chosen
from trnlab.program.routine import Call, Program, Routine, Tensor
from trnlab.sim.timing import order
from trnlab.sim.timing.communication import uses_of, with_collectives
from trnlab.sim.timing.memory import Memories
from trnlab.sim.timing.plan import Plan
from trnlab.sim.timing.replay import Replay
from trnlab.sim.timing.schedule import planned
from trnlab.sim.timing.streams import Streams, Use
from trnlab.timeline import CallInfo, Timeline
from trnlab.units import PS_PER_NS, cycles_to_ps


def time_program(
    program: Program,
    chip: Chip,
    *,
    profiled: bool = False,
    window_phase: int | None = None,
    arbitration: int = order.READY_FIRST,
    policy: Policy | None = None,
    edit: Callable[[Routine, Plan], Plan] | None = None,
    competition: bool = True,
) -> Timeline:
    """When each instruction of one run of `program` starts and ends on its cores, one or several, of `chip`.

    The same arguments give the same timeline, always. Raises KeyError for a cost class without a rule.
    profiled: under the profiler, which lengthens the start. window_phase: when some half-rate window of the PE array
    begins, in picoseconds from the start of the program; without it the policy says so for kernels (`half_rate`), and
    all else runs at full rate. arbitration:
    whether DMA engines and shared ports serve whoever is ready first, or in the order of the program, or everybody at
    once (`order.READY_FIRST` and so on). policy: what the hardware's compiler makes of kernels that leave it the
    choice, if not what `policy.chosen` says. edit: changes the plan of each routine first, see `whatif`. competition:
    whether transfers leave DMA engines and HBM to collectives that are on their way, see `streams`.
    """
    policy = policy or chosen(chip.name)
    plans = plans_of(program, chip, policy)
    if window_phase is None:
        window_phase = phase_of(policy, chip, program.routines)
    if edit is not None:
        plans = [edit(routine, p) for routine, p in zip(program.routines, plans)]
    out = Columns(program.num_instructions)
    cores = [
        Core(chip, profiled=profiled, window_phase=window_phase, arbitration=arbitration)
        for _ in range(program.cores)
    ]
    cores[0].streams = Streams(program.streams, cores[0].startup, competition)
    for _ in calls_in_order(program, chip, cores, plans, out):
        pass
    return program_timeline(program, chip, plans, out, cores[0].startup)


def plans_of(program: Program, chip: Chip, policy: Policy) -> list[Plan]:
    """The plans of a program's routines, collectives as the network takes them."""
    return with_collectives(program, [planned(routine, chip, policy) for routine in program.routines])


def calls_in_order(
    program: Program, chip: Chip, cores: Sequence[Core], plans: Sequence[Plan], out: Columns, *, whole: bool = True
) -> Iterator[int]:
    """Time one call after the other, those beside each other at once; gives the first row of each once it is in
    `out`. whole: `out` holds all calls, and else the last alone."""
    uses = uses_of(program, chip)
    memories = Memories.of_cores(program, plans, chip, len(cores))
    calls = Counter(call.routine for call in program.calls)
    first = 0
    for at_once in program.together():
        out.base = 0 if whole else first
        slots = [memories[call.core].enter(call, program.routines[call.routine]) for call in at_once]
        firsts = []
        for call, own in zip(at_once, slots):
            p, core = plans[call.routine], cores[call.core]
            if call.routine in uses:
                core.collective(p, own, out, first, uses[call.routine], program.waits)
                follow(cores, program.waits)
            elif len(cores) == 1:
                core.call(p, own, out, first, calls[call.routine])
            else:
                core.run(p, own, out, first)
            firsts.append(first)
            first += len(program.routines[call.routine])
        for call, own in zip(at_once, slots):
            memories[call.core].leave(call, program.routines[call.routine], own)
        yield from firsts


def follow(cores: Sequence[Core], waits: bool) -> None:
    """Let other cores know of a collective of the first on its way, which takes DMA engines and HBM from all."""
    first = cores[0]
    for other in cores[1:]:
        other.clocks.cut = first.clocks.cut
        if waits:
            free = other.clocks.engine[:, order.FREE]
            np.maximum(free, first.clocks.engine[:, order.FREE].max(), out=free)


def estimate(program: Program, chip: Chip, *, policy: Policy | None = None) -> int:
    """Picoseconds that `program` takes at least: its longest chain of dependencies, if engines, DMA engines and ports
    served everybody at once; or the work of its busiest engine. Never above the total of `time_program`.
    """
    policy_of = policy or chosen(chip.name)
    plans = with_collectives(program, [planned(routine, chip, policy_of) for routine in program.routines])
    work = np.zeros((program.cores, order.ENGINES), np.int64)
    for call in program.calls:
        p = plans[call.routine]
        work[call.core] += np.bincount(p.engine, p.rows[p.row_of, order.ISSUE_GAP], order.ENGINES).astype(np.int64)
    work[:, Engine.CC] //= program.streams
    full_rate = (policy or chosen(chip.name)).with_options(half_rate="off")
    free = time_program(program, chip, arbitration=order.NO_CONTENTION, policy=full_rate)
    return max(free.total, free.startup + int(work.max()) + to_ps(chip.sync.program_end.value))


def time_routine(
    routine: Routine,
    chip: Chip,
    *,
    profiled: bool = False,
    window_phase: int | None = None,
    arbitration: int = order.READY_FIRST,
    policy: Policy | None = None,
) -> Timeline:
    """The timeline of one call of a routine whose parameters are at rest in HBM; see `time_program`."""
    tensors = []
    for index in routine.params:
        b = routine.buffers[index]
        tensors.append(Tensor(b.id, b.name, b.shape, b.dtype, b.nbytes, "input"))
    call = Call(0, tuple(t.id for t in tensors), label=routine.name)
    inputs = tuple(t.id for t in tensors)
    program = Program(routine.name, routine.target, (routine,), tuple(tensors), (call,), inputs, ())
    return time_program(
        program, chip, profiled=profiled, window_phase=window_phase, arbitration=arbitration, policy=policy
    )


class Columns:
    """The columns that the pass fills, for `count` instructions. base: the number of the first."""

    def __init__(self, count: int) -> None:
        self.base = 0
        self.start, self.end, self.begin, self.done = (np.empty(count, np.int64) for _ in range(4))
        self.blocker, self.held = np.empty(count, np.int32), np.empty(count, np.int32)
        self.cause = np.empty(count, np.int8)

    def rows(self, first: int, last: int) -> slice:
        """Where instructions [first, last) are."""
        return slice(first - self.base, last - self.base)


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
        arbitration: int = order.READY_FIRST,
    ) -> None:
        self.startup = to_ps(chip.sync.program_start.value + (chip.sync.profiler.value if profiled else 0))
        self.parameters = _parameters(chip, window_phase, arbitration)
        self.parameters[order.BEGAN] = self.startup
        self.clocks = order.Clocks(self.startup)
        self.clocks.engine[Engine.GPSIMD, order.FREE] += to_ps(chip.sync.gpsimd_start.value)
        self.clocks.window[order.WINDOW_END] = window_phase or 0
        self.replay = Replay(self.clocks, self.parameters)
        self.streams = Streams(1, self.startup, competes=False)

    def call(self, p: Plan, slots: order.Ints, out: Columns, index: int, calls: int = 1) -> None:
        """Time one of `calls` calls of a routine; its instruction 0 is row `index` of `out`."""
        if self.parameters[order.WINDOW] or not Replay.pays(p, slots, calls) or self._competes(p):
            self.run(p, slots, out, index)
            return
        situation = self.replay.situation(p, slots, index)
        course = self.replay.known(p, situation)
        if course is not None:
            self.replay.apply(course, situation, slots, out, index)
            return
        self.run(p, slots, out, index)
        self.replay.remember(p, situation, slots, out, index)

    def _competes(self, p: Plan) -> bool:
        """Whether a call may meet collectives on their way."""
        first = int(self.clocks.engine[p.uses_engine, order.FREE].min())
        return len(self.clocks.cut) > 0 and self.streams.until > first

    def collective(self, p: Plan, slots: order.Ints, out: Columns, index: int, use: Use, waits: bool) -> None:
        """Time a collective: all its tensors are there when the last one is. waits: nothing else starts before."""
        engine, stream = self.clocks.engine, self.streams.of(use)
        engine[Engine.CC] = stream
        self.run(p, slots, out, index)
        final = index + len(p.row_of) - 1
        rows = out.rows(index, final + 1)
        taken = out.end[rows] - out.start[rows]
        end = int(out.done[rows].max())
        if self.parameters[order.ARBITRATION] != order.NO_CONTENTION:
            begin = int(out.start[rows][-1] - taken[:-1].sum())  # its tensors follow each other on the stream
            end = self.streams.place(use, begin, int(taken.sum()))
            stream[:] = end, final
            self.clocks.cut = self.streams.cut()
        out.end[rows.stop - 1] = out.done[rows] = end
        for time, who in ((order.WROTE, order.WRITER), (order.READ_AT, order.READER)):
            slots[slots[:, who] >> 3 >= index, time] = end
        if waits:
            late = engine[:, order.FREE] < end
            engine[late, order.FREE], engine[late, order.LAST] = end, final

    def run(
        self, p: Plan, slots: order.Ints, out: Columns, index: int, first: int = 0, last: int | None = None
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
            c.port,
            c.port_count,
            c.issued,
            c.ring,
            c.lane,
            c.gap,
            c.gaps,
            c.cut,
            slots,
            out.start[here],
            out.end[here],
            out.begin[here],
            out.done[here],
            out.blocker[here],
            out.cause[here],
            out.held[here],
        )


def phase_of(policy: Policy, chip: Chip, routines: Iterable[Routine]) -> int | None:
    """When a half-rate window of the PE array begins, in picoseconds; None for full rate, as of compiled programs."""
    if policy.half_rate == "off" or not all(len(routine.left_open) for routine in routines):
        return None
    return to_ps(chip.tensor.rate_window.value * PHASES[policy.half_rate])


def _parameters(chip: Chip, window_phase: int | None, arbitration: int) -> order.Ints:
    """What the pass needs to know of the chip, see `order`; the half-rate windows are off without a phase."""
    pe, parameters = chip.tensor, np.zeros(order.PARAMETERS, np.int64)
    parameters[order.SEMAPHORE] = to_ps(chip.sync.semaphore.value)
    parameters[order.INTERVAL] = to_ps(chip.dma.queue_interval.value)
    parameters[order.COMPLETION] = to_ps(chip.dma.completion.value)
    parameters[order.MOST_WAKE] = to_ps(chip.dma.wake_gpsimd.value)
    parameters[order.TABLE_LOAD] = to_ps(chip.scalar.table_load.value)
    parameters[order.ARBITRATION] = arbitration
    if window_phase is not None:
        window = pe.rate_window.value
        parameters[order.WINDOW] = to_ps(window)
        parameters[order.FULL_ABOVE] = to_ps(window * pe.full_rate_above.value)
        longer = pe.half_rate_latency.value - pe.latency.value + pe.issue.value
        parameters[order.HALF_LATENCY] = cycles_to_ps(longer, pe.clock.value)
    return parameters


def program_timeline(program: Program, chip: Chip, plans: list[Plan], out: Columns, startup: int) -> Timeline:
    """The timeline of a program whose calls' instructions follow each other in `out`."""
    calls, first = [], 0
    for call, routine in program:
        label = call.label or routine.name
        calls.append(CallInfo(label, routine.name, first, len(routine), _place(call.loc), call.core))
        first += len(routine)
    return timeline_of(program.name, chip, plans, calls, [call.routine for call in program.calls], out, startup)


def timeline_of(
    name: str, chip: Chip, plans: Sequence[Plan], calls: Sequence[CallInfo], plan_of: Sequence[int], out: Columns,
    startup: int,
) -> Timeline:  # fmt: skip
    """The timeline of calls whose instructions follow each other in `out`; `plan_of`: for each call, its plan."""
    last = int(out.done.max()) if len(out.done) else startup
    base = np.cumsum([0, *(len(p.ops) for p in plans)])
    numbered = [p.row_of + np.int32(first) for p, first in zip(plans, base)]
    engines, ops = [plans[i].engine for i in plan_of], [numbered[i] for i in plan_of]
    return Timeline(
        name=name,
        target=chip.name,
        total=last + to_ps(chip.sync.program_end.value),
        startup=startup,
        completion=to_ps(chip.dma.completion.value),
        ops=tuple(op for p in plans for op in p.ops),
        calls=tuple(calls),
        start=out.start,
        end=out.end,
        begin=out.begin,
        done=out.done,
        blocker=out.blocker,
        cause=out.cause,
        held=out.held,
        engine=np.concatenate(engines) if engines else np.empty(0, np.int8),
        op=np.concatenate(ops) if ops else np.empty(0, np.int32),
        meta=_about(chip),
        call=np.repeat(np.arange(len(calls), dtype=np.int32), [c.count for c in calls]),
    )


def _about(chip: Chip) -> dict[str, Any]:
    """What a timeline says of its chip: the name, and figures for rooflines."""
    return {
        "chip": chip.title,
        "peak_flops": {name: chip.peak_flops(name) for name in ("bfloat16", "float32")},
        "hbm_bandwidth": chip.hbm.bandwidth.value,
    }


def _place(loc: Location | None) -> str:
    return "" if loc is None else str(loc)


def to_ps(ns: float) -> int:
    """Whole picoseconds."""
    return round(ns * PS_PER_NS)
