# SPDX-License-Identifier: Apache-2.0
"""A step laid out for drawing: which bars lie in which row."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trnlab.profile.critical import Pieces
from trnlab.profile.data import Ints
from trnlab.timeline import ENGINES, Timeline


@dataclass(frozen=True)
class Row:
    """Bars that do not overlap, in order of time. `refs` are calls in the lane "calls", else instructions.

    lane: "calls", "critical", an engine, or "dma". kinds: of the bars in the lane "critical", as in `Pieces`.
    """

    lane: str
    name: str
    start: Ints
    end: Ints
    refs: Ints
    kinds: Ints | None = None


def rows(timeline: Timeline, chain: Pieces) -> list[Row]:
    """All rows from top to bottom."""
    return [*_calls(timeline), _critical(chain), *_engines(timeline), *_queues(timeline)]


def _calls(t: Timeline) -> Iterator[Row]:
    """From the first start to the last result of each call; calls overlap, so they take several rows."""
    filled = [i for i, call in enumerate(t.calls) if call.count]
    spans = [(t.calls[i].first, t.calls[i].first + t.calls[i].count) for i in filled]
    start = np.array([t.start[a:b].min() for a, b in spans], np.int64)
    end = np.array([t.done[a:b].max() for a, b in spans], np.int64)
    for mine in _stack(start, end):
        yield Row("calls", "calls", start[mine], end[mine], np.array(filled, np.int64)[mine])


def _critical(chain: Pieces) -> Row:
    return Row("critical", "critical path", chain.since, chain.until, chain.instruction, chain.kind)


def _engines(t: Timeline) -> Iterator[Row]:
    """While the engine is occupied; instructions that take no time are left out."""
    for code, name in enumerate(ENGINES):
        mine = np.flatnonzero((t.engine == code) & (t.end > t.start))
        mine = mine[np.argsort(t.start[mine], kind="stable")]
        yield Row(name, name, t.start[mine], t.end[mine], mine)


def _queues(t: Timeline) -> Iterator[Row]:
    """While bytes flow, by queue of the DMA engines."""
    queue = np.array([op.queue if op.lanes else -1 for op in t.ops], np.int64)[t.op]
    for number in np.unique(queue[queue >= 0]).tolist():
        here = np.flatnonzero(queue == number)
        start, end = t.begin[here], t.done[here] - t.completion
        for mine in _stack(start, end):
            yield Row("dma", f"queue {number}", start[mine], end[mine], here[mine])


def _stack(start: Ints, end: Ints) -> list[Ints]:
    """Intervals in as few rows as hold them without overlap, each row in order of time."""
    free: list[tuple[int, int]] = []
    found: list[list[int]] = []
    for i in np.argsort(start, kind="stable").tolist():
        if free and free[0][0] <= start[i]:
            _, row = heapq.heappop(free)
        else:
            row = len(found)
            found.append([])
        found[row].append(i)
        heapq.heappush(free, (int(end[i]), row))
    return [np.array(row, np.int64) for row in found]
