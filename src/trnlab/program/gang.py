# SPDX-License-Identifier: Apache-2.0
"""Gangs: the streams of several cores that meet at barriers, exchanges and collectives.

A gang has one routine per core. Cores of one rank share its HBM; ranks share nothing, and reach each other through
collectives only. `match` finds out which sides of the meeting instructions belong together, by letting each stream
run, in turns, up to its next meeting: the list of events that results is the order in which both simulators let cores
meet. Where no stream can go on, the meeting that cannot happen is an error, not a hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trnlab import isa
from trnlab.errors import ConstraintError, Location
from trnlab.isa.meeting import Meeting, Place, Side
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.routine import COL, Attrs, Routine

_COUNTS = [COL[f"count{d}"] for d in range(4)]


@dataclass(frozen=True)
class Member:
    """One core: its stream, and for each parameter of the routine the number of a tensor of its rank."""

    place: Place
    routine: Routine
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """Members (by index, ascending) that meet, and the instruction of each that does it."""

    members: tuple[int, ...]
    at: tuple[int, ...]


@dataclass(frozen=True)
class Gang:
    """Cores that run together. Members are in order of rank and core; events in an order that can happen."""

    name: str
    target: str
    members: tuple[Member, ...]
    events: tuple[Event, ...] = field(default=())

    @property
    def num_instructions(self) -> int:
        """Instructions of all members."""
        return sum(len(m.routine) for m in self.members)


def gang_of(name: str, members: Sequence[Member]) -> Gang | None:
    """A gang with its events, or None for one core that never meets. Raises what `match` raises."""
    if len(members) == 1 and not _points(members[0].routine):
        return None
    return Gang(name, members[0].routine.target, tuple(members), match(members))


def match(members: Sequence[Member]) -> tuple[Event, ...]:
    """The meetings of these streams, in order.

    Raises ConstraintError, naming the lines of two sides: TRN440 for a meeting that one side never comes to, TRN441
    for sides that do not fit together.
    """
    return _Matcher(members).run()


def meeting(routine: Routine, i: int) -> Meeting | None:
    """The instruction when it is one that cores execute together."""
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    return instr if isinstance(instr, Meeting) else None


def attributes(routine: Routine, i: int) -> dict[str, object]:
    """Attributes of instruction i."""
    found: Attrs = routine.attr_table[int(routine.attr[i])]
    return dict(found)


def where(routine: Routine, i: int) -> Location | None:
    """The user's line of instruction i."""
    return routine.locs[int(routine.loc[i])]


def side(routine: Routine, i: int) -> Side:
    """What meeting instruction i of a stream brings along."""
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    shapes = {}
    for record in routine.operands[int(routine.first_operand[i]) : int(routine.first_operand[i + 1])]:
        free = int(np.prod(record[_COUNTS]))
        fmt = BY_CODE[int(record[COL["dtype"]])].name
        shapes[instr.operands[int(record[COL["role"]])].name] = (int(record[COL["partitions"]]), free, fmt)
    return Side(attributes(routine, i), shapes)


def _points(routine: Routine) -> list[int]:
    """The meeting instructions of a stream."""
    codes = [code for code, instr in isa.BY_OPCODE.items() if isinstance(instr, Meeting)]
    points: list[int] = np.flatnonzero(np.isin(routine.opcode, codes)).tolist()
    return points


