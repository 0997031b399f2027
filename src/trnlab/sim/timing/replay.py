# SPDX-License-Identifier: Apache-2.0
"""Calls that are timed once: a routine that is called again in the same situation takes the same course, only later.

Two situations are the same when all that can still matter is: every time that lies so far back that nothing can wait
for it any more counts as forgotten, every other one is taken relative to the earliest start of the call, and so are
the numbers of the instructions that they belong to. The course of the first call is then shifted, to the picosecond.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from trnlab.sim.timing import order
from trnlab.sim.timing.order import Array, Ints
from trnlab.sim.timing.plan import TimingPlan

FORGOTTEN, NOBODY = order.NEVER, order.NEVER + 1
SHORTEST = 2000  # instructions of a routine for which looking pays
MOST = 8  # situations that are kept of a routine
TIMES = ("start", "end", "begin", "done")
INDICES = ("blocker", "held")

# How the entries of the state are read: as they are; as times; as numbers of instructions, or of instructions times
# eight plus a class. The last three matter as long as the time that is `far` entries away does.
PLAIN, TIME, SPAN, INDEX, MARK = range(5)


class TimelineColumns(Protocol):
    """The columns of a timeline, see `timer.PassColumns`."""

    cause: Array

    def rows(self, first: int, last: int) -> slice:
        """Where instructions [first, last) are."""


class _Layout:
    """Where which kind of entry lies in the state of a core and its slots, as one row of numbers."""

    def __init__(self, clocks: order.Clocks, slots: int) -> None:
        kinds: list[Array] = []
        of: list[Array] = []  # the entry whose time decides, from the start of its array
        for array, kind, time in _parts(clocks):
            kinds.append(np.broadcast_to(np.array(kind, np.int8), array.shape).ravel())
            place: Array = np.arange(array.size).reshape(array.shape)
            of.append(time(place).ravel() + sum(map(len, of)))
        columns = np.array([TIME, MARK, TIME, MARK, TIME, MARK, PLAIN, PLAIN], np.int8)
        place = np.arange(slots * order.SLOT).reshape(slots, order.SLOT)
        kinds.append(np.tile(columns, slots))
        of.append((place - np.array([0, 1, 0, 1, 0, 1, 0, 0])).ravel() + sum(map(len, of)))
        kind, self.of = np.concatenate(kinds), np.concatenate(of)
        self.time, self.index, self.mark, self.plain = (kind == k for k in (TIME, INDEX, MARK, PLAIN))

    def relative(self, state: Ints, time: int, index: int) -> Ints:
        """The state with times from `time` on, and instructions counted from `index` on."""
        moved = np.where(self.time, state - time, state)
        moved = np.where(self.index, np.where(state < 0, NOBODY, state - index), moved)
        return np.where(self.mark, np.where(state < 0, NOBODY, state - 8 * index), moved)

    def absolute(self, state: Ints, time: int, index: int) -> Ints:
        """The reverse of `relative`."""
        moved = np.where(self.time, state + time, state)
        moved = np.where(self.index, np.where(state == NOBODY, -1, state + index), moved)
        return np.where(self.mark, np.where(state == NOBODY, order.DMA - 8, state + 8 * index), moved)


def _parts(c: order.Clocks) -> list[tuple[Ints, Any, Any]]:
    """The arrays of a core's state: the kinds of their entries, and for each the place of the time that decides."""
    pair = [TIME, INDEX]

    def first(place: Ints) -> Ints:
        return np.broadcast_to(place[..., :1], place.shape)

    def until(place: Ints) -> Ints:  # of (from, until, whose)
        return np.broadcast_to(place[..., 1:2], place.shape)

    def itself(place: Ints) -> Ints:
        return place

    def rows(place: Ints) -> Ints:
        return np.broadcast_to(place[:1], place.shape)

    gaps_kind = np.array([[TIME, SPAN]] * order.GAPS + [[PLAIN, PLAIN]])
    return [
        (c.engine, pair, first),
        (c.part, pair, first),
        (c.unit, [PLAIN, TIME], itself),
        (c.port, [TIME, TIME, INDEX], until),
        (c.port_count, PLAIN, itself),
        (c.issued, pair, first),
        (c.ring, TIME, itself),
        (c.lane, [[TIME], [INDEX], [PLAIN]], rows),
        (c.gap, [[TIME], [TIME], [INDEX]], lambda place: np.broadcast_to(place[:, 1:2], place.shape)),
        (c.gaps, gaps_kind, first),
    ]


class _Course(NamedTuple):
    """What a call did: its columns relative to its situation, where they name nobody, and the entries of the state
    that it changed.
    """

    columns: dict[str, Array]
    nobody: dict[str, Ints]
    changed: Ints
    left: Ints


