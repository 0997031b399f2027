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
from trnlab.program.gang import gang_of
from trnlab.program.routine import Call, Program, ProgramTensor, Routine
from trnlab.sim.timing import layout
from trnlab.sim.timing.communication import uses_of, with_collectives
from trnlab.sim.timing.core import Core, PassColumns, to_ps
from trnlab.sim.timing.gang import time_concurrent
from trnlab.sim.timing.memory import Memories
from trnlab.sim.timing.plan import TimingPlan
from trnlab.sim.timing.schedule import planned
from trnlab.sim.timing.streams import CollectiveStreams
from trnlab.timeline import CallInfo, Timeline


def time_program(
    program: Program,
    chip: Chip,
    *,
    profiled: bool = False,
    window_phase: int | None = None,
    arbitration: int = layout.READY_FIRST,
    policy: Policy | None = None,
    edit: Callable[[Routine, TimingPlan], TimingPlan] | None = None,
    competition: bool = True,
) -> Timeline:
    """When each instruction of one run of `program` starts and ends on its cores, one or several, of `chip`.

    The same arguments give the same timeline, always. Raises KeyError for a cost class without a rule.
    profiled: under the profiler, which lengthens the start. window_phase: when some half-rate window of the PE array
    begins, in picoseconds from the start of the program; without it the policy says so for kernels (`half_rate`), and
    all else runs at full rate. arbitration:
    whether DMA engines and shared ports serve whoever is ready first, or in the order of the program, or everybody at
    once (`layout.READY_FIRST` and so on). policy: what the hardware's compiler makes of kernels that leave it the
    choice, if not what `policy.chosen` says. edit: changes the plan of each routine first, see `whatif`. competition:
    whether transfers leave DMA engines and HBM to collectives that are on their way, see `streams`.
    """
    policy = policy or chosen(chip.name)
    plans = plans_of(program, chip, policy)
    if window_phase is None:
        window_phase = phase_of(policy, chip, program.routines)
    if edit is not None:
        plans = [edit(routine, p) for routine, p in zip(program.routines, plans)]
    out = PassColumns(program.num_instructions)
    cores = [
        Core(chip, profiled=profiled, window_phase=window_phase, arbitration=arbitration)
        for _ in range(program.cores)
    ]
    cores[0].streams = CollectiveStreams(program.streams, cores[0].startup, competition)
    for _ in calls_in_order(program, chip, cores, plans, out):
        pass
    return program_timeline(program, chip, plans, out, cores[0].startup)


def plans_of(program: Program, chip: Chip, policy: Policy) -> list[TimingPlan]:
    """The plans of a program's routines, collectives as the network takes them."""
    return with_collectives(program, [planned(routine, chip, policy) for routine in program.routines])


def calls_in_order(
    program: Program,
    chip: Chip,
    cores: Sequence[Core],
    plans: Sequence[TimingPlan],
    out: PassColumns,
    *,
    whole: bool = True,
) -> Iterator[int]:
    """Time one call after the other, those beside each other at once; gives the first row of each once it is in
    `out`. whole: `out` holds all calls, and else those that run at once alone."""
    uses, memories = uses_of(program, chip), Memories.of_cores(program, plans, chip, len(cores))
    seats = dict(zip(program.places, zip(cores, memories)))
    calls = Counter(call.routine for call in program.calls)
    first = 0
    for at_once in program.together():
        out.base = 0 if whole else first
        gang, call = gang_of(program, at_once), at_once[0]
        if gang is not None:
            yield from time_concurrent(program, at_once, gang, plans, [seats[c.place] for c in at_once], out, first)
        else:
            (core, memory), routine, p = seats[call.place], program.routines[call.routine], plans[call.routine]
            slots = memory.enter(call, routine)
            if call.routine in uses:
                core.collective(p, slots, out, first, uses[call.routine], program.waits)
                follow(cores, program.waits)
            elif len(cores) == 1:
                core.call(p, slots, out, first, calls[call.routine])
            else:
                core.run(p, slots, out, first)
            memory.leave(call, routine, slots)
            yield first
        first += sum(len(program.routines[c.routine]) for c in at_once)


