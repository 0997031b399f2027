# SPDX-License-Identifier: Apache-2.0
"""Gangs: calls of a program that run beside each other, and meet at barriers, exchanges and collectives.

A gang has one call per core. Cores of one rank share its HBM; ranks share nothing, and reach each other through
collectives only. `match` finds out which sides of the meeting instructions belong together, by letting each stream
run, in turns, up to its next meeting: the list of events that results is the order in which both simulators let cores
meet. Where no stream can go on, the meeting that cannot happen is an error, not a hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.errors import ConstraintError, Location
from trnlab.isa.collectives.meeting import CorePlace, Meeting, MeetingSide
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import Buffer
from trnlab.program.communication import collective_of
from trnlab.program.digest import written_params
from trnlab.program.routine import COL, Call, Program, ProgramTensor, Routine

_COUNTS = [COL[f"count{d}"] for d in range(4)]


@dataclass(frozen=True)
class GangMember:
    """One core: its stream, and for each parameter of the routine the number of a tensor; ranks have their own."""

    place: CorePlace
    routine: Routine
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class GangEvent:
    """Members (by index, ascending) that meet, and the instruction of each that does it."""

    members: tuple[int, ...]
    at: tuple[int, ...]


@dataclass(frozen=True)
class Gang:
    """Cores that run together. Members are in order of rank and core; events in an order that can happen."""

    target: str
    members: tuple[GangMember, ...]
    events: tuple[GangEvent, ...] = field(default=())
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what the simulators remember


def gang_of(program: Program, calls: Sequence[Call]) -> Gang | None:
    """Calls that run beside each other with their events, or None for one that meets nobody; tensors are numbered in
    the order of `arguments_of`. Equal calls give the same gang. Raises what `match` raises."""
    first = program.routines[calls[0].routine]
    if len(calls) == 1 and not meets(first):
        return None
    numbers = {argument: n for n, argument in enumerate(arguments_of(calls))}
    members = tuple(
        GangMember(
            call.place, program.routines[call.routine], tuple(numbers[argument] for argument in bound_to(call))
        )
        for call in calls
    )
    known: dict[Any, Gang] = first._memo.setdefault("gangs", {})  # which keeps the routines whose ids are in its keys
    key = tuple((member.place, id(member.routine), member.tensors) for member in members)
    if key not in known:
        known[key] = Gang(program.target, members, match(members))
    return known[key]


def arguments_of(calls: Iterable[Call]) -> list[tuple[int, int]]:
    """What calls are bound to, each once: tensor, and the byte where the parameter begins."""
    return list(dict.fromkeys(argument for call in calls for argument in bound_to(call)))


def bound_to(call: Call) -> list[tuple[int, int]]:
    """What each parameter of a call is bound to: the tensor, and the byte where it begins there."""
    return list(zip(call.args, call.offsets or (0,) * len(call.args)))


def meets(routine: Routine) -> bool:
    """Whether a routine stops for others somewhere; what is nothing but a collective is one by itself."""
    return collective_of(routine) is None and bool(points(routine))


def program_of(name: str, members: Sequence[GangMember], tensors: Sequence[Buffer]) -> Program:
    """The program of a kernel: a call of each member's stream, beside each other. tensors: of their numbers."""
    written = {m.tensors[p] for m in members for p in written_params(m.routine)}
    held = tuple(
        ProgramTensor(i, b.name, b.shape, b.dtype, b.nbytes, "output" if i in written else "input")
        for i, b in enumerate(tensors)
    )
    calls = tuple(
        Call(i, m.tensors, label=name, core=m.place.core, concurrent=i > 0, rank=m.place.rank)
        for i, m in enumerate(members)
    )
    outputs = tuple(t.id for t in held if t.kind == "output")
    routines = tuple(m.routine for m in members)
    made = Program(name, routines[0].target, routines, held, calls, tuple(range(len(held))), outputs)
    return made if len(members) == 1 else replace(made, calls=_placed(made))


def match(members: Sequence[GangMember]) -> tuple[GangEvent, ...]:
    """The meetings of these streams, in order.

    Raises ConstraintError, naming the lines of two sides: TRN440 for a meeting that one side never comes to, TRN441
    for sides that do not fit together.
    """
    matcher = Matcher([member.place for member in members], members[0].routine.target)
    for m, member in enumerate(members):
        matcher.add(m, meetings(member.routine, member.place))
        matcher.finish(m)
    events = tuple(matcher.advance())
    matcher.check_end()
    return events


