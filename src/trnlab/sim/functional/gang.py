# SPDX-License-Identifier: Apache-2.0
"""Execution of a gang: one machine per core, the streams in turns between the events where cores meet.

The schedule is fixed by the gang's events: before each, its members run up to it, in their order; the rest runs after
the last. Ranks have HBM tensors of their own; cores of a rank get the same arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from trnlab import checks
from trnlab.isa.collectives.meeting import CorePlace, Meeting
from trnlab.numerics.dtypes import DType
from trnlab.numerics.rounding import store
from trnlab.program.gang import Gang, GangEvent, attributes, meeting
from trnlab.program.routine import COL
from trnlab.sim.checks.cores import NAME as RACE
from trnlab.sim.checks.cores import GangWatch
from trnlab.sim.functional.machine import POISON, Machine, RoutineFrame
from trnlab.sim.functional.meaning import as_read, operand_array

Array = np.ndarray[Any, Any]
_HARMLESS = "with these arguments, all results are the same whichever core goes first"
_OTHER_ORDERS = ((-1, False), (1, True), (-1, True))  # who goes first, and whether they take turns
Views = dict[str, tuple[Array, DType]]


@dataclass(frozen=True, eq=False)
class MemberMachine:
    """Where a member of a gang is executed: a machine, bytes added to its SBUF addresses, its scratch in HBM."""

    machine: Machine
    sbuf_base: int
    scratch: Array

    def fresh(self, executed: int) -> MemberMachine:
        """One like it that has executed so many instructions, and prints nothing."""
        of = self.machine
        made = Machine(of.chip, replace(of.options, quiet=True), sbuf_bytes=of.sbuf.shape[1])
        made.executed = executed
        return MemberMachine(made, self.sbuf_base, np.full_like(self.scratch, POISON))


class GangRun:
    """One execution of a gang over `tensors`, by number, C-contiguous. seats: of its members."""

    def __init__(self, gang: Gang, tensors: Sequence[Array], seats: Sequence[MemberMachine]) -> None:
        self.gang, self.tensors, self.seats = gang, tensors, seats
        watch = None if checks.level(RACE) == "off" else GangWatch(gang, tensors)
        self.watch = watch if watch is not None and watch.looks else None
        self.risky = [watch.risky(m) if watch is not None else [] for m in range(len(gang.members))]

    def run(self) -> None:
        """Everything, from start to end. Raises what `Machine.call` raises, and ConstraintError for a race."""
        before = [tensor.copy() for tensor in self.tensors] if self.watch else []
        executed = [seat.machine.executed for seat in self.seats]
        self._run(self.tensors, self.seats)
        found = self.watch.found if self.watch is not None else []
        same = bool(found) and all(self._same(before, executed, turn, by_turns) for turn, by_turns in _OTHER_ORDERS)
        for error in found:
            error.got = f"{error.got}; {_HARMLESS}" if same else error.got
            checks.report(RACE, error, harmless=same)

    def _same(self, before: Sequence[Array], executed: Sequence[int], turn: int, by_turns: bool) -> bool:
        """Whether all tensors end with the same values when the cores go in another order."""
        tensors = [tensor.copy() for tensor in before]
        seats = [seat.fresh(count) for seat, count in zip(self.seats, executed)]
        self._run(tensors, seats, turn, by_turns, watched=False)
        return all(_equal(one, other) for one, other in zip(self.tensors, tensors))

    def _run(
        self,
        tensors: Sequence[Array],
        seats: Sequence[MemberMachine],
        turn: int = 1,
        by_turns: bool = False,
        watched: bool = True,
    ) -> None:
        """All members up to each event, the first one first, or the last where turn is -1.

        by_turns: they stop wherever they touch what another one touches, and let that one go on.
        """
        self.machines = [seat.machine for seat in seats]
        self.frames: list[RoutineFrame] = []
        for member, seat in zip(self.gang.members, seats):
            args = [tensors[t] for t in member.tensors]
            frame = seat.machine.begin(member.routine, args, sbuf_base=seat.sbuf_base, scratch=seat.scratch)
            self.frames.append(frame)
        self.at, self.watched = [0] * len(self.gang.members), watched
        for event in self.gang.events:
            self._up_to(list(zip(event.members, event.at))[::turn], by_turns)
            self._meet(event)
        ends = [(m, len(member.routine)) for m, member in enumerate(self.gang.members)]
        self._up_to(ends[::turn], by_turns)

    def _up_to(self, ends: list[tuple[int, int]], by_turns: bool) -> None:
        """Members up to an instruction each."""
        for m, last in ends if not by_turns else ():
            self._advance(m, last)
        stops = [[at + 1 for at in self.risky[m] if self.at[m] <= at < last] for m, last in ends] if by_turns else []
        for round_ in zip_longest(*stops):
            for (m, _), at in zip(ends, round_):
                self._execute(m, self.at[m] if at is None else at)
        for m, last in ends:
            self._execute(m, last)

    def _advance(self, m: int, last: int) -> None:
        for at in self.watch.stops(m, self.at[m], last) if self.watch is not None and self.watched else ():
            assert self.watch is not None
            self._execute(m, at)
            saved = self.watch.before(m, at)
            self._execute(m, at + 1)
            self.watch.after(m, at, saved)
        self._execute(m, last)

    def _execute(self, m: int, last: int) -> None:
        self.machines[m].advance(self.frames[m], self.at[m], last)
        self.at[m] = last

    def _meet(self, event: GangEvent) -> None:
        """Let the members of an event execute their sides."""
        places = [self.gang.members[m].place for m in event.members]
        meet([(p, self.frames[m], at) for p, m, at in zip(places, event.members, event.at)])
        for m, at in zip(event.members, event.at):
            self.at[m] = at + 1
            if self.watch is not None and self.watched:
                self.watch.passed(m, at)


def meet(sides: Sequence[tuple[CorePlace, RoutineFrame, int]]) -> None:
    """Execute all sides of a meeting, each an instruction of a frame: all read before any writes."""
    instr = meeting(sides[0][1].routine, sides[0][2])
    assert instr is not None
    views = [_views(instr, frame, at) for _, frame, at in sides]
    arrays = {place: _read(found, instr.moves_bits) for (place, _, _), found in zip(sides, views)}
    results = []
    for place, frame, at in sides:
        attrs = attributes(frame.routine, at)
        results.append(instr.meaning({**arrays[place], **instr.received(place, arrays, attrs)}, attrs))
    for found, result in zip(views, results):
        _write(found, result)


def _views(instr: Meeting, frame: RoutineFrame, at: int) -> Views:
    """The operands of an instruction, as writable arrays with their formats."""
    routine, views = frame.routine, {}
    for record in routine.operands[int(routine.first_operand[at]) : int(routine.first_operand[at + 1])]:
        name = instr.operands[int(record[COL["role"]])].name
        views[name] = operand_array(record, frame.base, frame.pitch)
    return views


def _read(views: Views, bits: bool) -> dict[str, Array]:
    """The operands as their instruction gets them: copies of the bits, or numbers."""
    return {name: array.copy() if bits else as_read(array, dtype) for name, (array, dtype) in views.items()}


def _write(views: Views, results: dict[str, Array]) -> None:
    for name, value in results.items():
        target, dtype = views[name]
        target[...] = (value if value.dtype == target.dtype else store(value, dtype)).reshape(target.shape)


def _equal(one: Array, other: Array) -> bool:
    """Whether two tensors hold the same numbers: a zero has no sign here, and NaNs the same bits."""
    same = one.reshape(-1).view(np.uint8) == other.reshape(-1).view(np.uint8)
    if same.all():
        return True
    return bool(np.all(same.reshape(-1, one.itemsize).all(1) | (one.reshape(-1) == other.reshape(-1))))
