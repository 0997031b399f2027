# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows, each group with a matrix of its own, as mixtures of experts have them.

How many rows a group has is known on chip alone. So the work is a fixed number of *items* of B rows: item t has rows
of group `groups[t]`, which a table names one by one. Rows come and go by gathers and scatters; a group's matrix comes
by a transfer whose first row is read from SBUF. However rows are spread, there are never more than M / B + G items,
and a group's matrix is loaded once for each of its items.

What lies behind an item's rows is computed and left out, or comes as zeros where rows are summed. No product of one
group's rows with another's matrix is ever stored or added: infinities and NaN stay in their groups.

Letters: M rows in all, G groups, K summed, N columns; H partitions of an item's blocks, 128 or B; J blocks of all
items.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine
from trnlab.kernels.blocks import (
    BANK,
    BlockSource,
    P,
    Sink,
    Workspace,
    dma_load,
    next_queue,
)
from trnlab.kernels.matmul import BatchedProduct, batch_matmul
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import float32, int16, int32
from trnlab.program import AP, Builder, hbm_view

WIDEST = 4096  # columns of a result that are stored at once
RESULTS = 4  # tiles of results
QUEUES = 4  # that SyncE's stores are on
SUMS = 64 * 1024  # bytes of a partition for sums over items
EXACT = 1 << 24  # numbers of rows are made in float32


class RowTables(NamedTuple):
    """Which rows the items of `grouped_dot` have. read, write, keep: int32 [H, J]; groups: int32 [T]."""

    read: HbmView  # rows of the operand
    write: HbmView  # rows of the result; M, which is none, for what is left out
    keep: HbmView  # all bits set, or none where a row of no group is to be zero
    groups: HbmView


class TermTables(NamedTuple):
    """Which rows the items of `grouped_outer` have. Every group has an item, and its items follow each other."""

    read: HbmView  # int32 [H, J]; M, which is none, for what is no row of the group
    groups: HbmView  # int32 [T]
    goes_on: HbmView  # int32 [T]: all bits set, or none where an item is the first of its group


def grouped_dot(b: Builder, x: HbmView, w: HbmView, out: HbmView, tables: RowTables) -> None:
    """out[m] = x[m] @ w[group of m]. x: [M, K]; w: [G, K, N], `addressable` as it is or with K and N exchanged; out:
    [M, N], row by row."""
    k_rows = addressable(w)
    with b.scope():
        items = _Items(b, tables.groups, w if k_rows else w.permute(0, 2, 1))
        read, write, keep = (_on_chip(b, table) for table in (tables.read, tables.write, tables.keep))
        if out.dtype.itemsize == 2 and out.shape[1] % 2:  # which no words are made of
            halves = b.tile((keep.partitions, keep.free), int16, name="keep")
            b.tensor_copy(dst=halves, src=keep)
            keep = halves
        each = read.free // items.count
        products = [
            BatchedProduct(
                _PickedRows(x, read[:, t * each : (t + 1) * each]),
                _GroupMatrix(items, t),
                _RowsSink(out, *(table[:, t * each : (t + 1) * each] for table in (write, keep))),
            )
            for t in range(items.count)
        ]
        batch_matmul(b, products, lhs_k_rows=False, rhs_k_rows=k_rows)


def grouped_outer(b: Builder, x: HbmView, y: HbmView, out: HbmView, tables: TermTables) -> None:
    """out[g] = x^T y of the rows of group g, zero for one that has none. x: [M, K]; y: [M, N]; out: [G, K, N], of
    which `addressable` is true. Sums are float32 until a group's last item."""
    (k, n), groups = (x.shape[1], y.shape[1]), tables.groups
    height, width = slab(k, n)
    with b.scope():
        items = _Items(b, groups, out)
        read, goes_on = _on_chip(b, tables.read), _repeated(b, tables.goes_on)
        each = read.free // items.count
        sums = b.tile((P, ceil(height / P), width), float32, name="sums")
        b.memset(dst=sums, value=0.0)
        products = []
        for row in range(0, k, height):
            for col in range(0, n, width):
                rows, cols = slice(row, min(row + height, k)), slice(col, min(col + width, n))
                for t in range(items.count):
                    index = read[:, t * each : (t + 1) * each]
                    left, right = (_PickedRows(v, index, zeros=True) for v in (x[:, rows], y[:, cols]))
                    sink = _SumsSink(b, items, t, sums, goes_on[:, t : t + 1], row, col)
                    products.append(BatchedProduct(left, right, sink))
        batch_matmul(b, products, lhs_k_rows=True, rhs_k_rows=True)


