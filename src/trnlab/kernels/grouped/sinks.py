# SPDX-License-Identifier: Apache-2.0
"""Where results of products of groups go: to the rows of an item, or to what its group has so far. Letters as in
`products`."""

from __future__ import annotations

from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, P, Sink, Workspace, next_queue
from trnlab.kernels.grouped.items import GroupItems
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import int32
from trnlab.program import AP, Builder

WIDEST = 4096  # columns of a result that are stored at once
RESULTS = 4  # tiles of results
QUEUES = 4  # that SyncE's stores are on


def seconds_of_sums(chip: Chip) -> float:
    """What VectorE needs to mask and to add a tile of BANK columns."""
    vector = chip.vector
    cycles = (vector.copy_sbuf32.value + vector.two_inputs_psum.value) * BANK + 2 * vector.issue.value
    return float(cycles / vector.clock.value)


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


class ScatteredSink(_RunsSink):
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


class GroupSumsSink(_RunsSink):
    """Results of an item are added to what its group has, and stored as far as that goes: the last item of the group
    stores the sum."""

    def __init__(self, b: Builder, items: GroupItems, item: int, sums: AP, goes_on: AP, row: int, col: int) -> None:
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
