# SPDX-License-Identifier: Apache-2.0
"""Calls that are timed once: a routine that is called again in the same situation takes the same course, only later.

Two situations are the same when all that can still matter is: every time that lies so far back that nothing can wait
for it any more counts as forgotten, every other one is taken relative to the earliest start of the call, and so are
the numbers of the instructions that they belong to. The course of the first call is then shifted, to the picosecond.
Collectives that are on their way matter as far as the call goes: what they leave to transfers, from when on.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from trnlab.loops import compiled
from trnlab.sim.timing import layout, order
from trnlab.sim.timing.layout import Array, Ints
from trnlab.sim.timing.plan import TimingPlan
from trnlab.sim.timing.streams import LEAST

FORGOTTEN, NOBODY = layout.NEVER, layout.NEVER + 1
NO_ROW = -(1 << 31)  # stands for NOBODY in columns
SHORTEST = 2000  # instructions of a routine for which looking pays
ALWAYS = 1 << 62  # of slack: nothing is forgotten
MOST = 8  # situations that are kept of a routine
TIMES = ("start", "end", "begin", "done")
INDICES = ("blocker", "held")

# How the entries of the state are read: as they are; as times; as numbers of instructions, or of instructions times
# eight plus a class. The last three matter as long as the time that is `far` entries away does.
PLAIN, TIME, SPAN, INDEX, MARK = range(5)


class TimelineColumns(Protocol):
    """The columns of a timeline, see `timer.PassColumns`."""

    done: Ints
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
        place = np.arange(slots * layout.SLOT).reshape(slots, layout.SLOT)
        kinds.append(np.tile(columns, slots))
        of.append((place - np.array([0, 1, 0, 1, 0, 1, 0, 0])).ravel() + sum(map(len, of)))
        self.kind, self.of = np.concatenate(kinds), np.concatenate(of)


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

    gaps_kind = np.array([[TIME, SPAN]] * layout.GAPS + [[PLAIN, PLAIN]])
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
    """What a call did: its columns relative to its situation, and the entries of the state that it changed.

    key, cut: of its situation, `cut` as far as it mattered: up to the relative time `until`.
    """

    key: bytes
    until: int
    cut: bytes
    columns: tuple[Array, ...]  # TIMES, INDICES, the cause
    changed: Ints
    left: Ints


class _Situation(NamedTuple):
    """The state before a call, how it is laid out, the time that it is relative to, and what equal ones share."""

    layout: _Layout
    state: Ints
    floor: int
    key: bytes
    cut: Ints  # what collectives leave to transfers from `floor` on: as `Clocks.cut`, with relative times

    def cut_until(self, time: int) -> bytes:
        """The same as far as a relative time."""
        return self.cut[: np.searchsorted(self.cut[:, 0], time)].tobytes()


class TimingReplay:
    """What was seen of the routines of one program on one core."""

    def __init__(self, clocks: order.Clocks, parameters: Ints) -> None:
        self.clocks = clocks
        self.slack = int(parameters[[layout.SEMAPHORE, layout.INTERVAL, layout.MOST_WAKE]].sum())
        self.seen: dict[int, list[_Course]] = {}
        self.layouts: dict[int, _Layout] = {}
        self.met: dict[int, Array] = {}

    @staticmethod
    def pays(p: TimingPlan, slots: Ints, calls: int) -> bool:
        """Whether it takes less time to compare situations than to time the instructions."""
        return calls > 2 and len(p.row_of) >= max(SHORTEST, slots.size // 4)

    def situation(self, p: TimingPlan, slots: Ints, index: int) -> _Situation:
        """The situation before a call whose first instruction is row `index` of the timeline."""
        known = self.layouts.get(len(slots))
        if known is None:
            known = self.layouts[len(slots)] = _Layout(self.clocks, len(slots))
        self.clocks.settle()
        state = self._gather(slots)
        floor = int(self.clocks.engine[p.uses_engine, layout.FREE].min())
        common = np.empty_like(state)
        _relative(state, known.kind, known.of, self._met(p, slots), floor, index, self.slack, common)
        return _Situation(known, state, floor, common.tobytes(), self._cut(floor))

    def _cut(self, floor: int) -> Ints:
        """What collectives leave to transfers from a time on, with times relative to that."""
        rows = self.clocks.cut
        if not len(rows):
            return np.array([[0, layout.WHOLE]])
        found: Ints = rows[max(int(np.searchsorted(rows[:, 0], floor, "right")) - 1, 0) :].copy()
        found[:, 0] = np.maximum(found[:, 0] - floor, 0)
        return found

    def _met(self, p: TimingPlan, slots: Ints) -> Array:
        """Which entries of the state can matter to the plan: those of engines that it uses, and of slots that some
        operand reads (a core's half leaves out those of the other)."""
        if id(p) not in self.met:
            first = p.uses & layout.SLOT_MASK
            last = first + (p.uses >> layout.MORE_SHIFT & layout.MORE_MASK)
            begun, ended = (np.bincount(at, minlength=len(slots) + 1) for at in (first, last + 1))
            read = np.repeat(np.cumsum(begun - ended)[: len(slots)] > 0, layout.SLOT)
            used = np.repeat(p.uses_engine, self.clocks.engine.shape[1])
            rest = np.ones(sum(array.size for array, _, _ in _parts(self.clocks)) - len(used), np.bool_)
            self.met[id(p)] = np.concatenate([used, rest, read])
        return self.met[id(p)]

    def known(self, p: TimingPlan, now: _Situation) -> _Course | None:
        """The course of an earlier call in this situation."""
        seen = self.seen.setdefault(id(p), [])
        return next((c for c in seen if c.key == now.key and c.cut == now.cut_until(c.until)), None)

    def _gather(self, slots: Ints) -> Ints:
        return np.concatenate([array.ravel() for array, _, _ in _parts(self.clocks)] + [slots.ravel()])

    def remember(self, p: TimingPlan, was: _Situation, slots: Ints, out: TimelineColumns, index: int) -> None:
        """Keep what the call did that has just been timed."""
        seen = self.seen[id(p)]
        if len(seen) == MOST:
            del seen[0]
        after = self._gather(slots)
        changed = np.flatnonzero(after != was.state)
        left = np.empty_like(after)
        everything = np.ones(len(after), np.bool_)
        _relative(after, was.layout.kind, was.layout.of, everything, was.floor, index, ALWAYS, left)
        left = np.where(was.layout.kind == PLAIN, after - was.state, left)[changed]  # counters grow by as much
        here = out.rows(index, index + len(p.row_of))
        times = [getattr(out, name)[here] - was.floor for name in TIMES]
        named = [getattr(out, name)[here] for name in INDICES]
        indices = [np.where(rows < 0, np.int32(NO_ROW), rows - np.int32(index)) for rows in named]
        until = int(max(out.done[here].max(), self.clocks.lane[layout.FREE].max())) - was.floor + _longest(p)
        columns = (*times, *indices, out.cause[here].copy())
        seen.append(_Course(was.key, until, was.cut_until(until), columns, changed, left))

    def apply(self, course: _Course, now: _Situation, slots: Ints, out: TimelineColumns, index: int) -> None:
        """Write what the call does, and bring clocks and slots to where it leaves them."""
        here = out.rows(index, index + len(course.columns[0]))
        columns = (getattr(out, name)[here] for name in (*TIMES, *INDICES, "cause"))
        _write(*course.columns, now.floor, index, *columns)
        _leave(course.changed, course.left, now.layout.kind, now.floor, index, now.state)
        at = 0
        for array in [array for array, _, _ in _parts(self.clocks)] + [slots]:
            array[...] = now.state[at : at + array.size].reshape(array.shape)
            at += array.size


def _longest(p: TimingPlan) -> int:
    """Picoseconds that a transfer takes at most beside collectives: one that fills a gap was looked at as if it came
    behind all that is on its lanes."""
    return int(p.rows[:, layout.SHARE].max() / LEAST)


@compiled
def _relative(state: Ints, kind: Array, of: Ints, met: Array, time: int, index: int, slack: int, found: Ints) -> None:
    """The state with times from `time` on, and instructions counted from `index` on; FORGOTTEN what is not met, or
    lies more than `slack` before."""
    for i in range(state.shape[0]):
        value = state[i]
        if not met[i] or (kind[i] != PLAIN and state[of[i]] + slack < time):
            value = np.int64(FORGOTTEN)
        elif kind[i] == TIME:
            value -= time
        elif kind[i] == INDEX:
            value = np.int64(NOBODY) if value < 0 else value - index
        elif kind[i] == MARK:
            value = np.int64(NOBODY) if value < 0 else value - 8 * index
        found[i] = value


@compiled
def _leave(changed: Ints, left: Ints, kind: Array, time: int, index: int, state: Ints) -> None:
    """The reverse, of entries that a call changed. left: what they are then, of counters by how much they grow."""
    for k in range(changed.shape[0]):
        i, value = changed[k], left[k]
        if kind[i] == PLAIN:
            value += state[i]
        elif kind[i] == TIME:
            value += time
        elif kind[i] == INDEX:
            value = np.int64(-1) if value == NOBODY else value + index
        elif kind[i] == MARK:
            value = np.int64(layout.DMA - 8) if value == NOBODY else value + 8 * index
        state[i] = value


@compiled(nogil=True)
def _write(
    start: Ints,
    end: Ints,
    begin: Ints,
    done: Ints,
    blocker: Array,
    held: Array,
    cause: Array,
    time: int,
    index: int,
    start_out: Ints,
    end_out: Ints,
    begin_out: Ints,
    done_out: Ints,
    blocker_out: Array,
    held_out: Array,
    cause_out: Array,
) -> None:
    """Columns of a course, moved to a time and behind so many instructions."""
    row = np.int32(index)
    for i in range(start.shape[0]):
        start_out[i], end_out[i] = start[i] + time, end[i] + time
        begin_out[i], done_out[i] = begin[i] + time, done[i] + time
        blocker_out[i] = np.int32(-1) if blocker[i] == NO_ROW else np.int32(blocker[i] + row)
        held_out[i] = np.int32(-1) if held[i] == NO_ROW else np.int32(held[i] + row)
        cause_out[i] = cause[i]
