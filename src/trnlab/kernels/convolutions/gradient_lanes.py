# SPDX-License-Identifier: Apache-2.0
"""Gradient of a convolution by its weight, with one pixel of each of many images in a matmul.

Both operands must have what is contracted on their partitions. Here a partition, a *lane*, is a band of rows of one
image, and a matmul takes one pixel of every lane. Taps are then other places along the free dimension of the same
transposed input, and never other partitions: each pixel of the input, and of the result's gradient, is transposed
once, not once for each tap. Taps of a row that lie side by side are streamed side by side. Sums stay in PSUM over all
images; where PSUM has no room for those of all taps and channels, the work is done in passes, which share what was
transposed if it fits on chip.

Letters: C channels of the input, O channels of the result, N images, [Y, X] pixels of the result. Rows and columns of
the input that some tap meets are counted in *steps*, from the first that is met, zeros around the input included.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from math import ceil
from typing import NamedTuple

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, BANKS, P, Workspace, dma_load, dma_store
from trnlab.kernels.convolutions.gradient_plan import (
    AccumulationPass,
    Along,
    Room,
    TapSums,
    WeightGradientProblem,
    choose,
)
from trnlab.kernels.transpose import Step, interleave
from trnlab.kernels.view import HbmView
from trnlab.kernels.windows import Taps
from trnlab.program.access import AP
from trnlab.program.builder import Builder


def weight_gradient_in_lanes(b: Builder, x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps]) -> None:
    """Record out[c, o, i, j] = sum over images and pixels of dy[o, n, y, x] and the input that tap (i, j) meets.

    x [C, N, H, W], dy [O, N, Y, X], out [C, O, taps]; x and dy have one format. Sums are fp32. Uses the SBUF that is
    free in `b` and leaves it free. Raises CapacityError where it is too little.
    """
    with b.scope():
        _Gradient(b, x, dy, out, taps).record()


def lanes_seconds(b: Builder, x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps]) -> float:
    """About what that takes. Raises CapacityError where SBUF is too little."""
    problem = _problem(x, dy, out, taps)
    return problem.seconds(*choose(problem, b.sbuf_free, b.chip), b.chip)


def _problem(x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps]) -> WeightGradientProblem:
    return WeightGradientProblem(_four(x), _four(dy), taps, x.dtype.itemsize, out.dtype.itemsize)


class _Stripe(NamedTuple):
    """What is streamed at a time: images [image, +images), columns [col, +cols) of the result's gradient."""

    image: int
    images: int
    col: int
    cols: int


