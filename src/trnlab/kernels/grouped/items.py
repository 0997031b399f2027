# SPDX-License-Identifier: Apache-2.0
"""What the items of products of groups are made of: rows by number, and the matrix of a group that a number in SBUF
says. Letters as in `products`."""

from __future__ import annotations

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BlockSource, P, dma_load, next_queue
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import int32
from trnlab.program import AP, Builder, hbm_view

EXACT = 1 << 24  # numbers of rows are made in float32


def addressable(w: HbmView) -> bool:
    """Whether a transfer finds the matrices of w [G, R, C] by the number of their first row: they lie a whole number
    of rows apart, and elements of a row next to each other."""
    apart, row, inner = w.strides
    return inner == 1 and row > 0 and apart % row == 0 and w.shape[0] * max(apart // row, 1) < EXACT


class GroupItems:
    """Where the matrices of items lie: those of w [G, R, C], of which item t has number groups[t]."""

    def __init__(self, b: Builder, groups: HbmView, w: HbmView) -> None:
        self.w, (self.count,) = w, groups.shape
        raw, self._rows = (b.tile((1, self.count), int32, name=name) for name in ("groups", "first_row"))
        dma_load(b, raw, groups.expand(0, 1).ap())
        self.apart = w.strides[0] // w.strides[1]
        b.tensor_scalar(dst=self._rows, data=raw, operand0=float(self.apart), op0="multiply")

    def table(self, row: int, rows: int, col: int, cols: int) -> AP:
        """The rows from which a transfer picks so many of a matrix, row `row` of it first."""
        w, step = self.w, self.w.strides[1]
        count = (w.shape[0] - 1) * self.apart + rows
        return hbm_view(w.base, w.offset + row * step + col, ((step, count), (1, cols)))

    def index(self, t: int) -> AP:
        """The number of the first row of item t's matrix."""
        return self._rows[:, t : t + 1]


class PickedRowsSource(BlockSource):
    """Rows of a matrix [M, C] by number, block by block of [H, blocks] numbers. zeros: a number that is no row's
    gives zeros."""

    def __init__(self, table: HbmView, index: AP, *, zeros: bool = False) -> None:
        self._table, self._index, self._zeros = table, index, zeros
        self.shape, self.dtype = (index.partitions * index.free, table.shape[1]), table.dtype

    def load(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """See `BlockSource`; one gather."""
        if self._zeros:
            joins = dst.dtype.itemsize == 2 and dst.free % 2 == 0  # words are written at twice the rate
            b.memset(dst=dst.joined_pairs(int32) if joins else dst, value=0, engine=Engine.GPSIMD)
        b.dma_copy(
            dst=dst,
            src=self._table[:, col : col + dst.free].ap(),
            index=self._index[: dst.partitions, row // P : row // P + 1],
            oob_mode="skip" if self._zeros else "error",
            engine=Engine.GPSIMD,
            queue=next_queue(b, Engine.GPSIMD),
        )


class GroupMatrixSource(BlockSource):
    """The matrix [R, C] of an item's group."""

    def __init__(self, items: GroupItems, item: int) -> None:
        self._items, self._item = items, item
        self.shape, self.dtype = (items.w.shape[1], items.w.shape[2]), items.w.dtype

    def load(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """See `BlockSource`; one transfer."""
        b.dma_copy(
            dst=dst,
            src=self._items.table(row, dst.partitions, col, dst.free),
            index=self._items.index(self._item),
            per_row=False,
            engine=Engine.SYNC,
            queue=next_queue(b),
        )