def joined(programs: Sequence[Program]) -> Program:
    """Programs of kernels, one of each rank, as one: all calls beside each other, over the tensors of all ranks."""
    first, *others = programs
    if others:
        first = replace(first, calls=_placed(first))
    for other in others:
        tensors, routines = len(first.tensors), len(first.routines)
        more = tuple(
            replace(
                call, routine=call.routine + routines, args=tuple(a + tensors for a in call.args), concurrent=True
            )
            for call in _placed(other)
        )
        first = replace(
            first,
            routines=first.routines + other.routines,
            calls=first.calls + more,
            tensors=first.tensors + tuple(replace(t, id=t.id + tensors) for t in other.tensors),
            inputs=first.inputs + tuple(i + tensors for i in other.inputs),
            outputs=first.outputs + tuple(i + tensors for i in other.outputs),
        )
    return first


def _placed(program: Program) -> tuple[Call, ...]:
    """The calls of a kernel's program, whose labels say their places."""
    return tuple(replace(call, label=f"{program.name}, {call.place}") for call in program.calls)


@dataclass(frozen=True)
class MeetingPoint:
    """A member's side of a meeting: instruction `at` of its stream. places: all that take part, in order."""

    at: int
    instr: Meeting
    places: tuple[CorePlace, ...]
    side: MeetingSide
    where: Location | None

    @property
    def key(self) -> object:
        """What sides of one meeting have in common."""
        return self.instr.opcode, self.places, self.instr.key(self.side.attrs)


def meetings(routine: Routine, place: CorePlace, first: int = 0) -> list[MeetingPoint]:
    """The meetings of a stream, or of the part of a stream that begins with instruction `first`."""
    found = []
    for i in points(routine):
        instr, side = meeting(routine, i), side_of(routine, i)
        assert instr is not None
        places = tuple(sorted(instr.places(side.attrs, place)))
        found.append(MeetingPoint(first + i, instr, places, side, where(routine, i)))
    return found


def points(routine: Routine) -> list[int]:
    """The instructions of a stream that are meetings."""
    if "meetings" not in routine._memo:
        routine._memo["meetings"] = np.flatnonzero(np.isin(routine.opcode, _meeting_codes())).tolist()
    found: list[int] = routine._memo["meetings"]
    return found


@cache
def _meeting_codes() -> tuple[int, ...]:
    return tuple(code for code, instr in isa.BY_OPCODE.items() if isinstance(instr, Meeting))


def meeting(routine: Routine, i: int) -> Meeting | None:
    """The instruction when it is one that cores execute together."""
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    return instr if isinstance(instr, Meeting) else None


def attributes(routine: Routine, i: int) -> dict[str, Any]:
    """Attributes of instruction i."""
    return dict(routine.attr_table[int(routine.attr[i])])


def where(routine: Routine, i: int) -> Location | None:
    """The user's line of instruction i."""
    return routine.locs[int(routine.loc[i])]


def side_of(routine: Routine, i: int) -> MeetingSide:
    """What meeting instruction i of a stream brings along."""
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    shapes = {}
    for record in routine.operands[int(routine.first_operand[i]) : int(routine.first_operand[i + 1])]:
        free = int(np.prod(record[_COUNTS]))
        fmt = BY_CODE[int(record[COL["dtype"]])].name
        shapes[instr.operands[int(record[COL["role"]])].name] = (int(record[COL["partitions"]]), free, fmt)
    return MeetingSide(attributes(routine, i), shapes)


