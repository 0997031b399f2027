# SPDX-License-Identifier: Apache-2.0
"""What a timeline says: how busy each engine is, what moved, what the run is bound by, where its time was lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnlab.loops import compiled
from trnlab.timeline import DMA_ENGINES, ENGINES, Column, Timeline, held_back_by

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class EngineUse:
    """Times in picoseconds. busy: the engine could not take another instruction. active: some instruction was
    between its start and its result (what the vendor's profiler calls active). share: busy as part of the run.
    """

    name: str
    instructions: int
    busy: int
    active: int
    share: float


@dataclass(frozen=True, slots=True)
class CallUse:
    """Time of all calls with one label: from the first start to the last result of each call, summed."""

    label: str
    calls: int
    instructions: int
    time: int
    flops: int


@dataclass(frozen=True)
class Summary:
    """Times in picoseconds, sizes in bytes. `engines` ends with "dma": busy is the mean over the DMA engines, active
    the time in which at least one of them moved data.

    pe_flops: of matmuls on the PE array, by format. critical: where the time of the longest chain of dependencies
    went, see `critical_time`.
    """

    total: int
    instructions: int
    engines: tuple[EngineUse, ...]
    hbm_read: int
    hbm_write: int
    pe_flops: dict[str, int]
    other_flops: int
    bound_by: str
    critical: dict[str, int]
    calls: tuple[CallUse, ...]

    def engine(self, name: str) -> EngineUse:
        """One engine's use."""
        return next(use for use in self.engines if use.name == name)


def summarise(timeline: Timeline) -> Summary:
    """The summary of a timeline."""
    t = timeline
    counts = np.bincount(t.op, minlength=len(t.ops))
    flops: dict[str, int] = {}
    other = read = write = 0
    for op, count in zip(t.ops, counts):
        if op.kind == "pe.matmul":
            flops[op.dtype] = flops.get(op.dtype, 0) + op.flops * int(count)
        else:
            other += op.flops * int(count)
        read, write = read + op.hbm_read * int(count), write + op.hbm_write * int(count)
    engines = engine_use(t)
    return Summary(
        total=t.total,
        instructions=len(t),
        engines=engines,
        hbm_read=read,
        hbm_write=write,
        pe_flops=flops,
        other_flops=other,
        bound_by=max(engines, key=lambda use: use.busy).name if len(t) else "nothing",
        critical=critical_time(t),
        calls=call_use(t),
    )


def engine_use(timeline: Timeline) -> tuple[EngineUse, ...]:
    """How much of the run each engine worked, and the DMA engines together; of several cores, their mean."""
    if timeline.cores > 1:
        return _mean([engine_use(_of_core(timeline, core)) for core in range(timeline.cores)])
    t = timeline
    lanes = np.array([op.lanes for op in t.ops], np.int64)
    is_dma = lanes[t.op] > 0 if len(t) else np.zeros(0, np.bool_)
    uses = []
    for code, name in enumerate(ENGINES):
        mine = t.engine == code
        if name == "cc" and not mine.any():
            continue  # nothing is said of others where there are none
        busy = int((t.end[mine] - t.start[mine]).sum())
        finish = np.where(is_dma[mine], t.issued()[mine], t.done[mine])
        uses.append(_use(name, int(mine.sum()), busy, _union(t.start[mine], finish), t.total))
    moving = _union(t.begin[is_dma], t.done[is_dma] - t.completion)
    per_op = np.array([op.lanes * op.lane_time for op in t.ops], np.int64)
    busy = int((per_op * np.bincount(t.op, minlength=len(t.ops))).sum()) // DMA_ENGINES
    uses.append(_use("dma", int(is_dma.sum()), busy, moving, t.total))
    return tuple(uses)


def _of_core(t: Timeline, core: int) -> Timeline:
    """What one core did."""
    mine = t.core_of() == core
    columns = {name: column[mine] for name, column in t.columns().items() if name != "call"}
    return replace(t, calls=(), call=np.zeros(int(mine.sum()), np.int32), **columns)


def _mean(uses: list[tuple[EngineUse, ...]]) -> tuple[EngineUse, ...]:
    """The use of the same engines of several cores, in the mean; instructions are added."""
    n = len(uses)
    return tuple(
        EngineUse(
            one[0].name,
            sum(u.instructions for u in one),
            sum(u.busy for u in one) // n,
            sum(u.active for u in one) // n,
            sum(u.share for u in one) / n,
        )
        for one in zip(*uses)
    )


def _use(name: str, count: int, busy: int, active: int, total: int) -> EngineUse:
    return EngineUse(name, count, busy, active, busy / total if total else 0.0)


def call_use(timeline: Timeline) -> tuple[CallUse, ...]:
    """Time by label of the calls, longest first."""
    t = timeline
    flops = np.array([op.flops for op in t.ops], np.int64)
    found: dict[str, list[int]] = {}
    for call in t.calls:
        here = slice(call.first, call.first + call.count)
        if not call.count:
            continue
        entry = found.setdefault(call.label, [0, 0, 0, 0])
        entry[0] += 1
        entry[1] += call.count
        entry[2] += int(t.done[here].max() - t.start[here].min())
        entry[3] += int(flops[t.op[here]].sum())
    uses = [CallUse(label, *values) for label, values in found.items()]
    return tuple(sorted(uses, key=lambda use: -use.time))


def critical_time(timeline: Timeline) -> dict[str, int]:
    """Where the time of the longest chain of dependencies went; the values add up to the total.

    By engine, "dma" for the moving of data, "latency" for what is neither (semaphores, the way from a DMA trigger to
    the first byte and from the last byte to its semaphore), and "start and end" of the program.
    """
    t = timeline
    spent = np.zeros(len(ENGINES) + 2, np.int64)
    if len(t):
        last = int(t.done.argmax())
        is_dma = np.array([op.lanes > 0 for op in t.ops])[t.op]
        _walk(
            last, t.start, t.end, t.begin, t.done, t.blocker, t.cause, t.held, t.engine, is_dma, t.completion, spent
        )
    result = dict(zip((*ENGINES, "dma", "latency"), spent.tolist()))
    if not (t.engine == ENGINES.index("cc")).any():
        del result["cc"]
    result["start and end"] = t.total - sum(result.values())
    return result


def critical_path(timeline: Timeline) -> Ints:
    """The instructions of the longest chain of dependencies, first to last: each was held back by the one before."""
    t = timeline
    if not len(t):
        return np.empty(0, np.int64)
    found = np.empty(len(t), np.int64)
    count = _path(int(t.done.argmax()), t.blocker, t.cause, t.held, t.begin, found)
    return found[:count][::-1].copy()


def _union(start: Column, end: Column) -> int:
    """Length of the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(start[1:] - reach[:-1], 0).sum()
    return int(reach[-1] - start[0] - gaps)


@compiled
def _path(last: int, blocker: Any, cause: Any, held: Any, begin: Any, found: Ints) -> int:
    """From `last` back through what held each back, into `found`; returns how many."""
    count, i, by_issue = 0, last, False
    while i >= 0:
        found[count] = i
        count += 1
        i, by_issue, _ = held_back_by(i, by_issue, blocker, cause, held, begin)
    return count


@compiled
def _walk(
    last: int,
    start: Ints,
    end: Ints,
    begin: Ints,
    done: Ints,
    blocker: Any,
    cause: Any,
    held: Any,
    engine: Any,
    is_dma: Any,
    completion: int,
    spent: Ints,
) -> None:
    """Add up the critical path in `spent`: by engine, then DMA, then latency."""
    dma, latency = len(spent) - 2, len(spent) - 1
    i, by_issue, until = last, False, done[last]
    while i >= 0:
        before, next_by_issue, of_transfer = held_back_by(i, by_issue, blocker, cause, held, begin)
        since = begin[i] if of_transfer else start[i]
        if by_issue or not is_dma[i]:
            worked = min(until, end[i] if by_issue else done[i])
            spent[engine[i]] += worked - since
        else:
            worked = min(until, done[i] - completion)
            spent[dma] += worked - begin[i]
            spent[latency] += begin[i] - since
        spent[latency] += until - worked
        i, by_issue, until = before, next_by_issue, since