class _Rows:
    """An operand [channels, N, rows, columns] by rows of a band: loaded whole or some at a time, transposed singly
    into [lanes, columns, channels]."""

    def __init__(
        self, kernel: _Gradient, view: HbmView, along: tuple[Along, Along], band: int, room: Room, side: int
    ) -> None:
        """`band`: steps from one band to the next. `side`: where raw ones lie, their first partition."""
        self.kernel, self.view, self.along, self.band, self.dtype = kernel, view, along, band, view.dtype
        self.b, self.work, self.bands, self.whole = kernel.b, kernel.work, kernel.form.lanes.bands, kernel.form.whole
        self.room, self.side = room, side
        self.above = max(along[0].low, 0) if self.whole else 0  # lines of zeros before an image
        shape = (P, ceil(room.channels / P), room.images * room.lines * room.pitch)
        slots = shape[1] * (1 if self.whole else self.bands)  # loaded one by one, of all of which a transpose reads
        self.raw = self.b.pool(shape, self.dtype, bufs=room.bufs, name="raw", slots=slots)
        self.turned = [
            self.b.tile((P, room.wide, room.channels), self.dtype, name="turned") for _ in range(room.kept)
        ]
        self.edged: dict[int, int] = {}  # by raw tile, of how many images there are zeros before and behind
        self.turn = 0  # rows of what went before
        self.filled: dict[int, tuple[int, int]] = {}  # by turned row, the columns that are not zero

    def begin(self, first: int, count: int, stripe: _Stripe, col: int, wide: int) -> None:
        """Begin with row 0 of some channels, images, and steps [col, +wide) of each row."""
        self.part, self.stripe, self.col, self.wide, self.done = (first, count), stripe, col, wide, 0
        self.turn += self.room.tall
        start, stop = self.inside = self.along[1].inside(col, wide, self.view.shape[3])
        self.first = 0 if self.whole else self.along[1].element(start)
        last = self.view.shape[3] if self.whole else self.along[1].element(stop - 1) + 1
        self.width = last - self.first if stop > start else 0

    def until(self, stop: int) -> Iterator[Step]:
        """Bring rows before `stop` on chip that are not."""
        for row in range(self.done, stop):
            if row == 0 and self.whole:
                yield self._load_whole
            elif not self.whole and row % self.room.lines == 0:
                yield partial(self._load, row)
            yield partial(self._zeros, row)
            yield from self._transposes(row)
        self.done = max(self.done, stop)

    def at(self, row: int, lanes: int, col: int, step: int, cols: int, first: int, count: int) -> AP:
        """Columns of a row, counted from the first of all, every `step`-th of so many columns from `col` on, channels
        [first, +count)."""
        tile, channels = self.turned[row % len(self.turned)][:lanes], self.room.channels
        return tile.with_dims((step * channels, cols), (1, count), skip=col * channels + first)

    # -- loads ------------------------------------------------------------------------------------------------------
    def _load_whole(self) -> None:
        """All rows of the images, with zeros before and behind."""
        self._tile = self.raw.next()
        height, first = self.view.shape[2], self.above
        buffer, images = self._tile.buffer.id, self.stripe.images
        edges = () if self.edged.get(buffer) == images else ((0, first), (first + height, self.room.lines))
        self.edged[buffer] = images
        for block, tile in self._blocks():
            for a, z in edges:
                if a < z:
                    self.b.memset(dst=self._lines(tile, 0, a, z - a), value=0.0, engine=Engine.VECTOR)
            dma_load(self.b, self._lines(tile, 0, first, height), self._source(block, tile.partitions, 0, height, 1))

    def _load(self, row: int) -> None:
        """A block of rows, from `row` on, of all bands; zeros where there are none."""
        self._tile = self.raw.next()
        rows, count = self.along[0], min(self.room.lines, self.room.tall - row)
        for (block, tile), band in product(self._blocks(), range(self.bands)):
            start = band * self.band + row
            low, high = (min(n - start, count) for n in rows.inside(start, count, self.view.shape[2]))
            for a, z in ((0, low), (high, count)):
                if a < z:
                    self.b.memset(dst=self._lines(tile, band, a, z - a), value=0.0, engine=Engine.VECTOR)
            if low < high:
                source = self._source(block, tile.partitions, rows.element(start + low), high - low, rows.size)
                dma_load(self.b, self._lines(tile, band, low, high - low), source)

    def _blocks(self) -> Iterator[tuple[int, AP]]:
        """The first of up to 128 channels each, and their part of the raw tile; none where no column is met."""
        first, channels = self.part
        for at in range(0, channels if self.width else 0, P):
            yield first + at, self._tile[self.side : self.side + min(P, channels - at), at // P]

    def _lines(self, tile: AP, band: int, row: int, rows: int) -> AP:
        """Rows of a band of all images, in the tile that they are loaded into."""
        images, line = self.stripe.images, self.room.lines * self.room.pitch
        skip = band * images * line + row * self.room.pitch
        return tile.with_dims((line, images), (self.room.pitch, rows), (1, self.width), skip=skip)

    def _source(self, channel: int, channels: int, row: int, rows: int, step: int) -> AP:
        view, image = self.view, self.stripe.image
        offset = view.offset + row * view.strides[2] + self.first * view.strides[3]
        strides = (*view.strides[:2], view.strides[2] * step, view.strides[3])
        part = view.like(offset, (*view.shape[:2], rows, self.width), strides)
        return part[channel : channel + channels, image : image + self.stripe.images].ap()

    # -- transposes -------------------------------------------------------------------------------------------------
    def _zeros(self, row: int) -> None:
        """Columns of a row that meet nothing."""
        index, (start, stop) = (self.turn + row) % len(self.turned), self.inside
        if self.filled.get(index) == (start - self.col, stop - self.col):
            return
        self.filled[index] = (start - self.col, stop - self.col)
        for a, z in ((0, start - self.col), (max(stop, start) - self.col, self.wide)):
            if a < z:
                self.b.memset(dst=self.turned[index][:, a:z], value=0.0, engine=Engine.VECTOR)

    def _transposes(self, row: int) -> Iterator[Step]:
        """A row, as many columns and blocks of channels at a time as a bank of PSUM has room for."""
        blocks = ceil(self.part[1] / P)
        pieces = [(col, block) for col in range(*self.inside) for block in range(blocks)]
        room = BANK * 4 // self.dtype.itemsize
        several = max(1, room // min(P, self.part[1]))
        if blocks > 1 and self.part[1] % P:
            several = max(1, several // blocks) * blocks
        for at in range(0, len(pieces), several):
            yield partial(self._transpose, row, pieces[at : at + several])

    def _transpose(self, row: int, pieces: list[tuple[int, int]]) -> None:
        lanes = self.stripe.images * self.bands
        bank, end, start = self.kernel.next_bank(), 0, pieces[0][0] - self.col
        for col, block in pieces:
            height = min(P, self.part[1] - block * P)
            tile = self._tile[self.side : self.side + height, block]
            data = self._pixels(tile, row, self.along[1].element(col) - self.first)
            self.b.nc_transpose(dst=bank[:lanes, end : end + height], data=data, engine=Engine.TENSOR)
            end += height
        target = self.turned[(self.turn + row) % len(self.turned)][:lanes]
        skip = start * self.room.channels + pieces[0][1] * P
        self.work.evacuate(target.with_dims((1, end), skip=skip), bank[:lanes, :end])

    def _pixels(self, tile: AP, row: int, col: int) -> AP:
        """One of each lane, bands before images."""
        images, pitch = self.stripe.images, self.room.pitch
        line = self.room.lines * pitch
        if not self.whole:
            return tile.with_dims((line, images * self.bands), skip=row % self.room.lines * pitch + col)
        size = self.along[0].size
        skip = (self.along[0].element(row) + self.above) * pitch + col
        return tile.with_dims((self.band * size * pitch, self.bands), (line, images), skip=skip)


class _Gradient:
    def __init__(self, b: Builder, x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps]) -> None:
        self.b, self.out, self.taps, self.dtype = b, out, taps, x.dtype
        self.work = Workspace(b)
        (self.c, self.images), (self.o, _, self.rows, self.cols) = x.shape[:2], dy.shape
        problem = _problem(x, dy, out, taps)
        self.down, self.along = problem.steps
        self.elements = problem.elements
        self.form, self.passes = choose(problem, b.sbuf_free, b.chip)
        lanes, rooms = self.form.lanes, problem.rooms(self.form, self.passes)
        met = Along(self.down.size, taps[0].low), Along(self.along.size, taps[1].low)
        self.x = _Rows(self, x, met, lanes.rows * self.down.pixel, rooms[0], 0)
        self.dy = _Rows(self, dy, (Along(1, 0), Along(1, 0)), lanes.rows, rooms[1], P // 2 * problem.halves)
        width = max(p.channels for p in self.passes) * self.elements
        self.results = b.pool((P, width), out.dtype, bufs=problem.results(self.passes), name="gradient")
        self.open: dict[int, tuple[AP, int]] = {}  # by output channel: a result, and how many sums it waits for
        spare = BANKS - 1 - max(u.bank for p in self.passes for u in p.units)  # banks that no sum needs
        self.accumulators = [b.psum((P, BANK), bank=i) for i in range(spare, BANKS)]
        self.banks = [b.psum((P, BANK * 4 // self.dtype.itemsize), self.dtype, bank=i) for i in range(spare)]
        self._turn = 0

    def record(self) -> None:
        """All of it."""
        before: list[Step] = []
        for prepare, multiply in self._stages():
            interleave(before, prepare)
            before = multiply
        interleave(before, [])

    def next_bank(self) -> AP:
        """A bank to transpose into."""
        self._turn += 1
        return self.banks[self._turn % len(self.banks)]

    def _stages(self) -> Iterator[tuple[list[Step], list[Step]]]:
        """For one row of a band after the other, what brings it on chip, and its products; and what follows."""
        for number, chosen in enumerate(self.passes):
            stripes = list(self._stripes())
            for stripe in stripes:
                if number == 0 or not self.form.held:
                    if len(self.x.turned) < 2 * self.down.reach(1, self.taps[0].count):
                        yield [], []  # what is still to be multiplied lies where the first rows will
                    self._begin(chosen, stripe)
                for row in range(self.form.lanes.rows):
                    ends = (
                        stripe is stripes[0] and row == 0,
                        stripe is stripes[-1] and row == self.form.lanes.rows - 1,
                    )
                    below = self.down.reach(row + 1, self.taps[0].count)
                    yield (
                        [*self.x.until(below), *self.dy.until(row + 1)],
                        [*self._products(chosen, stripe, row, ends)],
                    )
            yield [], [partial(self._finish, chosen, unit) for unit in chosen.units]

    def _stripes(self) -> Iterator[_Stripe]:
        images, cols = self.form.lanes.images, self.form.cols
        for image, col in product(range(0, self.images, images), range(0, self.cols, cols)):
            yield _Stripe(image, min(images, self.images - image), col, min(cols, self.cols - col))

    def _begin(self, chosen: AccumulationPass, stripe: _Stripe) -> None:
        held = self.form.held
        channels = (0, self.c) if held else (chosen.first, chosen.channels)
        outs = (0, self.o) if held else (chosen.out, chosen.outs)
        wide = self.along.reach(stripe.cols, self.taps[1].count)
        self.x.begin(*channels, stripe, stripe.col * self.along.pixel, wide)
        self.dy.begin(*outs, stripe, stripe.col, stripe.cols)

    def _products(
        self, chosen: AccumulationPass, stripe: _Stripe, row: int, ends: tuple[bool, bool]
    ) -> Iterator[Step]:
        """Those of one row of all bands that have it; `ends`: whether it is the first and the last."""
        lanes = stripe.images * ceil((self.rows - row) / self.form.lanes.rows)
        rows = self.x.turn + row * self.down.pixel, self.dy.turn + row
        for col, unit in product(range(stripe.cols), chosen.units):
            begun, stop = not ends[0] or col > 0, ends[1] and col == stripe.cols - 1
            yield partial(self._product, chosen, unit, rows, col, lanes, begun, stop)

    def _product(
        self,
        chosen: AccumulationPass,
        unit: TapSums,
        rows: tuple[int, int],
        col: int,
        lanes: int,
        begun: bool,
        stop: bool,
    ) -> None:
        first, out = (chosen.first, unit.out) if self.form.held else (0, unit.out - chosen.out)
        row, at = rows[0] + unit.row * self.down.tap, col * self.along.pixel + unit.col * self.along.tap
        self.b.nc_matmul(
            dst=self._total(chosen, unit),
            stationary=self.dy.at(rows[1], lanes, col, 1, 1, out, unit.outs),
            moving=self.x.at(row, lanes, at, self.along.tap, unit.taps, first, chosen.channels),
            accumulate=begun,
            stop=stop,
        )

    def _total(self, chosen: AccumulationPass, unit: TapSums) -> AP:
        width = unit.taps * chosen.channels
        return self.accumulators[unit.bank][: unit.outs, unit.at : unit.at + width]

    def _finish(self, chosen: AccumulationPass, unit: TapSums) -> None:
        """Take a sum away; write out the result that it completes."""
        if unit.out not in self.open:
            units = sum(p.first == chosen.first and u.out == unit.out for p in self.passes for u in p.units)
            self.open[unit.out] = self.results.next(), units
        result, missing = self.open[unit.out]
        tap = unit.row * self.taps[1].count + unit.col
        target = result[: unit.outs].with_dims((1, unit.taps), (self.elements, chosen.channels), skip=tap)
        self.work.evacuate(target, self._total(chosen, unit))
        self.open[unit.out] = result, missing - 1
        if missing == 1:
            del self.open[unit.out]
            part = self.out[chosen.first : chosen.first + chosen.channels, unit.out : unit.out + unit.outs]
            dma_store(self.b, part.permute(1, 0, 2, 3).ap(), result[: unit.outs, : chosen.channels * self.elements])


def _four(view: HbmView) -> tuple[int, int, int, int]:
    a, b, c, d = view.shape
    return a, b, c, d
