# SPDX-License-Identifier: Apache-2.0
"""The functional reading of a schedule: it moves and reduces arrays in the schedule's order.

Reductions are made in float32 and rounded to the buffer's format wherever a sum is written (assumed: the DMA engines
write partial sums to memory in the buffer's format; nothing is published about wider ones). Integers wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trnlab.fabric.schedule import Ints, Moves, Schedule

Array = npt.NDArray[Any]
Reduce = Callable[[Array, Array], Array]
REDUCTIONS: Mapping[str, Reduce] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "prod": np.multiply,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def run(schedule: Schedule, inputs: Sequence[Array], reduction: str = "sum") -> list[Array]:
    """What each rank has at the end. `inputs`: one flat array per rank, all of one dtype and length.

    A rank's input fills its slots of `begin` in order, and its result is what lies in its slots of `end`; elements
    that pad the last slots are dropped.
    """
    state = np.stack([laid(schedule, rank, each) for rank, each in enumerate(inputs)])
    for phase in schedule.phases:
        slots = phase.slots()
        for repetition in range(phase.times):
            _step(state, phase.members, slots, phase.moves(repetition), REDUCTIONS[reduction])
    if schedule.folds:
        state[:, 0] = fold(state, REDUCTIONS[reduction])
    return [result(state[rank], schedule, rank, len(inputs[0])) for rank in range(schedule.ranks)]


def laid(schedule: Schedule, rank: int, buffer: Array) -> Array:
    """The slots of one rank [slots, elements] before the first step: its buffer in those of `begin`, padded."""
    parts = schedule.begin.shape[1]
    each = -(-len(buffer) // parts)
    if len(buffer) < parts * each:
        buffer = np.concatenate([buffer, np.zeros(parts * each - len(buffer), buffer.dtype)])
    slots = np.zeros((schedule.slots, each), buffer.dtype)
    slots[span(schedule.begin[rank])] = buffer.reshape(parts, each)
    return slots


def span(slots: Ints) -> Ints | slice:
    """Slots that follow each other as a slice; others as they are."""
    first = int(slots[0]) if len(slots) else 0
    return slice(first, first + len(slots)) if np.array_equal(slots, first + np.arange(len(slots))) else slots


def result(slots: Array, schedule: Schedule, rank: int, size: int) -> Array:
    """The slots of `end` without padding, which is at the end of every `begin.shape[1]` slots of the whole.

    `slots`: those of `rank`. `size`: elements of its input.
    """
    each = slots.shape[1]
    end = schedule.end[rank]
    taken: Array = slots[span(end) if len(end) == len(slots) else end]  # a part is copied, and the rest let go
    parts = schedule.begin.shape[1]
    if schedule.operation == "all_gather":
        whole: Array = taken.reshape(len(taken) // parts, parts * each)[:, :size]
        return whole.reshape(-1)
    first = int(end[0]) * each if schedule.operation == "reduce_scatter" else 0
    flat: Array = taken.reshape(-1)
    return flat[: max(0, size - first)]


def _step(state: Array, members: Ints, slots: Ints, moves: Moves, reduce: Reduce) -> None:
    """All transfers of one repetition, of all groups: read everything, then write in order."""
    if not len(moves.src):
        return
    src, dst = members[:, moves.src], members[:, moves.dst]  # [G, T]
    read, write = slots[:, moves.src_unit], slots[:, moves.dst_unit]  # [G, T, k]
    carried = state[src[..., None], read]  # [G, T, k, elements]
    for rows in _waves(moves):
        target = (dst[:, rows, None], write[:, rows])
        new = carried[:, rows]
        if moves.add[rows[0]]:
            new = reduced(state[target], new, reduce)
        state[target] = new


def _waves(moves: Moves) -> list[npt.NDArray[np.int64]]:
    """Rows in an order in which no two of one wave write the same place, earlier rows first."""
    ends = moves.dst * (int(moves.dst_unit.max()) + 1) + moves.dst_unit
    order = np.argsort(ends, kind="stable")
    same = np.concatenate([[False], ends[order][1:] == ends[order][:-1]])
    turn = np.zeros(len(ends), np.int64)
    count = 0
    for place, again in zip(order, same):
        count = count + 1 if again else 0
        turn[place] = count
    keys = turn * 2 + moves.add
    return [np.flatnonzero(keys == key) for key in np.unique(keys)]


def fold(state: Array, reduce: Reduce) -> Array:
    """Copies of all buffers, reduced in the order of ranks with one rounding."""
    wide = state.astype(np.float32) if _narrow(state.dtype) else state
    total = wide[:, 0]
    for source in range(1, state.shape[1]):
        total = reduce(total, wide[:, source])
    return total.astype(state.dtype)


def reduced(mine: Array, other: Array, reduce: Reduce) -> Array:
    """One step of a reduction in the buffer's format; `mine` is the first operand."""
    if not _narrow(mine.dtype):
        return reduce(mine, other)
    return reduce(mine.astype(np.float32), other.astype(np.float32)).astype(mine.dtype)


def _narrow(dtype: np.dtype[Any]) -> bool:
    """Whether it is a floating point format of less than 32 bits, those of ml_dtypes among them."""
    return dtype.itemsize < 4 and dtype.kind not in "iub"