class Matcher:
    """Streams in turns, each up to its next meeting. Streams may grow between calls of `advance`."""

    def __init__(self, places: Sequence[CorePlace], target: str) -> None:
        self.places, self.target = places, target
        self.index = {place: m for m, place in enumerate(places)}
        self.points: list[list[MeetingPoint]] = [[] for _ in places]
        self.turn = [0] * len(places)  # meetings that the member has left behind
        self.ended = [False] * len(places)

    def add(self, m: int, more: Sequence[MeetingPoint]) -> None:
        """Further meetings of a member."""
        self.points[m].extend(more)

    def finish(self, m: int) -> None:
        """A member's stream is complete."""
        self.ended[m] = True

    def next(self, m: int) -> MeetingPoint | None:
        """The next meeting of a member, as far as its stream is known."""
        return self.points[m][self.turn[m]] if self.turn[m] < len(self.points[m]) else None

    def advance(self) -> list[GangEvent]:
        """The meetings that can happen now, in order. Raises ConstraintError for sides that do not fit."""
        events: list[GangEvent] = []
        moved = True
        while moved:
            moved = False
            for m in range(len(self.places)):
                while self._pass(m, events):
                    moved = True
        return events

    def absent(self, m: int) -> list[int]:
        """Members that the next meeting of `m` waits for and whose streams may still come to it."""
        point = self.next(m)
        others = [self.index.get(place) for place in point.places] if point else []
        return [o for o in others if o is not None and self.next(o) is None and not self.ended[o]]

    def check_end(self) -> None:
        """Raises ConstraintError when a member is left waiting."""
        for m in range(len(self.places)):
            point = self.next(m)
            if point is not None:
                raise self._never_met(m, point)

    def _pass(self, m: int, events: list[GangEvent]) -> bool:
        """Let a member have its next meeting if all others that it needs have come."""
        point = self.next(m)
        if point is None:
            return False
        met = [self.index.get(place) for place in point.places]
        sides = [self.next(other) if other is not None else None for other in met]
        if any(side is None or side.key != point.key for side in sides):
            return False
        if met:
            self._check([side for side in sides if side is not None], point)
            members = tuple(other for other in met if other is not None)
            events.append(GangEvent(members, tuple(side.at for side in sides if side is not None)))
        for other in met or [m]:
            assert other is not None
            self.turn[other] += 1
        return True

    def _check(self, sides: list[MeetingPoint], point: MeetingPoint) -> None:
        """The sides fit together."""
        by_place = dict(zip(point.places, sides))
        wrong = point.instr.disagreement({place: side.side for place, side in by_place.items()})
        if wrong is None:
            return
        here, there, mine, theirs = wrong
        raise ConstraintError(
            f"{point.instr.name}: the two sides do not fit together",
            code="TRN441",
            where=by_place[here].where,
            limit=f"{here} {mine}",
            got=f"{there} {theirs}, at {by_place[there].where}",
            chip=self.target,
            remedy="let both sides say the same shape, format and direction",
        )

    def _never_met(self, m: int, point: MeetingPoint) -> ConstraintError:
        """A member that waits, and what keeps one that it waits for."""
        late = next(place for place in point.places if not self._is_at(place, point))
        return ConstraintError(
            f"{point.instr.name}: {self.places[m]} waits for {late}, which never comes here",
            code="TRN440",
            where=point.where,
            limit=f"the same {point.instr.name} on {', '.join(map(str, point.places))}",
            got=self._whereabouts(late),
            chip=self.target,
            remedy=self._remedy(late),
        )

    def _is_at(self, place: CorePlace, point: MeetingPoint) -> bool:
        m = self.index.get(place)
        there = self.next(m) if m is not None else None
        return there is not None and there.key == point.key

    def _whereabouts(self, place: CorePlace) -> str:
        """Where a member that does not come has gone."""
        m = self.index.get(place)
        if m is None:
            return f"the kernel runs without {place}"
        point = self.next(m)
        if point is not None:
            return f"{place} waits at {point.instr.name} ({_spoken(point.side.attrs)}), at {point.where}"
        if not self.points[m]:
            return f"{place} reached the end of the kernel"
        count, last = len(self.points[m]), self.points[m][-1]
        end = f"{place} reached the end of the kernel"
        return f"{end} after {count} meetings, the last {last.instr.name} at {last.where}"

    def _remedy(self, place: CorePlace) -> str:
        if place in self.index:
            return "let every core come to the same meetings in the same order: move it out of the condition"
        if place.rank not in {known.rank for known in self.places}:
            return "run the kernel on simulated ranks, nki.simulate(kernel, ranks=N), or name ranks that exist"
        return "launch the kernel on two cores, kernel[2](...), or leave the meeting out where nl.num_programs() is 1"


def _spoken(attrs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in attrs.items() if value is not None)