class _Situation(NamedTuple):
    """The state before a call, how it is laid out, the time that it is relative to, and what equal ones share."""

    layout: _Layout
    state: Ints
    floor: int
    key: bytes


class TimingReplay:
    """What was seen of the routines of one program on one core."""

    def __init__(self, clocks: order.Clocks, parameters: Ints) -> None:
        self.clocks = clocks
        self.slack = int(parameters[[order.SEMAPHORE, order.INTERVAL, order.MOST_WAKE]].sum())
        self.seen: dict[int, dict[bytes, _Course]] = {}
        self.layouts: dict[int, _Layout] = {}
        self.met: dict[int, Array] = {}

    @staticmethod
    def pays(p: TimingPlan, slots: Ints, calls: int) -> bool:
        """Whether it takes less time to compare situations than to time the instructions."""
        return calls > 2 and len(p.row_of) >= max(SHORTEST, 2 * slots.size)

    def situation(self, p: TimingPlan, slots: Ints, index: int) -> _Situation:
        """The situation before a call whose first instruction is row `index` of the timeline."""
        layout = self.layouts.get(len(slots))
        if layout is None:
            layout = self.layouts[len(slots)] = _Layout(self.clocks, len(slots))
        self.clocks.settle()
        state = self._gather(slots)
        floor = int(self.clocks.engine[p.uses_engine, order.FREE].min())
        matters = layout.plain | (state[layout.of] + self.slack >= floor)
        matters[-slots.size :] &= self._met(p, len(slots))
        common = np.where(matters, layout.relative(state, floor, index), FORGOTTEN)
        common[: self.clocks.engine.size].reshape(self.clocks.engine.shape)[~p.uses_engine] = FORGOTTEN
        return _Situation(layout, state, floor, common.tobytes())

    def _met(self, p: TimingPlan, slots: int) -> Array:
        """Which entries of the slots some operand of the plan reads: a core's half leaves out those of the other."""
        if id(p) not in self.met:
            first = p.uses & order.SLOT_MASK
            last = first + (p.uses >> order.MORE_SHIFT & order.MORE_MASK)
            begun, ended = np.bincount(first, minlength=slots + 1), np.bincount(last + 1, minlength=slots + 1)
            self.met[id(p)] = np.repeat(np.cumsum(begun - ended)[:slots] > 0, order.SLOT)
        return self.met[id(p)]

    def known(self, p: TimingPlan, situation: _Situation) -> _Course | None:
        """The course of an earlier call in this situation."""
        return self.seen.setdefault(id(p), {}).get(situation.key)

    def _gather(self, slots: Ints) -> Ints:
        return np.concatenate([array.ravel() for array, _, _ in _parts(self.clocks)] + [slots.ravel()])

    def remember(self, p: TimingPlan, was: _Situation, slots: Ints, out: TimelineColumns, index: int) -> None:
        """Keep what the call did that has just been timed."""
        seen = self.seen[id(p)]
        if len(seen) == MOST:
            del seen[next(iter(seen))]
        after = self._gather(slots)
        changed = np.flatnonzero(after != was.state)
        left = was.layout.relative(after, was.floor, index)
        left = np.where(was.layout.plain, after - was.state, left)[changed]  # counters grow by as much
        here = out.rows(index, index + len(p.row_of))
        columns = {name: getattr(out, name)[here] - was.floor for name in TIMES}
        columns |= {name: getattr(out, name)[here] - np.int32(index) for name in INDICES}
        nobody = {name: np.flatnonzero(getattr(out, name)[here] < 0) for name in INDICES}
        columns["cause"] = out.cause[here].copy()
        seen[was.key] = _Course(columns, nobody, changed, left)

    def apply(self, course: _Course, now: _Situation, slots: Ints, out: TimelineColumns, index: int) -> None:
        """Write what the call does, and bring clocks and slots to where it leaves them."""
        here = out.rows(index, index + len(course.columns["cause"]))
        for name in TIMES:
            np.add(course.columns[name], now.floor, out=getattr(out, name)[here])
        for name in INDICES:
            column = getattr(out, name)[here]
            np.add(course.columns[name], np.int32(index), out=column)
            column[course.nobody[name]] = -1
        out.cause[here] = course.columns["cause"]
        left = now.state.copy()
        left[course.changed] = course.left
        absolute = np.where(now.layout.plain, now.state + left, now.layout.absolute(left, now.floor, index))
        now.state[course.changed] = absolute[course.changed]
        at = 0
        for array in [array for array, _, _ in _parts(self.clocks)] + [slots]:
            array[...] = now.state[at : at + array.size].reshape(array.shape)
            at += array.size
