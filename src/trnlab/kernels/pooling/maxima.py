# SPDX-License-Identifier: Apache-2.0
"""Largest elements of windows: images on partitions, windows as access patterns that VectorE reduces.

A reduction streams one operand, in bfloat16 at two elements a cycle, where a maximum of two takes two cycles an
element. So the elements of each window are one reduction, or those of its rows and then these, whichever streams
less. Rows of the image that a window sees outside of it are rows of -inf on chip; columns outside are left out. Where
images are few, parts of them lie on partitions of their own.

Letters: R images and channels, flattened; [H, W] input, [Y, X] places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import P, Workspace, dma_load, dma_store
from trnlab.kernels.pooling.room import no_room
from trnlab.kernels.view import HbmView, TilePart, rectangle, together
from trnlab.kernels.windows import PlaceRun, Slide
from trnlab.program.access import AP
from trnlab.program.builder import Builder

LOWEST = float("-inf")
QUADRANT = 32  # partitions: engines begin at multiples of so many
MOST_PARTS = 4  # of an image, side by side
TILES = 4  # of the image in flight
FEWEST_RESULTS = 3  # tiles
ALIGNED = 4096  # bytes that tiles may take beyond what they hold
FEWEST_TILES, FEWEST_BYTES = 16, 4096  # into which the work is cut, unless a tile has fewer bytes


def max_pool(b: Builder, x: HbmView, out: HbmView, slides: tuple[Slide, Slide]) -> None:
    """Record out[..., y, x] = the largest element of each window of x [..., H, W]; NaN is larger than all.

    x and out have one format. Uses the SBUF that is free in `b` and leaves it free. Raises CapacityError where it is
    too little.
    """
    with b.scope():
        _Pooler(b, x, out, slides).record()


@dataclass(frozen=True)
class _Piece:
    """Rows [row, +count) of R, and places [start, +places) of each part of their images."""

    row: int
    count: int
    start: int
    places: int


class _Pooler:
    def __init__(self, b: Builder, x: HbmView, out: HbmView, slides: tuple[Slide, Slide]) -> None:
        self.b, self.x, self.out, self.work = b, x, out, Workspace(b)
        self.down, self.along = slides
        self.lead, (self.h, self.w), self.width = len(x.shape) - 2, x.shape[-2:], slides[1].places
        self.rows = prod(x.shape[:-2])
        self.runs = self.along.phases()[0].runs()
        self.parts = self._parts()
        self.share = self.down.places // self.parts  # rows of places of a part
        self.by_rows = self._streamed(True) < self._streamed(False)
        self.band = self._band()
        self.pieces = [
            _Piece(row, min(P, self.rows - row), start, min(self.band, self.share - start))
            for row in range(0, self.rows, P)
            for start in range(0, self.share, self.band)
        ]
        room = (b.sbuf_free - self._bytes(self.band, 0)) // self._bytes_of_results(self.band)
        self.held = min(room, max(len(self.pieces), 2))  # tiles of results

    def _parts(self) -> int:
        """Into how many parts images are cut, that lie on partitions of their own."""
        if self.rows % QUADRANT:
            return 1
        most = min(MOST_PARTS, P // min(self.rows, P))
        return max(n for n in range(1, most + 1) if self.down.places % n == 0)

    def _streamed(self, by_rows: bool) -> int:
        """Cycles, relative to each other, for a row of places and a column."""
        window = self.down.window, self.along.window
        return window[1] * min(self.down.stride, self.down.window) + window[0] if by_rows else prod(window)

    def _image_rows(self, places: int) -> int:
        """Rows of the image that so many rows of places see."""
        return (places - 1) * self.down.stride + self.down.window

    def _band(self) -> int:
        """Rows of places of a tile: what fits, and some tiles in all, so that loads and stores overlap."""
        blocks, item = ceil(self.rows / P), self.x.dtype.itemsize
        for band in range(self.share, 0, -1):
            need = self._bytes(band, FEWEST_RESULTS)
            image = self._image_rows(band) * self.w * item
            several = blocks * ceil(self.share / band) >= FEWEST_TILES or image <= FEWEST_BYTES
            if need <= self.b.sbuf_free and (several or band == 1):
                return band
        raise no_room(self.b, f"{need} bytes for a row of windows", "make the rows of the image shorter")

    def _bytes(self, band: int, results: int) -> int:
        """Bytes per partition of all tiles, so many of results among them."""
        rows = self._image_rows(band)
        held = TILES * rows * self.w + (2 * rows * self.width if self.by_rows else 0)
        return held * self.x.dtype.itemsize + results * self._bytes_of_results(band) + ALIGNED

    def _bytes_of_results(self, band: int) -> int:
        return -(-band * self.width * self.x.dtype.itemsize // 64) * 64

    def record(self) -> None:
        """All rows, band by band. Results are stored when there is no more room for others: DMA engines lose time
        where stores take turns with loads."""
        ahead, done = deque[tuple[_Piece, AP]](), list[tuple[_Piece, AP]]()
        for i, piece in enumerate(self.pieces):
            ahead += [(p, self._load(p)) for p in self.pieces[i : i + 2][bool(ahead) :]]
            done.append((piece, self._largest(*ahead.popleft())))
            if len(done) == max(self.held - 1, 1) or i == len(self.pieces) - 1:
                for each in done:
                    self._store(*each)
                done.clear()

    def _load(self, piece: _Piece) -> AP:
        """The image of a piece, rows outside of it -inf. What all parts have of it comes at once."""
        held, rows = self._image_rows(self.band), self._image_rows(piece.places)
        pool = self.work.pool("image", (P, held * self.w), self.x.dtype, bufs=TILES)
        tile = pool.next()[: piece.count * self.parts, : rows * self.w]
        firsts = [(i * self.share + piece.start) * self.down.stride - self.down.low for i in range(self.parts)]
        inside = [(min(max(-f, 0), rows), max(min(self.h - f, rows), 0)) for f in firsts]
        low, high = max(a for a, _ in inside), min(z for _, z in inside)
        high = max(low, high)
        for i, (first, (a, z)) in enumerate(zip(firsts, inside)):
            part = tile[i * piece.count : (i + 1) * piece.count]
            for start, stop in ((0, a), (max(a, z), rows)):
                if start < stop:
                    outside = part[:, start * self.w : stop * self.w]
                    self.b.memset(dst=outside, value=LOWEST, engine=Engine.GPSIMD)
            for start, stop in ((a, min(low, z)), (max(a, high), z)):
                if start < stop:
                    self._bring(part, piece, [first], start, stop)
        if low < high:
            self._bring(tile, piece, firsts, low, high)
        return tile

    def _bring(self, tile: AP, piece: _Piece, firsts: list[int], start: int, stop: int) -> None:
        """Rows [start, stop) of a tile of parts of images that begin at rows `firsts`."""
        columns = tile[:, start * self.w : stop * self.w]
        spans = [((first + start) * self.w, columns.free) for first in firsts]
        for part in self._of_parts(self.x, piece, spans):
            dst = columns[part.partition : part.partition + part.partitions, part.col : part.col + part.cols]
            dma_load(self.b, dst, part.ap)

    def _of_parts(self, view: HbmView, piece: _Piece, spans: list[tuple[int, int]]) -> Iterator[TilePart]:
        """For each part its columns [col, +cols) of a view."""
        found = [rectangle(view, self.lead, piece.row, piece.count, *span) for span in spans]
        return together(found, piece.count)

    def _largest(self, piece: _Piece, x: AP) -> AP:
        """The largest element of each window of a piece, [P, places]."""
        dt, step = self.x.dtype, self.down.stride
        result = self.work.pool("largest", (P, self.band * self.width), dt, bufs=self.held).next()[: x.partitions]
        result = result[:, : piece.places * self.width]
        if sum(run.count for run in self.runs) < self.width:  # some places meet nothing
            self.b.memset(dst=result, value=LOWEST, engine=Engine.VECTOR)
        below = (step * self.w, piece.places)
        if not self.by_rows:
            for run in self.runs:
                taps = (self.w, self.down.window), (1, run.taps)
                self._reduce(self._places(result, run, piece.places), self._seen(x, run, below, *taps), 2)
            return result
        rows = self._image_rows(piece.places)
        across = self.work.pool("along rows", (P, self._image_rows(self.band) * self.width), dt, bufs=2).next()
        across = across[: x.partitions, : rows * self.width]
        for run in self.runs:  # column by column: an engine is half as fast where it steps from row to row
            seen = x.with_dims((self.along.stride, run.count), (self.w, rows), (1, run.taps), skip=run.first)
            self._reduce(across[:, run.start * rows : (run.start + run.count) * rows], seen, 1)
        self._reduce(result, across.with_dims((step, piece.places), (rows, self.width), (1, self.down.window)), 1)
        return result

    def _places(self, tile: AP, run: PlaceRun, rows: int) -> AP:
        """The columns of a run, in rows of places."""
        return tile.with_dims((self.width, rows), (1, run.count), skip=run.start)

    def _seen(self, x: AP, run: PlaceRun, below: tuple[int, int], *taps: tuple[int, int]) -> AP:
        """What the places of a run meet in rows of the image, so many a step below each other; last the taps."""
        return x.with_dims(below, (self.along.stride, run.count), *taps, skip=run.first)

    def _reduce(self, dst: AP, data: AP, axes: int) -> None:
        self.b.tensor_reduce(dst=dst, data=data, op="max", axes=axes, engine=Engine.VECTOR)

    def _store(self, piece: _Piece, result: AP) -> None:
        spans = [((i * self.share + piece.start) * self.width, result.free) for i in range(self.parts)]
        for part in self._of_parts(self.out, piece, spans):
            src = result[part.partition : part.partition + part.partitions, part.col : part.col + part.cols]
            dma_store(self.b, part.ap, src)
