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
REDUCTIONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply,
}  # fmt: skip


def run(schedule: Schedule, inputs: Sequence[Array], reduction: str = "sum") -> list[Array]:
    """What each rank has at the end. `inputs`: one flat array per rank, all of one dtype and length.

    A rank's input fills its slots of `begin` in order, and its result is what lies in its slots of `end`; elements
    that pad the last slots are dropped.
    """
    size = len(inputs[0])
    parts = schedule.begin.shape[1]
    each = -(-size // parts) if size else 0
    state = np.zeros((schedule.ranks, schedule.slots, each), inputs[0].dtype)
    for rank, values in enumerate(inputs):
        padded = np.zeros(parts * each, values.dtype)
        padded[:size] = values
        state[rank, schedule.begin[rank]] = padded.reshape(parts, each)
    for phase in schedule.phases:
        slots = phase.slots()
        for repetition in range(phase.times):
            _step(state, phase.members, slots, phase.moves(repetition), REDUCTIONS[reduction])
    if schedule.folds:
        state[:, 0] = _fold(state, REDUCTIONS[reduction])
    return [_result(state[rank], schedule, rank, size, each) for rank in range(schedule.ranks)]


def _result(slots: Array, schedule: Schedule, rank: int, size: int, each: int) -> Array:
    """The slots of `end` without padding, which is at the end of every `begin.shape[1]` slots of the whole."""
    taken: Array = slots[schedule.end[rank]]
    parts = schedule.begin.shape[1]
    if schedule.operation == "all_gather":
        whole: Array = taken.reshape(len(taken) // parts, parts * each)[:, :size]
        return whole.reshape(-1)
    first = int(schedule.end[rank][0]) * each if schedule.operation == "reduce_scatter" else 0
    flat: Array = taken.reshape(-1)
    return flat[: max(0, size - first)]


def _step(state: Array, members: Ints, slots: Ints, moves: Moves, reduce: Callable[[Array, Array], Array]) -> None:
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
            new = _reduced(state[target], new, reduce)
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


def _fold(state: Array, reduce: Callable[[Array, Array], Array]) -> Array:
    """Copies of all buffers, reduced in the order of ranks with one rounding."""
    wide = state.astype(np.float32) if _narrow(state.dtype) else state
    total = wide[:, 0]
    for source in range(1, state.shape[1]):
        total = reduce(total, wide[:, source])
    return total.astype(state.dtype)


def _reduced(mine: Array, other: Array, reduce: Callable[[Array, Array], Array]) -> Array:
    if not _narrow(mine.dtype):
        return reduce(mine, other)
    return reduce(mine.astype(np.float32), other.astype(np.float32)).astype(mine.dtype)


def _narrow(dtype: np.dtype[Any]) -> bool:
    """Whether it is a floating point format of less than 32 bits, those of ml_dtypes among them."""
    return dtype.itemsize < 4 and dtype.kind not in "iub"
