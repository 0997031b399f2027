# SPDX-License-Identifier: Apache-2.0
"""Convolution of few channels, as of an image's colours: elements of the window are contracted along with them.

A partition of the moving operand is a column of the window, a channel and a row of the window, so that a pass over
the PE array adds up as many products as there are partitions. For that the input is written once to HBM, with zeros
around it and its columns apart by their residue of the stride: then a partition is a run of each row that its row of
the window meets. Columns of the window that find no room are the same operand, so many elements further on.

Letters: N images, K input channels (contracted), M output channels, [H, W] input, [Y, X] places, [R, S] window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import (
    ANNOUNCED,
    BANK,
    BANKS,
    P,
    Sink,
    ViewSource,
    Workspace,
    dma_load,
    store_rows,
)
from trnlab.kernels.view import HbmView
from trnlab.kernels.windows import Slide
from trnlab.program.access import AP, hbm_view
from trnlab.program.builder import Builder

_INPUTS, _STAGED, _RESULTS = 3, 4, 4  # tiles in flight
_SHARE = 0.6  # of the free SBUF for tiles of the input
_PLACES = 2048  # of images that are taken together, about
_BAND = 4 * BANK  # places of a band of a large image, about
_SLOT = 16  # rows of a padded image on which dependencies are tracked


def few_channel_convolution(b: Builder, x: HbmView, weight: HbmView, slides: tuple[Slide, Slide], sink: Sink) -> None:
    """Record the sums over channels and the window, in fp32, as a matrix [M, N Y X] that goes to `sink`.

    x [N, K, H, W], weight [M, K, R, S], of one format. What `fits_partitions` says must hold, and X is no more than a
    bank of PSUM has columns. Uses the SBUF that is free in `b` and leaves it free. Raises CapacityError where it is
    too little.
    """
    with b.scope():
        _Convolver(b, x, weight, slides, sink).record()


def fits_partitions(channels: int, down: Slide, along: Slide) -> bool:
    """Whether a pass has room for a column of the window of each residue, and they lie evenly apart."""
    residues = min(along.stride, along.window)
    return channels * down.window * residues <= P and (along.stride == 1 or along.dilation == 1)


class ViewSink(Sink):
    """Sums go to memory as they are."""

    def __init__(self, view: HbmView) -> None:
        """view: [M, N, Y, X], whose last three dimensions are the columns."""
        self._view = view

    def open(self, b: Builder, work: Workspace, width: int) -> None:
        """Tiles for results on their way."""
        self._work, self._tiles = work, work.pool("result", (P, width), self._view.dtype, bufs=_RESULTS)

    def announce(self, b: Builder, row: int, col: int, rows: int, cols: int) -> None:
        """Nothing is loaded for it."""
        return

    def close(self, b: Builder) -> None:
        """Nothing is held back."""
        return

    def store(self, b: Builder, acc: AP, row: int, col: int) -> None:
        """See `Sink`."""
        tile = self._tiles.next()[: acc.partitions, : acc.free]
        self._work.evacuate(tile, acc)
        store_rows(b, self._view, tile, row, col)


@dataclass(frozen=True)
class _Columns:
    """Columns of the window in passes over the PE array.

    Column i meets a column of the input of residue i % `residues`, each `residues` of them `step` columns of theirs
    further on than those before. `taken` of these are contracted together.
    """

    count: int
    residues: int
    step: int
    taken: int

    @classmethod
    def of(cls, along: Slide, each: int, partitions: int) -> _Columns:
        """each: partitions that a column takes, of so many."""
        residues = min(along.stride, along.window)
        turns = ceil(along.window / residues)
        return cls(along.window, residues, along.dilation, min(turns, partitions // (each * residues)))

    @property
    def passes(self) -> list[range]:
        """The columns of each."""
        several = self.taken * self.residues
        return [range(i, min(i + several, self.count)) for i in range(0, self.count, several)]

    @property
    def shift(self) -> int:
        """Columns of the input from what a pass meets to what the next one does."""
        return self.taken * self.step

    @property
    def reach(self) -> int:
        """Columns of a partition beyond one for each place."""
        return (len(self.passes) - 1) * self.shift


@dataclass(frozen=True)
class _Padded:
    """Some images in HBM with zeros around them: [residues of the column, K, images, rows, cols]."""

    base: AP
    images: int
    rows: int
    cols: int

    @property
    def plane(self) -> int:
        """Elements of a channel of a residue."""
        return self.images * self.rows * self.cols

    def view(self, row: int, rows: int, residue: int | None = None) -> HbmView:
        """Rows [row, +rows) of all images, [images, K, rows, cols], of one residue or of all behind each other."""
        residues, channels = self.base.buffer.shape[:2]
        first, planes = (0, residues * channels) if residue is None else (residue * channels, channels)
        shape, strides = (self.images, planes, rows, self.cols), (self.rows * self.cols, self.plane, self.cols, 1)
        return HbmView(self.base.buffer, first * self.plane + row * self.cols, shape, strides)


class _Convolver:
    def __init__(self, b: Builder, x: HbmView, weight: HbmView, slides: tuple[Slide, Slide], sink: Sink) -> None:
        self.b, self.x, self.weight, self.sink, self.work = b, x, weight, sink, Workspace(b)
        (self.down, self.along), (self.images, self.k) = slides, x.shape[:2]
        self.m, self.rows, self.cols = weight.shape[0], self.down.places, self.along.places
        self.each = self.k * self.down.window  # partitions of a column of the window
        # Results of few channels lie on the first partitions, and half of the DMA engines serve these: the input
        # comes by the others.
        apart = self.m <= P // 2 and self.each * min(self.along.stride, self.along.window) <= P // 2
        self.first = P // 2 if apart else 0
        self.columns = _Columns.of(self.along, self.each, P - self.first)
        self.padded = self.cols + self.columns.reach + (self.columns.taken - 1) * self.columns.step
        met = (self.rows - 1) * self.down.stride + (self.down.window - 1) * self.down.dilation + 1
        self.apart = ceil(met / self.down.stride)  # rows of places from one image to the next
        # columns from row to row of the input on chip: rows that follow each other come as one run
        self.pitch = self.padded if self.down.stride == 1 else self.cols + self.columns.reach
        self.group = max(1, min(self.images, _PLACES // (self.rows * self.cols)))
        self.band = self._band()
        self.together = min(self.group, max(1, BANK // (self.rows * self.cols)))  # images in a tile of PSUM
        self.tile_rows = min(self.rows, BANK // self.cols)
        self.banks = [b.psum((P, BANK), bank=i) for i in range(BANKS)]
        self._turn = self._announced = self._stored = 0

    def _band(self) -> int:
        """Rows of places whose input is on chip together: those of a group of images, else a multiple of a tile's."""
        room = int(self.b.sbuf_free * _SHARE) // _INPUTS // (self.pitch * self.x.dtype.itemsize)
        if self.group > 1 and self._held(self.group, self.rows) <= room:
            return self.rows
        self.group, tile = 1, min(self.rows, BANK // self.cols)
        most = min(room, max(tile, _BAND // self.cols // tile * tile))
        return min(self.rows, max(tile, most // tile * tile))

    def _held(self, images: int, rows: int) -> int:
        """Rows of a tile of the input."""
        return (images - 1) * self.apart + rows

    def record(self) -> None:
        """All of it: images are padded a group ahead, so that their loads wait for no results."""
        self._make_tiles()
        self.sink.open(self.b, self.work, BANK)
        groups = [(n, min(self.group, self.images - n)) for n in range(0, self.images, self.group)]
        self._tiles = [tile for group in groups for tile in self._tiles_of(*group)]
        padded = [self._pad(*group) for group in groups[:1]]
        self._load_weights()
        for i in range(len(groups)):
            padded += [self._pad(*group) for group in groups[i + 1 : i + 2]]
            for start in range(0, self.rows, self.band):
                stop = min(start + self.band, self.rows)
                self._hand_on(self._load(padded[i], start, stop), padded[i].images, start, stop)
        self.sink.close(self.b)

    # -- the input with zeros around it -------------------------------------------------------------------------
    def _make_tiles(self) -> None:
        dt, residues, passes = self.x.dtype, self.columns.residues, len(self.columns.passes)
        self.staged = self.work.pool("staged", (P, residues, self.padded), dt, bufs=_STAGED)
        for tile, residue in product(self.staged.tiles, range(residues)):
            start, count, _ = self._met(residue)
            for low, high in ((0, start), (start + count, self.padded)):
                if low < high:
                    self.b.memset(dst=tile[:, residue, low:high], value=0.0, engine=Engine.GPSIMD)
        self.zeros = self.b.tile((P, self.padded), dt, name="zeros")
        self.b.memset(dst=self.zeros, value=0.0, engine=Engine.GPSIMD)
        self.weights = self.b.tile((P, passes, self.m), dt, name="weights")[self.first :]
        held = self._held(self.group, self.band) * self.pitch
        self.inputs = self.work.pool("input", (P, held), dt, bufs=_INPUTS)

    def _pad(self, first: int, images: int) -> _Padded:
        """Write some images to HBM as they are read."""
        down, rows = self.down, self.apart * self.down.stride
        shape = (self.columns.residues, self.k, images, rows, self.padded)
        base = self.b.scratch("padded", shape, self.x.dtype, slot_rows=_SLOT)
        into = _Padded(base, images, rows, self.padded)
        low = min(max(0, -down.low), down.size)  # rows of the input that are met
        high = max(low, min(down.size, rows - down.low))
        for start, stop in ((0, min(low + down.low, rows)), (max(high + down.low, 0), rows)):
            for row in range(start, stop):
                self._store_zeros(into.view(row, 1))
        if low < high:
            self._store_image(into, self.x[first : first + images, :, low:high], low + down.low)
        return into

    def _store_zeros(self, view: HbmView) -> None:
        """A row of all planes."""
        total = view.shape[0] * view.shape[1]
        for at in range(0, total, P):
            store_rows(self.b, view, self.zeros[: min(P, total - at)], at, 0, rows=2)

    def _store_image(self, into: _Padded, x: HbmView, row: int) -> None:
        """All of an input that is not cropped any more, its first row as a row of each plane."""
        total = into.images * self.k * x.shape[2]
        for at in range(0, total, P):
            count = min(P, total - at)
            tile = self.staged.next()[:count]
            self._stage(tile, x, at)
            for residue in range(self.columns.residues):
                store_rows(self.b, into.view(row, x.shape[2], residue), tile[:, residue], at, 0, rows=3)

    def _stage(self, tile: AP, x: HbmView, row: int) -> None:
        """Rows of the input, their columns apart by residue, between zeros."""
        stride = self.along.stride
        if stride == 1:
            start, count, first = self._met(0)
            if count:
                seen = x[:, :, :, first : first + count]
                ViewSource(seen, rows=3).load(self.b, tile[:, 0, start : start + count], row, 0)
            return
        raw = self.work.pool("raw", (P, x.shape[3]), x.dtype, bufs=_STAGED).next()[: tile.partitions]
        ViewSource(x, rows=3).load(self.b, raw, row, 0)
        for residue in range(self.columns.residues):
            start, count, first = self._met(residue)
            if count:
                into = tile[:, residue, start : start + count]
                self.work.evacuate(into, raw.with_dims((stride, count), skip=first))

    def _met(self, residue: int) -> tuple[int, int, int]:
        """Columns [start, +count) of a residue that are columns of the input, from `first` on."""
        low, stride = self.along.low - residue, self.along.stride
        start = min(max(0, -(-low // stride)), self.padded)
        stop = min(self.padded, (self.along.size - 1 + low) // stride + 1)
        return start, max(stop - start, 0), start * stride - low

    # -- operands -------------------------------------------------------------------------------------------------
    def _load_weights(self) -> None:
        """[columns of the window, K, R] on partitions, for each pass. They are few, and may lie in any order."""
        base, offset, (to_m, to_k, to_row, to_col) = self.weight.base, self.weight.offset, self.weight.strides
        rest = (to_k, self.k), (to_row, self.down.window), (to_m, self.m)
        for i, columns in enumerate(self.columns.passes):
            src = hbm_view(base, offset + columns[0] * to_col, ((to_col, len(columns)), *rest))
            dma_load(self.b, self.weights[: len(columns) * self.each, i], src)

    def _load(self, padded: _Padded, start: int, stop: int) -> AP:
        """The moving operand of rows [start, stop) of places, in one transfer."""
        down, cols, rows = self.down, padded.cols, self._held(padded.images, stop - start)
        width = self.cols + self.columns.reach
        runs = ((1, (rows - 1) * cols + width),) if down.stride == 1 else ((down.stride * cols, rows), (1, width))
        planes = self.columns.residues * self.k
        dims = (self.columns.step, self.columns.taken), (padded.plane, planes), (down.dilation * cols, down.window)
        src = hbm_view(padded.base.buffer, start * down.stride * cols, (*dims, *runs))
        tile = self.inputs.next()[self.first : self.first + self.columns.taken * planes * down.window]
        dma_load(self.b, tile[:, : prod(count for _, count in runs)], src)
        return tile

    # -- the products -----------------------------------------------------------------------------------------------
    def _tiles_of(self, first: int, images: int) -> Iterator[tuple[int, int, int, int]]:
        """Row, column, rows and columns of the tiles that the sink is handed of a group, in their order."""
        for start in range(0, self.rows, self.band):
            for m, n, at, rows in self._places(images, start, min(start + self.band, self.rows)):
                count = min(self.together, images - n)
                yield m, ((first + n) * self.rows + at) * self.cols, min(P, self.m - m), count * rows * self.cols

    def _places(self, images: int, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Output channel, image, first row and rows of each tile of a band."""
        for m, n in product(range(0, self.m, P), range(0, images, self.together)):
            for at in range(start, stop, self.tile_rows):
                yield m, n, at, min(self.tile_rows, stop - at)

    def _hand_on(self, tile: AP, images: int, start: int, stop: int) -> None:
        """All places of a band to the sink."""
        for m, n, at, rows in self._places(images, start, stop):
            while self._announced < min(self._stored + ANNOUNCED, len(self._tiles)):
                self.sink.announce(self.b, *self._tiles[self._announced])
                self._announced += 1
            row, column, channels, width = self._tiles[self._stored]
            acc = self.banks[self._turn % BANKS][:channels, :width]
            self._turn += 1
            several, skip = min(self.together, images - n), (n * self.apart + at - start) * self.pitch
            seen = (self.apart * self.pitch, several), (self.pitch, rows), (1, self.cols)
            passes = self.columns.passes
            for i, columns in enumerate(passes):
                height = len(columns) * self.each
                self.b.nc_matmul(
                    dst=acc,
                    stationary=self.weights[:height, i, m : m + channels],
                    moving=tile[:height].with_dims(*seen, skip=skip + i * self.columns.shift),
                    accumulate=i > 0,
                    stop=i == len(passes) - 1,
                )
            self.sink.store(self.b, acc, row, column)
            self._stored += 1
