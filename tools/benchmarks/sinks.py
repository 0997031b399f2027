# SPDX-License-Identifier: Apache-2.0
"""A plain sink for products of matrices, with which benchmarks and tests of the matmul kernel write results."""

from __future__ import annotations

from trnlab.kernels.blocks import BANK, MIN_ROW_BYTES, Epilogue, P, Sink, ViewSource, Workspace, store_rows
from trnlab.kernels.view import HbmView
from trnlab.program.access import AP
from trnlab.program.builder import Builder


class ViewSink(Sink):
    """Writes a matrix to a view of HBM, in the view's format; several tiles to a DMA, so that its rows are long."""

    def __init__(self, view: HbmView, *, rows: int = 1, epilogue: Epilogue | None = None) -> None:
        """`rows`: leading dimensions of the view that are the matrix's rows. `epilogue`: instead of a copy."""
        self.view, self.rows, self.epilogue = view, rows, epilogue
        self.shape = ViewSource(view, rows=rows).shape
        self._tile: AP | None = None
        self._corner, self._height, self._filled = (0, 0), 0, 0

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Three row tiles of up to 2 KiB a partition, and never narrower than a PSUM bank."""
        self._work = work
        self._width = min(width, max(BANK, MIN_ROW_BYTES // self.view.dtype.itemsize))
        self._pool = work.pool("out", (P, self._width), self.view.dtype, bufs=3)

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """Put the tile beside the last one; write out when the row tile is full or the run ends."""
        follows = (row, col) == (self._corner[0], self._corner[1] + self._filled)
        if self._tile is None or not follows or self._filled + acc.free > self._width:
            self.close(b)
            self._tile, self._corner, self._height = self._pool.next(), (row, col), acc.partitions
        dst = self._tile[: acc.partitions, self._filled : self._filled + acc.free]
        if self.epilogue is not None:
            self.epilogue(b, dst, acc, row, col)
        else:
            self._work.evacuate(dst, acc)
        self._filled += acc.free
        if self._filled == self._width or col + acc.free == self.shape[1]:
            self.close(b)

    def close(self, b: Builder) -> None:
        """Write out the row tile."""
        if self._tile is not None:
            store_rows(b, self.view, self._tile[: self._height, : self._filled], *self._corner, rows=self.rows)
        self._tile, self._filled = None, 0
