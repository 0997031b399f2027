# SPDX-License-Identifier: Apache-2.0
"""How tensors in HBM are cut for dependencies, so that stores to different elements do not wait for each other.

A tensor is a matrix of rows of `pitch` bytes, and cut where the boxes of rows and columns that a kernel writes begin
and end. One row as long as the tensor cuts it into runs of bytes, which is right for vectors and blocks of whole
rows; rows as far apart as the partitions of a store are right for tiles and strips of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import Buffer, Grid
from trnlab.program.routine import COL

Ints = np.ndarray[Any, np.dtype[np.int64]]
_PITCHES = 3  # distances of partitions that are tried, the most frequent ones


@dataclass(frozen=True)
class Boxes:
    """Boxes of each operand: first and last row, first and last byte within the row, in a matrix of some pitch."""

    top: Ints
    bottom: Ints
    left: Ints
    right: Ints


def with_grids(buffers: Sequence[Buffer], operands: Ints, written: np.ndarray[Any, Any]) -> list[Buffer]:
    """The buffers, those in HBM that are written cut where what is written begins and ends.

    operands: as in `routine.OPERAND_COLUMNS`, with the columns first and last in bytes. written: which of them.
    """
    found = list(buffers)
    stores = operands[written & (operands[:, COL["is_hbm"]] != 0)]
    for number in np.unique(stores[:, COL["buffer"]]).tolist():
        mine = stores[stores[:, COL["buffer"]] == number][:, 2:]
        if len(mine) > 1:
            mine = np.unique(mine, axis=0)
        mine = np.insert(mine, [0, 0], 0, axis=1)
        grid = _alone(buffers[number], mine[0].tolist()) if len(mine) == 1 else _best(buffers[number], mine)
        found[number] = replace(buffers[number], grid=grid)
    return found


def _alone(buffer: Buffer, store: Sequence[int]) -> Grid | None:
    """What `_best` says of a single store, without arrays: it is a slot by itself, of the bytes of its box."""
    first, last, step = (store[COL[name]] for name in ("first", "last", "partition_step"))
    size = max(buffer.slot_bytes, 1)
    best, least = None, (last // size - first // size + 1) * size
    for pitch in (buffer.nbytes, step) if 0 < step < buffer.nbytes else (buffer.nbytes,):
        top, bottom, left, right = _box_of(store, pitch)
        covered = (bottom + 1 - top) * (right + 1 - left)
        if covered < least:
            rows = sorted({0, -(-buffer.nbytes // pitch), top, bottom + 1})
            best, least = Grid(pitch, tuple(rows), tuple(sorted({0, pitch, left, right + 1})), False), covered
    return best


def _box_of(store: Sequence[int], pitch: int) -> tuple[int, int, int, int]:
    """What `boxes_of` says of one operand: top, bottom, left, right."""
    first, last, item = store[COL["first"]], store[COL["last"]], BY_CODE[store[COL["dtype"]]].itemsize
    dims = [(store[COL["partition_step"]], store[COL["partitions"]])]
    dims += [(store[COL[f"step{i}"]] * item, store[COL[f"count{i}"]]) for i in range(4)]
    spans = [step * (count - 1) for step, count in dims]
    left = first % pitch
    width = item + sum(span for span, (step, _) in zip(spans, dims) if step % pitch)
    plain = min(spans) >= 0 and first + sum(spans) + item - 1 == last and left + width <= pitch
    return first // pitch, last // pitch, left if plain else 0, left + width - 1 if plain else pitch - 1


def _best(buffer: Buffer, stores: Ints) -> Grid | None:
    """The cut under which stores share the fewest bytes with others; None where equal pieces are as good."""
    first, last = stores[:, COL["first"]], stores[:, COL["last"]]
    size = max(buffer.slot_bytes, 1)
    best, least = None, int((last // size - first // size + 1).sum()) * size
    steps, count = np.unique(stores[:, COL["partition_step"]], return_counts=True)
    pitches = [p for p in steps[np.argsort(-count)].tolist() if 0 < p < buffer.nbytes][:_PITCHES]
    for pitch in (buffer.nbytes, *pitches):
        boxes = boxes_of(stores, pitch)
        rows, columns = (
            _cuts(boxes.top, boxes.bottom, -(-buffer.nbytes // pitch)),
            _cuts(boxes.left, boxes.right, pitch),
        )
        if (len(rows) - 1) * (len(columns) - 1) > 4 * len(stores) + 4096:
            continue
        for by_column in (False, True):
            grid = Grid(pitch, tuple(rows.tolist()), tuple(columns.tolist()), by_column)
            covered = _covered(grid, boxes)
            if covered < least:
                best, least = grid, covered
    return best


def _cuts(first: Ints, last: Ints, end: int) -> Ints:
    return np.unique(np.concatenate([[0, end], first, last + 1]))


def _covered(grid: Grid, boxes: Boxes) -> int:
    """Bytes of all slots of all stores."""
    sizes = np.outer(np.diff(grid.rows), np.diff(grid.columns))
    ends = np.concatenate([[0], np.cumsum((sizes.T if grid.by_column else sizes).ravel())])
    first, last = slots_of(grid, boxes)
    return int((ends[last + 1] - ends[first]).sum())


def boxes_of(operands: Ints, pitch: int) -> Boxes:
    """The box of each operand; all columns where what it touches in a row is no run of bytes."""
    first, last = operands[:, COL["first"]], operands[:, COL["last"]]
    item = _itemsizes()[operands[:, COL["dtype"]]]
    steps = operands[:, COL["step0"] : COL["count3"] + 1 : 2] * item[:, None]
    steps = np.column_stack([operands[:, COL["partition_step"]], steps])
    spans = steps * (
        np.column_stack([operands[:, COL["partitions"]], operands[:, COL["count0"] : COL["count3"] + 1 : 2]]) - 1
    )
    width = item + np.where(steps % pitch == 0, 0, spans).sum(axis=1)
    left = first % pitch
    plain = (spans >= 0).all(axis=1) & (first + spans.sum(axis=1) + item - 1 == last) & (left + width <= pitch)
    return Boxes(
        first // pitch, last // pitch, np.where(plain, left, 0), np.where(plain, left + width - 1, pitch - 1)
    )


def slots_of(grid: Grid, boxes: Boxes) -> tuple[Ints, Ints]:
    """First and last slot of each box, counted from the buffer's first."""
    top, bottom = (np.searchsorted(grid.rows, r, side="right") - 1 for r in (boxes.top, boxes.bottom))
    left, right = (np.searchsorted(grid.columns, c, side="right") - 1 for c in (boxes.left, boxes.right))
    rows, columns = len(grid.rows) - 1, len(grid.columns) - 1
    if grid.by_column:
        return left * rows + top, right * rows + bottom
    return top * columns + left, bottom * columns + right


def _itemsizes() -> Ints:
    return np.array([BY_CODE[code].itemsize for code in range(len(BY_CODE))], np.int64)


def written(columns: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which operands are written."""
    opcode = np.repeat(columns["opcode"], np.diff(columns["first_operand"])).astype(np.int64)
    role = columns["operands"][:, 0]
    kinds, number = np.unique(opcode << 8 | role, return_inverse=True)
    stored = [isa.BY_OPCODE[int(kind) >> 8].operands[int(kind) & 255].role == "dst" for kind in kinds]
    return np.array(stored, np.bool_)[number]
