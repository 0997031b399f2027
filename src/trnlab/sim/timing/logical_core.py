# SPDX-License-Identifier: Apache-2.0
"""Time of a program on a logical core of two NeuronCores (LNC 2), which share one HBM and nothing else.

Calls whose work splits along their results (`split_cores`) are executed by both cores at once, each its half of the
instructions, on its own engines, SBUF, PSUM and DMA rings; other calls run on the first core, collectives are managed
by its CC cores. Kernels that were written for both cores run as they are. A core waits for what the other has written
to HBM as it waits for its own stores, by semaphores, and so does who overwrites what the other reads: what the halves
of neighbouring calls do not need of each other overlaps. HBM is timed as the share that a core has when all cores of
a chip are at work, which two of a stack do not exceed.

The vendor's compiler shards a graph over the cores of a logical core (`--logical-nc-config`, by default 2 on Trn2);
how, it does not say. Here it is along results, never along a contraction, so that nothing is added up between cores
and all values are the same bits as on one core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.loops import compiled
from trnlab.policy import Policy, chosen
from trnlab.program.gang import gang_of
from trnlab.program.routine import Program, Routine
from trnlab.sim.timing.communication import uses_of
from trnlab.sim.timing.core import Core, PassColumns
from trnlab.sim.timing.core_split import split_cores
from trnlab.sim.timing.gang import time_concurrent
from trnlab.sim.timing.layout import Array, Ints
from trnlab.sim.timing.memory import Memories
from trnlab.sim.timing.plan import TimingPlan
from trnlab.sim.timing.replay import INDICES, TIMES
from trnlab.sim.timing.schedule import planned
from trnlab.sim.timing.streams import CollectiveStreams
from trnlab.sim.timing.timer import follow, plans_of, program_timeline
from trnlab.timeline import Timeline

CORES = 2


@dataclass(frozen=True)
class _Half:
    """A core's part of a routine: which of its instructions, and their plan."""

    which: Array
    plan: TimingPlan


def time_pair(program: Program, chip: Chip, *, policy: Policy | None = None, competition: bool = True) -> Timeline:
    """When each instruction of one run of `program` starts and ends on two cores of `chip`, as one timeline.

    An instruction that both execute stands where the first does. Total and order of calls are those of both; of an
    engine, the times of two cores may overlap. The same arguments give the same timeline, always.
    """
    policy = policy or chosen(chip.name)
    plans = plans_of(program, chip, policy)
    out, cores = PassColumns(program.num_instructions), two_cores(program, chip, competition)
    for _ in calls_on_both(program, chip, cores, plans, out):
        pass
    return program_timeline(program, chip, plans, out, cores[0].startup)


def two_cores(program: Program, chip: Chip, competition: bool = True) -> list[Core]:
    """They know the same streams of collectives, which the first manages."""
    cores = [Core(chip) for _ in range(CORES)]
    streams = CollectiveStreams(program.streams, cores[0].startup, competition)
    for core in cores:
        core.streams = streams
    return cores


def calls_on_both(
    program: Program,
    chip: Chip,
    cores: list[Core],
    plans: Sequence[TimingPlan],
    out: PassColumns,
    *,
    whole: bool = True,
) -> Iterator[int]:
    """As `timer.calls_in_order`, on two cores."""
    parts = [_parts(routine, p) for routine, p in zip(program.routines, plans)]
    uses, memories = uses_of(program, chip), Memories.of_cores(program, plans, chip, CORES)
    calls = Counter(call.routine for call in program.calls)
    first = 0
    for at_once in program.together():
        out.base = 0 if whole else first
        gang, call, routine = gang_of(program, at_once), at_once[0], program.routines[at_once[0].routine]
        split = parts[call.routine]
        if gang is not None:
            on = [(cores[c.core], memories[c.core]) for c in at_once]
            yield from time_concurrent(program, at_once, gang, plans, on, out, first)
        else:
            busy = memories if split is not None else memories[:1]
            slots = [memory.enter(call, routine) for memory in busy]
            for core, half, own in reversed(list(zip(cores, split or (), slots))):
                _run(core, half, own, out, first, calls[call.routine])
            if call.routine in uses:
                cores[0].collective(plans[call.routine], slots[0], out, first, uses[call.routine], program.waits)
                follow(cores, program.waits)
            elif split is None:
                cores[0].call(plans[call.routine], slots[0], out, first, calls[call.routine])
            for memory, own in zip(busy, slots):
                memory.leave(call, routine, own)
            yield first
        first += sum(len(program.routines[c.routine]) for c in at_once)


def _parts(routine: Routine, p: TimingPlan) -> tuple[_Half, ...] | None:
    """What each core executes of a routine that splits."""
    found = split_cores(routine, p)
    return found and tuple(_Half(which, _part(p, which)) for which in found)


def on_both(program: Program, chip: Chip, policy: Policy | None = None) -> list[bool | None]:
    """For each call, whether both cores are at work on it; None for collectives."""
    policy, uses = policy or chosen(chip.name), uses_of(program, chip)
    code = program.routines
    split = [None if n in uses else split_cores(r, planned(r, chip, policy)) is not None for n, r in enumerate(code)]
    return [split[c.routine] if len(at_once) == 1 else True for at_once in program.together() for c in at_once]


def _part(p: TimingPlan, which: Array) -> TimingPlan:
    """The plan of some of a routine's instructions."""
    counts = np.diff(p.first_operand)[which]
    ends = np.cumsum(counts)
    uses = np.repeat(p.first_operand[which] - (ends - counts), counts) + np.arange(int(ends[-1]))
    first = np.concatenate([[0], ends]).astype(p.first_operand.dtype)
    return replace(p, row_of=p.row_of[which], first_operand=first, uses=p.uses[uses], beside=p.beside[:0])


def _run(core: Core, half: _Half, slots: Ints, out: PassColumns, first: int, calls: int) -> None:
    """Time a core's half of one of `calls` calls, whose instruction 0 is row `first` of `out`."""
    own = PassColumns(len(half.which))
    own.base = first
    core.call(half.plan, slots, own, first, calls)
    columns = [[getattr(x, name) for name in COLUMNS] for x in (own, out)]
    _put(half.which, first, out.base, *columns[0], *columns[1])


COLUMNS = (*TIMES, *INDICES, "cause")


@compiled(nogil=True)
def _put(
    which: Ints,
    first: int,
    base: int,
    start: Ints,
    end: Ints,
    begin: Ints,
    done: Ints,
    blocker: Array,
    held: Array,
    cause: Array,
    start_out: Ints,
    end_out: Ints,
    begin_out: Ints,
    done_out: Ints,
    blocker_out: Array,
    held_out: Array,
    cause_out: Array,
) -> None:
    """Columns of a half among those of its call. first, base: numbers of the call's instruction 0, and of the first
    that the columns have."""
    last = which.shape[0] - 1
    for i in range(which.shape[0]):
        row = first - base + which[i]
        start_out[row], end_out[row], begin_out[row], done_out[row] = start[i], end[i], begin[i], done[i]
        cause_out[row] = cause[i]
        by, whose = np.int64(blocker[i]), np.int64(held[i])
        blocker_out[row] = np.int32(first + which[min(by - first, last)] if by >= first else by)
        held_out[row] = np.int32(first + which[min(whose - first, last)] if whose >= first else whose)
