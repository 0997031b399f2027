# SPDX-License-Identifier: Apache-2.0
"""What a report of a step asks of its times, for a small part of the memory that all of its instructions take.

A step of a large model has a hundred million instructions, and a timeline keeps fifty bytes of each. An estimate
needs to know when calls end, from when to when some engine computes, and when collectives are under way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine
from trnlab.loops import compiled
from trnlab.policy import Policy, chosen
from trnlab.program.communication import collective_of
from trnlab.program.routine import Program
from trnlab.sim.timing.core import Core, PassColumns, to_ps
from trnlab.sim.timing.layout import ENGINES
from trnlab.sim.timing.logical_core import calls_on_both, two_cores
from trnlab.sim.timing.plan import TimingPlan
from trnlab.sim.timing.schedule import planned
from trnlab.sim.timing.streams import CollectiveStreams
from trnlab.sim.timing.timer import calls_in_order, phase_of, plans_of
from trnlab.timeline import Timeline

Ints = np.ndarray[Any, np.dtype[np.int64]]
Array = np.ndarray[Any, Any]
MOST = 32  # outlines that are kept
# What of a program decides its times, beside the plans of its routines. Those of an outline that is kept may be gone,
# and their numbers be others'.
_DECISIVE = [f.name for f in fields(Program) if f.name not in ("name", "routines", "inputs", "outputs", "constants")]
_LATEST: dict[Any, tuple[tuple[weakref.ref[TimingPlan], ...], Outline]] = {}
_KEEPING = threading.Lock()
_COMPUTE = (Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)


@dataclass
class Outline:
    """Picoseconds of a run of a program. It is shared, and never changes once it is there.

    total: of the whole run. starts, ends: when the first instruction of each call starts, and when its last result is
    there; 0 of a call that has none. computing: from when to when some
    engine computes (tensor, vector, scalar, gpsimd), [n, 2], in order and apart. collectives: by number of the call,
    from when to when each is under way.
    """

    total: int = 0
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    computing: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    collectives: dict[int, tuple[int, int]] = field(default_factory=dict)


def outline_program(program: Program, chip: Chip, *, policy: Policy | None = None, cores: int = 1) -> Outline:
    """The outline of the timeline that `time_program` gives, or `time_pair` for two cores, from the same pass, a call
    at a time. Of a program with the plans and the calls of one that was asked for lately, it is that one's: two
    stacks may make the same of a step, and try the same remedies."""
    policy = policy or chosen(chip.name)
    plans = [planned(routine, chip, policy) for routine in program.routines]
    key = (*(getattr(program, name) for name in _DECISIVE), tuple(map(id, plans)), chip, policy, cores)
    with _KEEPING:
        kept, found = _LATEST.get(key, ((), None))
    if found is None or any(ref() is not p for ref, p in zip(kept, plans)):
        found = _outline(program, chip, policy, cores)
        with _KEEPING:
            _LATEST.pop(key, None)
            if len(_LATEST) == MOST:
                del _LATEST[next(iter(_LATEST))]
            _LATEST[key] = tuple(map(weakref.ref, plans)), found
    return found


def _outline(program: Program, chip: Chip, policy: Policy, cores: int) -> Outline:
    plans = plans_of(program, chip, policy)
    at_once = (sum(len(program.routines[call.routine]) for call in calls) for calls in program.together())
    out = PassColumns(max(at_once, default=0))
    if cores == 1:
        phase = phase_of(policy, chip, program.routines)
        core, *others = (Core(chip, window_phase=phase) for _ in program.places)
        core.streams = CollectiveStreams(program.streams, core.startup, competes=True)
        calls = calls_in_order(program, chip, [core, *others], plans, out, whole=False)
    else:
        core, *others = two_cores(program, chip)
        calls = calls_on_both(program, chip, [core, *others], plans, out, whole=False)
    return _outlined(program, chip, plans, calls, Outline(core.startup), out)


def _outlined(
    program: Program, chip: Chip, plans: Sequence[TimingPlan], calls: Iterator[int], found: Outline, out: PassColumns
) -> Outline:
    """Fill an outline while the pass goes from call to call."""
    computing, spans = [_computing(p) for p in plans], []
    for number, first in enumerate(calls):
        routine = program.calls[number].routine
        rows = out.rows(first, first + len(program.routines[routine]))
        end = int(out.done[rows].max()) if rows.stop > rows.start else 0
        found.starts.append(int(out.start[rows].min()) if rows.stop > rows.start else 0)
        found.ends.append(end)
        found.total = max(found.total, end)
        spans.append(_spans_of_call(computing[routine], out.start[rows], out.end[rows]))
        if collective_of(program.routines[routine]) is not None:
            found.collectives[number] = under_way(out, rows)
    found.total += to_ps(chip.sync.program_end.value)
    found.computing = _joined(spans)
    return found


def outline_of(timeline: Timeline, program: Program) -> Outline:
    """The outline of a timeline that is there."""
    found = Outline(timeline.total)
    for number, (place, call) in enumerate(zip(timeline.calls, program.calls)):
        rows = slice(place.first, place.first + place.count)
        found.starts.append(int(timeline.start[rows].min()) if place.count else 0)
        found.ends.append(int(timeline.done[rows].max()) if place.count else 0)
        if collective_of(program.routines[call.routine]) is not None:
            found.collectives[number] = under_way(timeline, rows)
    found.computing = computing_spans(timeline)
    return found


def computing_spans(t: Timeline) -> Ints:
    """From when to when some engine computes, [n, 2], in order and apart."""
    mine = np.isin(t.engine, _COMPUTE) & np.array([op.lanes == 0 for op in t.ops], np.bool_)[t.op]
    return spans_of(t.start[mine], t.end[mine])


def spans_of(start: Ints, end: Ints) -> Ints:
    """The union of intervals as intervals, [n, 2], in order and apart."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > end[:-1]) if len(order) else np.zeros(0, np.bool_)
    last = np.append(first[1:], True) if len(order) else first
    return np.stack([start[first], end[last]], axis=1)