def follow(cores: Sequence[Core], waits: bool) -> None:
    """Let other cores know of a collective of the first on its way, which takes DMA engines and HBM from all."""
    first = cores[0]
    for other in cores[1:]:
        other.clocks.cut = first.clocks.cut
        if waits:
            free = other.clocks.engine[:, layout.FREE]
            np.maximum(free, first.clocks.engine[:, layout.FREE].max(), out=free)


def estimate(program: Program, chip: Chip, *, policy: Policy | None = None) -> int:
    """Picoseconds that `program` takes at least: its longest chain of dependencies, if engines, DMA engines and ports
    served everybody at once; or the work of its busiest engine. Never above the total of `time_program`.
    """
    policy_of = policy or chosen(chip.name)
    plans = with_collectives(program, [planned(routine, chip, policy_of) for routine in program.routines])
    numbers = {place: n for n, place in enumerate(program.places)}
    work = np.zeros((len(numbers), layout.ENGINES), np.int64)
    for call in program.calls:
        p = plans[call.routine]
        used = np.bincount(p.engine, p.rows[p.row_of, layout.ISSUE_GAP], layout.ENGINES)
        work[numbers[call.place]] += used.astype(np.int64)
    work[:, Engine.CC] //= program.streams
    full_rate = (policy or chosen(chip.name)).with_options(half_rate="off")
    free = time_program(program, chip, arbitration=layout.NO_CONTENTION, policy=full_rate)
    return max(free.total, free.startup + int(work.max()) + to_ps(chip.sync.program_end.value))


def time_routine(
    routine: Routine,
    chip: Chip,
    *,
    profiled: bool = False,
    window_phase: int | None = None,
    arbitration: int = layout.READY_FIRST,
    policy: Policy | None = None,
) -> Timeline:
    """The timeline of one call of a routine whose parameters are at rest in HBM; see `time_program`."""
    return time_program(
        program_of([(routine, 0)]),
        chip,
        profiled=profiled,
        window_phase=window_phase,
        arbitration=arbitration,
        policy=policy,
    )


def program_of(calls: Sequence[tuple[Routine, int]]) -> Program:
    """Calls of routines one after the other, each with tensors of its own, its tiles from a byte of SBUF on."""
    tensors: list[ProgramTensor] = []
    made = []
    for number, (routine, base) in enumerate(calls):
        mine = [routine.buffers[index] for index in routine.params]
        args = range(len(tensors), len(tensors) + len(mine))
        tensors += (ProgramTensor(n, b.name, b.shape, b.dtype, b.nbytes, "input") for n, b in zip(args, mine))
        made.append(Call(number, tuple(args), base, label=routine.name))
    routines = tuple(routine for routine, _ in calls)
    first, inputs = routines[0], tuple(t.id for t in tensors)
    return Program(first.name, first.target, routines, tuple(tensors), tuple(made), inputs, ())


def calls_ps(calls: Sequence[tuple[Routine, int]], chip: Chip) -> int:
    """Picoseconds of `program_of` these calls, without its start."""
    timeline = time_program(program_of(calls), chip)
    return timeline.total - timeline.startup


def phase_of(policy: Policy, chip: Chip, routines: Iterable[Routine]) -> int | None:
    """When a half-rate window of the PE array begins, in picoseconds; None for full rate, as of compiled programs."""
    if policy.half_rate == "off" or not all(len(routine.left_open) for routine in routines if len(routine)):
        return None
    return to_ps(chip.tensor.rate_window.value * PHASES[policy.half_rate])


def program_timeline(
    program: Program, chip: Chip, plans: list[TimingPlan], out: PassColumns, startup: int
) -> Timeline:
    """The timeline of a program whose calls' instructions follow each other in `out`."""
    calls, first = [], 0
    numbers = {place: n for n, place in enumerate(program.places)}
    for call, routine in program:
        label = call.label or routine.name
        calls.append(CallInfo(label, routine.name, first, len(routine), _place(call.loc), numbers[call.place]))
        first += len(routine)
    return timeline_of(program.name, chip, plans, calls, [call.routine for call in program.calls], out, startup)


def timeline_of(
    name: str,
    chip: Chip,
    plans: Sequence[TimingPlan],
    calls: Sequence[CallInfo],
    plan_of: Sequence[int],
    out: PassColumns,
    startup: int,
) -> Timeline:
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