class _Matcher:
    """Streams in turns. `turn[m]` counts the meetings that member m has left behind."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.index = {member.place: m for m, member in enumerate(members)}
        self.points = [_points(member.routine) for member in members]
        self.turn = [0] * len(members)
        self.events: list[Event] = []

    def run(self) -> tuple[Event, ...]:
        moved = True
        while moved:
            moved = False
            for m in range(len(self.members)):
                while self._advance(m):
                    moved = True
        stuck = [m for m in range(len(self.members)) if self._next(m) is not None]
        if stuck:
            raise self._never_met(stuck)
        return tuple(self.events)

    def _next(self, m: int) -> int | None:
        """The next meeting of a member, or None at its end."""
        return self.points[m][self.turn[m]] if self.turn[m] < len(self.points[m]) else None

    def _advance(self, m: int) -> bool:
        """Let a member have its next meeting if all others that it needs have come."""
        at = self._next(m)
        if at is None:
            return False
        sides = self._sides(m, at)
        if any(other is None or not self._same(m, at, other) for other in sides):
            return False
        met = sorted(other for other in sides if other is not None)
        if met:
            self._check(met)
            self.events.append(Event(tuple(met), tuple(self.points[o][self.turn[o]] for o in met)))
        for other in met or [m]:
            self.turn[other] += 1
        return True

    def _sides(self, m: int, at: int) -> list[int | None]:
        """Members that take part in a meeting; None for a place that the gang does not have."""
        routine = self.members[m].routine
        instr = meeting(routine, at)
        assert instr is not None
        places = instr.places(attributes(routine, at), self.members[m].place)
        return [self.index.get(place) for place in sorted(places)]

    def _same(self, m: int, at: int, other: int) -> bool:
        """Whether another member stands at the other side of this meeting."""
        mine, there = self.members[m].routine, self._next(other)
        if there is None:
            return False
        theirs = self.members[other].routine
        if mine.opcode[at] != theirs.opcode[there]:
            return False
        instr = meeting(mine, at)
        assert instr is not None
        same_key = instr.key(attributes(mine, at)) == instr.key(attributes(theirs, there))
        return same_key and self._sides(m, at) == self._sides(other, there)

    def _check(self, met: list[int]) -> None:
        """The sides fit together."""
        at = [self.points[m][self.turn[m]] for m in met]
        instr = meeting(self.members[met[0]].routine, at[0])
        assert instr is not None
        sides = {self.members[m].place: side(self.members[m].routine, i) for m, i in zip(met, at)}
        wrong = instr.disagreement(sides)
        if wrong is None:
            return
        here, there, mine, theirs = wrong
        m, other = self.index[here], self.index[there]
        raise ConstraintError(
            f"{instr.name}: the two sides do not fit together", code="TRN441",
            where=self._line(m, self.points[m][self.turn[m]]), limit=f"{here} {mine}",
            got=f"{there} {theirs}, at {self._line(other, self.points[other][self.turn[other]])}",
            chip=self.members[m].routine.target, remedy="let both sides say the same shape, format and direction",
        )  # fmt: skip

    def _never_met(self, stuck: list[int]) -> ConstraintError:
        """The first member that waits, and what keeps one it waits for."""
        m = stuck[0]
        at = self._next(m)
        assert at is not None
        instr = meeting(self.members[m].routine, at)
        assert instr is not None
        places = sorted(instr.places(attributes(self.members[m].routine, at), self.members[m].place))
        late = next(p for p in places if self.index.get(p) is None or not self._same(m, at, self.index[p]))
        return ConstraintError(
            f"{instr.name}: {self.members[m].place} waits for {late}, which never comes here", code="TRN440",
            where=self._line(m, at), limit=f"the same {instr.name} on {', '.join(map(str, places))}",
            got=self._whereabouts(late), chip=self.members[m].routine.target, remedy=self._remedy(late),
        )  # fmt: skip

    def _whereabouts(self, place: Place) -> str:
        """Where a member that does not come has gone."""
        m = self.index.get(place)
        if m is None:
            return f"the kernel runs without {place}"
        at = self._next(m)
        if at is None:
            last = f" after {self._meetings(m)}" if self.points[m] else ""
            return f"{place} reached the end of the kernel{last}"
        instr = meeting(self.members[m].routine, at)
        assert instr is not None
        attrs = attributes(self.members[m].routine, at)
        return f"{place} waits at {instr.name} ({_spoken(attrs)}), at {self._line(m, at)}"

    def _meetings(self, m: int) -> str:
        last = self.points[m][-1]
        instr = meeting(self.members[m].routine, last)
        assert instr is not None
        return f"{len(self.points[m])} meetings, the last {instr.name} at {self._line(m, last)}"

    def _remedy(self, place: Place) -> str:
        if place in self.index:
            return "let every core come to the same meetings in the same order: move it out of the condition"
        if place.rank and not any(p.rank for p in self.index):
            return "run the kernel on simulated ranks, nki.simulate(kernel, ranks=N), or name ranks that exist"
        return "launch the kernel on two cores, kernel[2](...), or leave the meeting out where nl.num_programs() is 1"

    def _line(self, m: int, at: int) -> Location | None:
        return where(self.members[m].routine, at)


def _spoken(attrs: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in attrs.items() if value is not None)