def addressable(w: HbmView) -> bool:
    """Whether a transfer finds the matrices of w [G, R, C] by the number of their first row: they lie a whole number
    of rows apart, and elements of a row next to each other."""
    apart, row, inner = w.strides
    return inner == 1 and row > 0 and apart % row == 0 and w.shape[0] * max(apart // row, 1) < EXACT


def slab(k: int, n: int) -> tuple[int, int]:
    """Rows and columns of a [K, N] matrix whose sums stay on chip while all items pass: of those that fit the ones
    for which least is loaded, x once for each slab of columns and y for each of rows."""
    found = []
    for high in {min(k, 128 * 2**i) for i in range(8)}:
        most = SUMS // 4 // ceil(high / P) // BANK * BANK
        if most:
            wide = min(n, ceil(ceil(n / ceil(n / most)) / BANK) * BANK)
            found.append((k * ceil(n / wide) + n * ceil(k / high), high, wide))
    _, high, wide = min(found)
    return high, wide


def seconds_of_sums(chip: Chip) -> float:
    """What VectorE needs to mask and to add a tile of BANK columns."""
    vector = chip.vector
    cycles = (vector.copy_sbuf32.value + vector.two_inputs_psum.value) * BANK + 2 * vector.issue.value
    return float(cycles / vector.clock.value)


class _Items:
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


class _PickedRows(BlockSource):
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


class _GroupMatrix(BlockSource):
    """The matrix [R, C] of an item's group."""

    def __init__(self, items: _Items, item: int) -> None:
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


class _RunsSink(Sink):
    """Tiles of results that lie side by side are stored together. `_take` copies one, `_put` stores several."""

    def __init__(self, out: HbmView) -> None:
        """out: of the results' format."""
        self._out, self._tile = out, None
        self._row = self._col = self._filled = 0

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Tiles are shared with the products of other items."""
        self._work = work
        self._tiles = work.pool("result", (P, min(width, WIDEST)), self._out.dtype, RESULTS)

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """Nothing is loaded for it."""

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """See `Sink`."""
        beside = self._row == row and self._col + self._filled == col
        if not beside or self._filled + acc.free > self._tiles.tiles[0].free:
            self.close(b)
        if self._tile is None:
            self._tile, self._row, self._col = self._tiles.next()[: acc.partitions], row, col
        self._take(b, self._tile[:, self._filled : self._filled + acc.free], acc, row, col)
        self._filled += acc.free

    def close(self, b: Builder) -> None:
        """Store the tiles at hand."""
        if self._tile is not None:
            self._put(b, self._tile[:, : self._filled], self._row, self._col)
        self._tile, self._filled = None, 0

    _tile: AP | None

    def _take(self, b: Builder, dst: AP, acc: AP, row: int, col: int) -> None:
        raise NotImplementedError

    def _put(self, b: Builder, tile: AP, row: int, col: int) -> None:
        raise NotImplementedError


class _RowsSink(_RunsSink):
    """Results of an item go to the rows that it has, and nowhere else."""

    def __init__(self, out: HbmView, write: AP, keep: AP) -> None:
        """write, keep: of `RowTables`, [H, blocks] of the item."""
        super().__init__(out)
        self._write, self._keep = write, keep

    def _take(self, b: Builder, dst: AP, acc: AP, row: int, col: int) -> None:
        self._work.evacuate(dst, acc)

    def _put(self, b: Builder, tile: AP, row: int, col: int) -> None:
        block = slice(row // P, row // P + 1)
        keep = self._keep[: tile.partitions, block]
        joins = tile.dtype.itemsize < keep.dtype.itemsize
        bits = tile.joined_pairs(keep.dtype) if joins else tile.cast(keep.dtype)
        b.tensor_scalar(dst=bits, data=bits, operand0=keep, op0="bitwise_and")
        b.dma_copy(
            dst=self._out[:, col : col + tile.free].ap(),
            src=tile,
            index=self._write[: tile.partitions, block],
            indirect="dst",
            oob_mode="skip",
            fills=True,
            engine=Engine.GPSIMD,
            queue=next_queue(b, Engine.GPSIMD),
        )


class _SumsSink(_RunsSink):
    """Results of an item are added to what its group has, and stored as far as that goes: the last item of the group
    stores the sum."""

    def __init__(self, b: Builder, items: _Items, item: int, sums: AP, goes_on: AP, row: int, col: int) -> None:
        """sums: [P, blocks, columns] of all items; goes_on: [P, 1] of this one; row, col: where the slab begins."""
        super().__init__(items.w)
        self.cost, self.moved = seconds_of_sums(b.chip), items.w.dtype.itemsize
        self._items, self._item, self._sums, self._goes_on, self._at = items, item, sums, goes_on, (row, col)

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """Forget the sums of the group before. The sum with a tile waits for that, so it is not done only then."""
        bits = self._sums[:rows, row // P, col : col + cols].cast(int32)
        b.tensor_scalar(dst=bits, data=bits, operand0=self._goes_on[:rows], op0="bitwise_and")

    def _take(self, b: Builder, dst: AP, acc: AP, row: int, col: int) -> None:
        sums = self._sums[: acc.partitions, row // P, col : col + acc.free]
        self._work.add(sums, acc, sums)
        b.activation(dst=dst, data=sums, op="copy")

    def _put(self, b: Builder, tile: AP, row: int, col: int) -> None:
        first, across = self._at
        b.dma_copy(
            dst=self._items.table(first + row, tile.partitions, across + col, tile.free),
            src=tile,
            index=self._items.index(self._item),
            per_row=False,
            indirect="dst",
            fills=True,
            engine=Engine.SYNC,  # GpSimdE's turn would be behind gathers of other items, and theirs behind this
            queue=(first + row) // P % QUEUES,  # of a group's rows the same for all of its items: in their order
        )


def _on_chip(b: Builder, table: HbmView) -> AP:
    tile = b.tile(table.shape, int32, name="table")
    dma_load(b, tile, table.ap())
    return tile


def _repeated(b: Builder, numbers: HbmView) -> AP:
    """Numbers [T] in all partitions."""
    tile = b.tile((P, *numbers.shape), int32, name="numbers")
    dma_load(b, tile, numbers.expand(0, P).ap())
    return tile
