# SPDX-License-Identifier: Apache-2.0
"""A step laid out for drawing: which bars lie in which row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.loops import compiled
from trnlab.profile.critical import Pieces
from trnlab.profile.data import Ints
from trnlab.timeline import ENGINES, Timeline

MOST_ROWS = 48  # of one queue, or of calls that overlap
QUEUES = 64  # more than an engine has


@dataclass(frozen=True)
class LaneRow:
    """Bars that do not overlap, in order of time. `refs` are calls in the lane "calls", else instructions."""

    lane: str  # "calls", "critical", an engine, or "dma"
    name: str
    start: Ints
    end: Ints
    refs: Ints
    kinds: Ints | None = None  # of the bars in the lane "critical", as in `Pieces`


def rows(timeline: Timeline, chain: Pieces) -> list[LaneRow]:
    """All rows from top to bottom."""
    return [*_calls(timeline), _critical(chain), *_engines(timeline), *_queues(timeline)]


def _calls(t: Timeline) -> Iterator[LaneRow]:
    """From the first start to the last result of each call; calls overlap, so they take several rows."""
    filled = [i for i, call in enumerate(t.calls) if call.count]
    spans = [(t.calls[i].first, t.calls[i].first + t.calls[i].count) for i in filled]
    start = np.array([t.start[a:b].min() for a, b in spans], np.int64)
    end = np.array([t.done[a:b].max() for a, b in spans], np.int64)
    for mine in _stack(start, end):
        yield LaneRow("calls", "calls", start[mine], end[mine], np.array(filled, np.int64)[mine])


def _critical(chain: Pieces) -> LaneRow:
    return LaneRow("critical", "critical path", chain.since, chain.until, chain.instruction, chain.kind)


def _engines(t: Timeline) -> Iterator[LaneRow]:
    """While the engine is occupied; instructions that take no time are left out."""
    engine = engine_codes(t)
    for code in range(t.cores * len(ENGINES)):
        mine = np.flatnonzero((engine == code) & (t.end > t.start))
        if ENGINES[code % len(ENGINES)] == "cc" and not len(mine):
            continue
        mine = mine[np.argsort(t.start[mine], kind="stable")]
        streams = ENGINES[code % len(ENGINES)] == "cc"  # whose collectives overlap
        for here in _stack(t.start[mine], t.end[mine]) if streams else [np.arange(len(mine))]:
            of = mine[here]
            yield LaneRow(ENGINES[code % len(ENGINES)], engine_name(code, t.cores), t.start[of], t.end[of], of)


def _queues(t: Timeline) -> Iterator[LaneRow]:
    """While bytes flow, by DMA queue."""
    queue = np.array([op.queue if op.lanes else -1 for op in t.ops], np.int64)[t.op]
    moving = np.flatnonzero(queue >= 0)
    ring = engine_codes(t)[moving] * QUEUES + queue[moving]
    for number in np.unique(ring).tolist():
        here = moving[ring == number]
        start, end = t.begin[here], t.done[here] - t.completion
        for mine in _stack(start, end):
            yield LaneRow("dma", queue_name(number, t.cores), start[mine], end[mine], here[mine])


def engine_codes(t: Timeline) -> Ints:
    """The engine of each instruction, counted over all cores."""
    engine = t.engine.astype(np.int64)
    return engine if t.cores == 1 else engine + len(ENGINES) * t.core_of()


def engine_name(code: int, cores: int) -> str:
    """An engine, and where there are several, its core."""
    core, engine = divmod(code, len(ENGINES))
    return ENGINES[engine] if cores == 1 else f"{ENGINES[engine]} {core}"


def queue_name(number: int, cores: int) -> str:
    """A DMA queue, called after the engine that triggers its transfers; `number` is engine code * QUEUES + queue."""
    engine, queue = divmod(number, QUEUES)
    return f"{engine_name(engine, cores)} q{queue}"


def _stack(start: Ints, end: Ints) -> list[Ints]:
    """Intervals in as few rows as hold them without overlap, each row in order of time.

    Of more than MOST_ROWS at a time, the last row takes the rest one after the other as if they followed each other.
    """
    order = np.argsort(start, kind="stable")
    row, count = _rows_of(start[order], end[order], MOST_ROWS)
    return [order[row == number] for number in range(count)]


@compiled
def _rows_of(start: Any, end: Any, most: int) -> Any:
    """The row of each interval, the first one that is free; in order of start."""
    free = np.full(most, np.int64(-1))
    row, count = np.empty(len(start), np.int64), 0
    for i in range(len(start)):
        chosen = most - 1
        for r in range(most):
            if free[r] <= start[i]:
                chosen = r
                break
        row[i] = chosen
        free[chosen] = max(free[chosen], end[i])
        count = max(count, chosen + 1)
    return row, count
