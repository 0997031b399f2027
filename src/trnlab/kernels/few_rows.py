# SPDX-License-Identifier: Apache-2.0
"""Products of few rows with large matrices, as decoding has them: nothing is turned on the PE array.

The contraction may be summed in any order. So partition p takes K / 128 rows of the matrix that follow each other in
memory, in one run of a transfer, and of each row of the other operand the elements that meet them, which follow each
other too. A matrix [K, N] is brought in by long runs, and an operand [M, K] as the PE array takes it, by M x 128 runs
of K / 128 elements, where a transpose would take the array M columns for each 128 elements and a copy out of PSUM.
"""

from __future__ import annotations

from math import prod

from trnlab.kernels.blocks import BlockSource, P, Sink, Workspace, dma_load, store_rows
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import DType
from trnlab.program import AP, Builder, hbm_view
from trnlab.program.pool import TilePool

MOST_ROWS = 16  # M at most: with more, runs of a few bytes take longer than the transposes
WIDEST = 4096  # columns of a result that are stored at once
STORED = 3  # tiles of results


class SpreadMatrix(BlockSource):
    """A matrix [K, N] whose row 128 j + p is row p K / 128 + j in memory."""

    def __init__(self, view: HbmView) -> None:
        """view: [K, N...], whose columns are one stride apart; K is a multiple of 128."""
        assert view.shape[0] % P == 0, view.shape
        (self._column,) = view.collapsed(1) or ((1, 1),)
        self._view, self.shape, self.dtype = view, (view.shape[0], prod(view.shape[1:])), view.dtype

    def load(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """See `BlockSource`; one block of 128 rows."""
        self.load_blocks(b, dst.split(0, 1, dst.free), row, col)

    def load_blocks(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """See `BlockSource`; one transfer."""
        (count, step), apart = (self.shape[0], self._view.strides[0]), self._column[0]
        start = self._view.offset + row // P * step + col * apart
        dims = ((count // P * step, P), (step, dst.shape[1]), (apart, dst.shape[2]))
        dma_load(b, dst, hbm_view(self._view.base, start, dims))


class SpreadRows(BlockSource):
    """A matrix [K, M], few rows [M, K] in memory, in the same order of K; all of it is brought in at once."""

    def __init__(self, view: HbmView) -> None:
        """view: [M..., K], whose rows are one stride apart, and elements of a row next to each other."""
        assert view.shape[-1] % P == 0, view.shape
        (self._row,) = view.collapsed(0, len(view.shape) - 1) or ((1, 1),)
        self._view, self.shape, self.dtype = view, (view.shape[-1], prod(view.shape[:-1])), view.dtype

    def open(self, work: Workspace) -> None:
        """Load it."""
        self._run, b = self.shape[0] // P, work.builder
        self._tile = b.tile((P, self.shape[1], self._run), self.dtype, name="rows")
        dims = ((self._run, P), (self._row[0], self.shape[1]), (1, self._run))
        dma_load(b, self._tile, hbm_view(self._view.base, self._view.offset, dims))

    def load(self, b: Builder, dst: AP, row: int, col: int) -> None:
        """Never asked for: all of it lies in SBUF."""
        raise AssertionError((row, col))

    def on_chip(self, b: Builder, row: int, rows: int, col: int, cols: int) -> AP | None:
        """See `BlockSource`."""
        dims = ((1, rows // P), (self._run, cols))
        start = (col * self._run + row // P) * self.dtype.itemsize
        tile = self._tile
        return AP(tile.buffer, self.dtype, 0, P, tile.partition_step, tile.offset + start, dims)


class WideSink(Sink):
    """Results [M, N] go to memory by as many columns at once as a tile has: a store takes the DMA engines longer to
    turn to than to move."""

    def __init__(self, view: HbmView, rows: int, tiles: TilePool) -> None:
        """view: of which the first `rows` dimensions are M."""
        self._view, self._rows, self._tiles = view, rows, tiles
        self._tile: AP | None = None

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Tiles are shared with other products."""
        self._work, self._width = work, width

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """Nothing is loaded for it."""

    def close(self, b: Builder) -> None:
        """Nothing is held back."""

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """See `Sink`."""
        at = col % WIDEST
        if self._tile is None or at == 0:
            self._tile = self._tiles.next()
        self._work.evacuate(self._tile[: acc.partitions, at : at + acc.free], acc)
        if at + acc.free == WIDEST or col + acc.free == self._width:
            store_rows(b, self._view, self._tile[: acc.partitions, : at + acc.free], row, col - at, rows=self._rows)


def result_tiles(b: Builder, width: int, dt: DType) -> TilePool:
    """Tiles for results of `width` columns."""
    columns = min(width, WIDEST)
    return b.pool((P, columns), dt, bufs=STORED, name="result")
