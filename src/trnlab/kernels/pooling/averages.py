# SPDX-License-Identifier: Apache-2.0
"""Averages of windows, and their gradient: images on partitions, sums of windows as reductions.

A reduction streams one operand at a cycle an element, where an addition of two takes two cycles. So sums are taken
along rows, and of these along columns. Between the two, an image lies column by column: an engine is half as fast
where it steps from row to row. The gradient is such a sum, too, of the shares that windows give, for each residue by
the strides. What a window sees outside of its image is left out. Sums are fp32, and rounded once.

Letters: as in `tiles`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from math import frexp

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import P
from trnlab.kernels.pooling.tiles import ALIGNED, BandCutter, ImageBand, ImageTile, ImageTiler
from trnlab.kernels.view import HbmView
from trnlab.kernels.windows import Slide
from trnlab.numerics.dtypes import float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder

LARGEST = 2048  # elements of a partition that are summed at once, or sums, whichever are more
HELD = 2  # tiles in flight between what is loaded and what is stored


@dataclass(frozen=True)
class Divisors:
    """What sums are divided by, row by row and column by column of their places: the product of both."""

    down: Sequence[float]
    along: Sequence[float]


def window_averages(b: Builder, x: HbmView, out: HbmView, slides: tuple[Slide, Slide], divisors: Divisors) -> None:
    """Record out[..., y, x] = the sum of each window of x [..., H, W], divided; minus zero becomes zero.

    x and out have one format. Uses the SBUF that is free in `b` and leaves it free. Raises CapacityError where it is
    too little.
    """
    with b.scope():
        _Summer(b, x, out, slides, divisors, shares=False).record()


def window_averages_gradient(
    b: Builder, dy: HbmView, dx: HbmView, slides: tuple[Slide, Slide], divisors: Divisors
) -> None:
    """Record dx [..., H, W] = the sum, at each element, of the divided dy [..., y, x] of all windows that see it.

    `slides` say how the windows lie over dx. Otherwise as `window_averages`.
    """
    back = slides[0].gradient(), slides[1].gradient()
    with b.scope():
        _Summer(b, dy, dx, back, divisors, shares=True).record()


@dataclass(frozen=True)
class _Span:
    """`count` sums from `at` on, `step` apart, of `taps` elements each: those of the first from `first` on, those of
    the next `stride` further on. Both are counted from where a band begins."""

    at: int
    step: int
    count: int
    first: int
    stride: int
    taps: int


@dataclass(frozen=True)
class _Band(ImageBand):
    """How its sums are made."""

    spans: tuple[_Span, ...]

    @property
    def adds(self) -> bool:
        """Whether any sum has more than one element."""
        return any(s.taps > 1 for s in self.spans)

    @property
    def streamed(self) -> int:
        """Elements that reductions read."""
        return sum(s.taps * s.count for s in self.spans if s.taps > 1)

    @property
    def plain(self) -> bool:
        """Whether sums are what they are sums of, one by one."""
        return self.spans == (_Span(0, 1, self.seen, 0, 1, 1),) and self.seen == self.sums

    @property
    def full(self) -> bool:
        """Whether every sum has an element."""
        return sum(s.count for s in self.spans) == self.sums


_Tile = ImageTile[_Band]


def _band(slide: Slide, start: int, stop: int) -> _Band:
    found = []
    for phase in slide.phases():
        for run in phase.runs():
            a, z = (-(-(edge - phase.residue) // slide.spread) for edge in (start, stop))
            a, z = max(a, run.start), min(z, run.start + run.count)
            if a < z:
                first, at = run.first + (a - run.start) * phase.step, phase.residue + a * slide.spread - start
                found.append(_Span(at, slide.spread, z - a, first, phase.step, run.taps))
    low = min((s.first for s in found), default=0)
    high = max((s.first + (s.count - 1) * s.stride + s.taps for s in found), default=1)
    spans = tuple(_Span(s.at, s.step, s.count, s.first - low, s.stride, s.taps) for s in found)
    return _Band(start, stop, low, high, spans)


class _Summer(ImageTiler[_Band]):
    def __init__(
        self, b: Builder, x: HbmView, out: HbmView, slides: tuple[Slide, Slide], divisors: Divisors, *, shares: bool
    ) -> None:
        """`shares`: what is summed is divided, not the sums."""
        self.divisors, self.shares = divisors, shares
        self.on_vector = self.on_scalar = self.on_gpsimd = 0.0  # seconds of work given to each
        down, along = (BandCutter(slide.size, slide.places, partial(_band, slide)) for slide in slides)
        super().__init__(b, x, out, (down, along))
        self.results = self.stores if shares else self.stores + self._room()
        self.burst = 1 if shares else self.results - 1  # of results that are stored together
        by_gpsimd = b.chip.has("parallel_ports") and any(down.adds for down, _ in self.bands)
        self.storing = Engine.SCALAR if by_gpsimd else Engine.GPSIMD  # a trigger waits in the order of its engine

    def largest(self) -> int:
        """See `ImageTiler`."""
        return LARGEST

    def nbytes(self, tile: _Tile) -> int:
        """See `ImageTiler`."""
        item, wide = self.dtype.itemsize, HELD * float32.itemsize
        apart = self.shares and self.dtype is not float32 and self.b.chip.has("parallel_ports")
        divided = tile.seen + apart * tile.sums if self.shares else tile.sums
        return item * (self.loads * tile.seen + self.stores * tile.sums) + wide * (tile.between + divided) + ALIGNED

    def _room(self) -> int:
        """For how many more results there is room."""
        free = self.b.sbuf_free - max(map(self.nbytes, self.held))
        return free // (max(tile.sums for tile in self.held) * self.dtype.itemsize + 64)

    def record(self) -> None:
        """All images, band by band. Averages are stored when there is no more room: DMA engines lose time where
        stores take turns with loads. The stores of a gradient are longer than its loads, and begin at once."""
        self.zero = self.b.tile((P, 1), float32, name="zero")
        self.b.memset(dst=self.zero, value=0.0, engine=Engine.GPSIMD)
        tiles, done = list(self.tiles()), list[tuple[_Tile, AP]]()
        for i, tile in enumerate(tiles):
            done.append((tile, self._averages(tile)))
            if len(done) == self.burst or i == len(tiles) - 1:
                for each in done:
                    self.store(*each, self.storing)
                done.clear()

    def _averages(self, tile: _Tile) -> AP:
        x = self.load(tile)
        result = self.new("averages", self.dtype, self.results, tile, "sums")
        if self.shares:
            shares = self.new("shares", float32, HELD, tile, "seen")
            self._divide(shares, x, tile, (tile.down.low, tile.down.high), (tile.along.low, tile.along.high))
            self._sum_shares(result, shares, tile)
        else:
            sums = self.new("sums", float32, HELD, tile, "sums")
            self._sum(sums, x, tile, self._adder(tile))
            self._divide(result, sums, tile, (tile.down.start, tile.down.stop), (tile.along.start, tile.along.stop))
        return result

    # -- sums -----------------------------------------------------------------------------------------------------
    def _adder(self, tile: _Tile) -> Engine:
        """Who sums along columns: where GpSimdE does not take turns with VectorE, whichever is done sooner."""
        chip, across = self.b.chip, tile.images * tile.along.sums
        self.on_vector += tile.rows * tile.along.streamed / chip.vector.clock.value
        on_vector = self.on_vector + across * tile.down.streamed / chip.vector.clock.value
        adds = across * sum((s.taps - 1) * s.count for s in tile.down.spans)
        on_gpsimd = self.on_gpsimd + adds * chip.gpsimd.elementwise.value / chip.gpsimd.clock.value
        if chip.has("parallel_ports") and tile.down.adds and on_gpsimd < on_vector:
            self.on_gpsimd = on_gpsimd
            return Engine.GPSIMD
        self.on_vector = on_vector
        return Engine.VECTOR

    def _sum_shares(self, dst: AP, x: AP, tile: _Tile) -> None:
        """A reduction rounds its sums once. GpSimdE adds one after the other, in float32."""
        engine = self._adder(tile)
        if engine is Engine.VECTOR or dst.dtype is float32:
            self._sum(dst, x, tile, engine)
            return
        sums = self.new("sums", float32, HELD, tile, "sums")
        self._sum(sums, x, tile, engine)
        self.b.activation(dst=dst, data=sums, op="copy", engine=Engine.SCALAR)

    def _sum(self, dst: AP, x: AP, tile: _Tile, engine: Engine) -> None:
        """The sum of each window: along rows, then along columns by an engine."""
        down, along = tile.down, tile.along
        if down.plain:
            self._along_rows(dst, x, tile, (along.sums, 1))
            return
        between = self.new("along rows", float32, HELD, tile, "between")
        pitches = (1, tile.rows) if down.adds else (along.sums, 1)
        self._along_rows(between, x, tile, pitches)
        self._clear(dst, down)
        row, column = pitches
        for s in down.spans:
            target = dst.with_dims(
                (down.sums * along.sums, tile.images),
                (s.step * along.sums, s.count),
                (1, along.sums),
                skip=s.at * along.sums,
            )
            dims = (down.seen * row, tile.images), (s.stride * row, s.count), (column, along.sums)
            self._add(target, between, s, dims, s.first * row, row, engine)

    def _along_rows(self, dst: AP, x: AP, tile: _Tile, pitches: tuple[int, int]) -> None:
        """The sums along each row, from row to row and from column to column so far apart."""
        row, column = pitches
        rows, seen = tile.rows, tile.along.seen
        self._clear(dst, tile.along)
        for s in tile.along.spans:
            places, sources = ((column * s.step, s.count), (row, rows)), ((s.stride, s.count), (seen, rows))
            if column < row:
                places, sources = places[::-1], sources[::-1]
            self._add(dst.with_dims(*places, skip=s.at * column), x, s, sources, s.first, 1)

    def _clear(self, dst: AP, band: _Band) -> None:
        if not band.full:
            self.b.memset(dst=dst, value=0.0, engine=Engine.GPSIMD)

    def _add(
        self,
        dst: AP,
        x: AP,
        span: _Span,
        dims: tuple[tuple[int, int], ...],
        skip: int,
        apart: int,
        engine: Engine = Engine.VECTOR,
    ) -> None:
        """dst = the sums of `taps` elements of x, so far apart."""
        if span.taps > 1 and engine is Engine.GPSIMD:
            total, *others = (x.with_dims(*dims, skip=skip + i * apart) for i in range(span.taps))
            for part in others:
                self.b.tensor_tensor(dst=dst, data1=total, data2=part, op="add", engine=engine)
                total = dst
        elif span.taps > 1:
            data = x.with_dims(*dims, (apart, span.taps), skip=skip)
            self.b.tensor_reduce(dst=dst, data=data, op="add", axes=1, engine=engine)
        else:
            self._copy(dst, x.with_dims(*dims, skip=skip))

    def _copy(self, dst: AP, x: AP) -> None:
        """On VectorE or ScalarE, whichever is done sooner."""
        chip = self.b.chip
        on_vector, on_scalar = x.free / chip.vector.clock.value, x.free / chip.scalar.clock.value
        if self.on_vector + on_vector < self.on_scalar + on_scalar:
            self.on_vector += on_vector
            self.b.tensor_copy(dst=dst, src=x, engine=Engine.VECTOR)
        else:
            self.on_scalar += on_scalar
            self.b.activation(dst=dst, data=x, op="copy", engine=Engine.SCALAR)

    # -- division -------------------------------------------------------------------------------------------------
    def _divide(self, dst: AP, x: AP, tile: _Tile, rows: tuple[int, int], columns: tuple[int, int]) -> None:
        """dst = x [images, rows, columns], divided; zero is added, which makes zero of minus zero."""
        height, width = rows[1] - rows[0], columns[1] - columns[0]
        down, along = _alike(self.divisors.down[slice(*rows)]), _alike(self.divisors.along[slice(*columns)])
        for (top, lines, a), (left, cells, c) in product(down, along):
            part = (height * width, tile.images), (width, lines), (1, cells)
            skip = top * width + left
            self._divide_by(a * c, dst.with_dims(*part, skip=skip), x.with_dims(*part, skip=skip))

    def _divide_by(self, divisor: float, dst: AP, x: AP) -> None:
        """On ScalarE, which multiplies by the reciprocal, where that is exact, or rounded away with the result."""
        b = self.b
        if abs(frexp(divisor)[0]) == 0.5 or self.dtype is not float32:
            zero = self.zero[: x.partitions]
            b.activation(dst=dst, data=x, op="copy", scale=1 / divisor, bias=zero, engine=Engine.SCALAR)
            self.on_scalar += x.free / b.chip.scalar.clock.value
        else:
            self.on_vector += x.free / b.chip.vector.clock.value
            b.tensor_scalar(
                dst=dst, data=x, op0="divide", operand0=divisor, op1="add", operand1=0.0, engine=Engine.VECTOR
            )


def _alike(numbers: Sequence[float]) -> Iterator[tuple[int, int, float]]:
    """Runs of equal numbers: where each begins, how many they are, which."""
    at = 0
    for number, run in groupby(numbers):
        count = len(list(run))
        yield at, count, number
        at += count