def under_way(columns: PassColumns | Timeline, rows: slice) -> tuple[int, int]:
    """From when to when a collective is; its tensors, of which each has a row, follow each other on the stream."""
    start, end = int(columns.start[rows][-1]), int(columns.done[rows].max())
    return start - int((columns.end[rows] - columns.start[rows])[:-1].sum()), end


def _computing(p: TimingPlan) -> Array:
    """The engine of each instruction of a plan that occupies one that computes, and starts no transfer; else -1."""
    mine = np.isin(p.engine, _COMPUTE) & np.array([op.lanes == 0 for op in p.ops], np.bool_)[p.row_of]
    return np.where(mine, p.engine, np.int8(-1))


def _spans_of_call(engine: Array, start: Ints, end: Ints) -> Ints:
    """From when to when some engine computes in a call, [n, 2], in order and apart. engine: see `_computing`."""
    found = np.empty((len(engine), 2), np.int64)
    count = _extended(engine, start, end, found)
    return spans_of(found[:count, 0], found[:count, 1])


@compiled
def _extended(engine: Array, start: Ints, end: Ints, found: Ints) -> int:
    """Spans of each engine, one for instructions that follow each other without a gap: most do, and fewer spans are
    sorted faster. Returns how many there are."""
    count, span = 0, np.full(ENGINES, -1, np.int64)
    for i in range(len(engine)):
        e = engine[i]
        if e < 0:
            continue
        at = span[e]
        if at >= 0 and found[at, 0] <= start[i] <= found[at, 1]:
            found[at, 1] = max(found[at, 1], end[i])
        else:
            span[e] = count
            found[count, 0], found[count, 1] = start[i], end[i]
            count += 1
    return count


def _joined(spans: Sequence[Ints]) -> Ints:
    every = np.concatenate(spans) if spans else np.zeros((0, 2), np.int64)
    return spans_of(every[:, 0], every[:, 1])
