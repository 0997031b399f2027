# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step went, by cause: along its critical path, and engine by engine.

Both tables are whole: their picoseconds add up to the length of the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trnlab.profile.critical import LATENCY, Pieces
from trnlab.profile.data import Ints, Step
from trnlab.profile.lanes import QUEUES, engine_codes, engine_name, queue_name
from trnlab.timeline import CAUSES, ENGINES, Timeline

WORK, FIRST_BYTE, SEMAPHORE = "work", "first byte", "semaphore"
PARTS = (WORK, FIRST_BYTE, SEMAPHORE)
ENDS = "start and end"
QUEUE = "queue"  # cause of a transfer that waited for another on its queue or DMA engines


@dataclass(frozen=True, slots=True)
class Loss:
    """Picoseconds of the critical path spent waiting for an engine or a DMA queue."""

    waiting_for: str
    # for what of it, one of PARTS: its work, the way of a transfer to its first byte, or the way from a result to
    # whoever waits for it
    part: str
    cause: str  # why the next instruction of the chain waited, one of `timeline.CAUSES` or QUEUE; "" for the last one
    buffer: str  # the tensor that it waited for, "" for none
    time: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Picoseconds in which an engine was idle: the engine or queue that it waited for, why, and for which tensor."""

    waiting_for: str
    cause: str
    buffer: str
    time: int


@dataclass(frozen=True, slots=True)
class EngineTime:
    """The whole step of one engine, in picoseconds: busy + waits + ends."""

    busy: int
    waits: tuple[Wait, ...]
    ends: int


@dataclass(frozen=True, slots=True)
class SourceLineCost:
    """What a source line cost: picoseconds on the critical path, and of engines and transfers, which overlap."""

    source: int
    instructions: int
    critical: int
    busy: int


def lost(step: Step, chain: Pieces) -> list[Loss]:
    """The critical path by cause, the largest first; with the start and end of the program it is the whole step."""
    t, path = step.timeline, step.critical
    following = np.append(path[1:], -1)[chain.place] if len(path) else chain.place
    whom, names = workers(t)
    worked = chain.kind != LATENCY
    before = np.append(~worked[:-1] & worked[1:] & (chain.instruction[:-1] == chain.instruction[1:]), False)
    part = np.where(worked, 0, np.where(before[: len(worked)], 1, 2))
    cause, buffer = _why(step, following, chain.instruction)
    keys = np.stack([whom[chain.instruction], part, cause, buffer])
    causes = ("", *CAUSES, QUEUE)
    found = [
        Loss(names[w], PARTS[p], causes[c], step.buffers[b] if b >= 0 else "", time)
        for (w, p, c, b), time in _sums(keys, chain.until - chain.since)
    ]
    found.append(Loss(ENDS, WORK, "", "", t.total - sum(loss.time for loss in found)))
    return sorted(found, key=lambda loss: -loss.time)


def by_engine(step: Step) -> dict[str, EngineTime]:
    """What each engine did with the step: worked, or waited for what."""
    t = step.timeline
    whom, names = workers(t)
    found = {}
    codes = engine_codes(t)
    for code in np.unique(codes).tolist():
        engine, mine = engine_name(code, t.cores), np.flatnonzero(codes == code)
        mine = mine[np.argsort(t.start[mine], kind="stable")]
        gaps = t.start[mine] - np.append(0, t.end[mine][:-1])
        waited = mine[1:][gaps[1:] > 0]
        by = np.where(t.blocker[waited] >= 0, whom[t.blocker[waited]], -1)
        keys = np.stack([by, t.cause[waited], np.where(by >= 0, step.buffer[waited], -1)])
        waits = [
            Wait(names[w] if w >= 0 else engine, CAUSES[c], step.buffers[b] if b >= 0 else "", time)
            for (w, c, b), time in _sums(keys, gaps[1:][gaps[1:] > 0])
        ]
        busy, idle = int((t.end[mine] - t.start[mine]).sum()), sum(wait.time for wait in waits)
        found[engine] = EngineTime(busy, tuple(sorted(waits, key=lambda w: -w.time)), t.total - busy - idle)
    return found


def lines(step: Step, chain: Pieces) -> list[SourceLineCost]:
    """Source lines, those with most of the critical path first."""
    t, count = step.timeline, len(step.sources)
    critical = _exact(step.source[chain.instruction], chain.until - chain.since, count)
    lanes = np.array([op.lanes > 0 for op in t.ops], np.bool_)
    moving = lanes[t.op] if len(t) else np.zeros(0, np.bool_)
    busy = _exact(step.source, np.where(moving, t.done - t.completion - t.begin, t.end - t.start), count)
    number = np.bincount(step.source, minlength=count)
    order = np.lexsort((-busy, -critical))
    rows = [SourceLineCost(i, int(number[i]), int(critical[i]), int(busy[i])) for i in order.tolist()]
    return [line for line in rows if line.instructions]


def workers(t: Timeline) -> tuple[Ints, tuple[str, ...]]:
    """Who does the work of each instruction: an engine or a DMA queue, as an index of the names."""
    queue = np.array([op.queue if op.lanes else -1 for op in t.ops], np.int64)
    mine = queue[t.op] if len(t) else np.zeros(0, np.int64)
    engine, engines = engine_codes(t), t.cores * len(ENGINES)
    used, index = np.unique(np.where(mine < 0, engine, engines + engine * QUEUES + mine), return_inverse=True)
    names = [
        engine_name(code, t.cores) if code < engines else queue_name(code - engines, t.cores)
        for code in used.tolist()
    ]
    return index, tuple(names)


def _why(step: Step, following: Ints, instruction: Ints) -> tuple[Ints, Ints]:
    """For each piece the cause of the next instruction, as 1 + its number, and the buffer that this waited for."""
    t, none = step.timeline, following < 0
    at = np.where(none, 0, following)
    if not len(t):
        return at, at
    queued = (t.held[at] == instruction) & (t.blocker[at] != instruction)
    cause = np.where(none, 0, np.where(queued, len(CAUSES) + 1, t.cause[at] + 1))
    return cause, np.where(none | queued, -1, step.buffer[at])


def _sums(keys: Ints, times: Ints) -> Iterable[tuple[list[int], int]]:
    """The sum of the times for each distinct column of `keys`."""
    if not keys.shape[1]:
        return []
    distinct, place = np.unique(keys, axis=1, return_inverse=True)
    return zip(distinct.T.tolist(), _exact(place.reshape(-1), times, distinct.shape[1]).tolist())


def _exact(place: Ints, times: Ints, count: int) -> Ints:
    """Sums of integers by place; exact below 2**53 ps, which is two and a half hours."""
    return np.bincount(place, times, count).astype(np.int64)
