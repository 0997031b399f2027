# SPDX-License-Identifier: Apache-2.0
"""Rows of a table by index, of which a batch names few: sums of their updates, and new rows where they lie.

Sums are made in a table that only the routine knows: the rows that are named become zero, updates are added 128 at a
time as in `scatter`, and the rows are read again, once for each index. No other row is touched, so that the time is
that of the batch, however many rows there are.

Letters: T updates, V rows of the table, C columns; P partitions.
"""

from __future__ import annotations

from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.move import copy
from trnlab.compiler.lowerings.scatter import ACROSS, SumsInMemory, load_ids
from trnlab.isa.base import Engine
from trnlab.kernels.blocks import P, ViewSource, dma_store, next_queue
from trnlab.kernels.view import HbmView, full
from trnlab.numerics.dtypes import float32, int32
from trnlab.program import AP
from trnlab.program.pool import TilePool

AHEAD = 8  # tiles of rows that are read before the first of them is stored


def lower_sum_rows(low: Lowering) -> None:
    """Record the sums of rows by index, one row for each index."""
    b, op = low.b, low.group.anchor
    update, ids = op.operands
    updates = ViewSource(low.view(update))
    (count, cols), rows = updates.shape, op.attrs["rows"]
    table = full(b.scratch("sums", (rows, cols), float32), (rows, cols))
    numbers = load_ids(low, ids, count)
    picked = PickedRows(low, table, numbers, count)
    zeros = b.tile((P, picked.width), float32, name="zeros")
    b.memset(dst=zeros, value=0.0)
    for row, col, n, width in picked.pieces():
        picked.put(zeros[:n, :width], row, col)
    SumsInMemory(b, updates, numbers, table).add_all()
    out = full(low.ports[op.result], op.result.shape)
    tiles = TilePool([b.tile((P, picked.width), float32, name="found") for _ in range(AHEAD)])
    for row, col, n, width in picked.pieces():
        found = tiles.next()[:n, :width]
        b.memset(dst=found, value=0.0)
        picked.take(found, row, col)
        # ScalarE has nothing else to do; GpSimdE goes on with the rows of the next indices
        dma_store(b, out[row : row + n, col : col + width].ap(), found, Engine.SCALAR)


def lower_put_rows(low: Lowering) -> None:
    """Record new rows of a table, written where it lies; into a copy of it where somebody reads it afterwards."""
    b, op = low.b, low.group.anchor
    table, ids, update = op.operands
    new, out = ViewSource(low.view(update)), full(low.ports[op.result], op.result.shape)
    if op.attrs["copied"]:
        copy(low, low.view(table), out)
    picked = PickedRows(low, out, load_ids(low, ids, new.shape[0]), new.shape[0])
    tiles = TilePool([b.tile((P, picked.width), new.dtype, name="rows") for _ in range(AHEAD)])
    for row, col, n, width in picked.pieces():
        tile = tiles.next()[:n, :width]
        new.load(b, tile, row, col)
        picked.put(tile, row, col)


class PickedRows:
    """The rows of a table [V, C] in HBM that T indices name, 128 at a time. Indices beyond the table name none."""

    def __init__(self, low: Lowering, table: HbmView, numbers: AP, count: int) -> None:
        """numbers: the indices in float32, as `load_ids` leaves them."""
        self.b, self.table, self.count = low.b, table, count
        self.cols = table.shape[1]
        self.width = min(self.cols, ACROSS)
        self.index = self.b.tile(numbers.shape, int32, name="index")
        filled, rest = divmod(count, P)
        if filled:
            self.b.tensor_copy(dst=self.index[:, :filled], src=numbers[:, :filled])
        if rest:
            self.b.tensor_copy(dst=self.index[:rest, filled], src=numbers[:rest, filled])

    def pieces(self) -> list[tuple[int, int, int, int]]:
        """(first index, first column, indices, columns) of each transfer."""
        return [
            (row, col, min(P, self.count - row), min(self.width, self.cols - col))
            for row in range(0, self.count, P)
            for col in range(0, self.cols, self.width)
        ]

    def put(self, tile: AP, row: int, col: int) -> None:
        """Write a tile to the rows that the indices from `row` on name."""
        self._move(self._columns(tile, col), tile, tile, row, "dst")

    def take(self, tile: AP, row: int, col: int) -> None:
        """Read them into a tile."""
        self._move(tile, self._columns(tile, col), tile, row, "src")

    def _columns(self, tile: AP, col: int) -> AP:
        return self.table[:, col : col + tile.free].ap()

    def _move(self, dst: AP, src: AP, tile: AP, row: int, side: str) -> None:
        self.b.dma_copy(
            dst=dst,
            src=src,
            index=self.index[: tile.partitions, row // P],
            indirect=side,
            oob_mode="skip",
            engine=Engine.GPSIMD,
            queue=next_queue(self.b, Engine.GPSIMD),
        )
