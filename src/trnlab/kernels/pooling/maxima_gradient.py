# SPDX-License-Identifier: Apache-2.0
"""The way back from largest elements of windows: rows of images on partitions, windows as access patterns.

An image comes on chip as it lies in memory, and the maxima are made again, along rows of the image first, then along
columns; what a window sees outside of the image is left out. Each window's gradient goes to the first of its elements
that is as large, or is NaN: first to one of the window's rows, then from what each row was given to one of its
elements. GpSimd compares, Vector selects and adds.

Letters: R images and channels, flattened; [H, W] input, [Y, X] places.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from trnlab.errors import CapacityError
from trnlab.isa.base import Engine
from trnlab.kernels.blocks import P, ViewSource, Workspace, store_rows
from trnlab.kernels.view import HbmView
from trnlab.kernels.windows import Slide, WindowTap
from trnlab.numerics.dtypes import float32, uint8
from trnlab.program.access import AP
from trnlab.program.builder import Builder

LOWEST = float("-inf")


def max_pool_gradient(b: Builder, x: HbmView, dy: HbmView, dx: HbmView, slides: tuple[Slide, Slide]) -> None:
    """Record dx [..., H, W]: of each window, dy [..., y, x] at its first largest element. Sums are fp32.

    x, dy and dx have one format. Uses the SBUF that is free in `b` and leaves it free. Raises CapacityError where it
    is too little.
    """
    with b.scope():
        _Backward(b, x, slides).record(dy, dx)


@dataclass(frozen=True)
class _Band:
    """Rows [low, high) of the image on chip, places [start, stop) of windows; a gradient of rows [own, end)."""

    low: int
    high: int
    start: int
    stop: int
    own: int
    end: int

    @property
    def rows(self) -> int:
        return self.high - self.low

    @property
    def places(self) -> int:
        return self.stop - self.start


class _Backward:
    """The image on chip in bands of its rows, each with all windows that see it."""

    def __init__(self, b: Builder, x: HbmView, slides: tuple[Slide, Slide]) -> None:
        self.b, self.x, self.slides, self.work = b, x, slides, Workspace(b)
        self.lead, (self.h, self.w) = len(x.shape) - 2, x.shape[-2:]
        self.rows, self.width = prod(x.shape[:-2]), slides[1].places
        self.down, self.along = slides[0].phases()[0], slides[1].phases()[0]
        self.bands = self._fitting()

    def _fitting(self) -> list[_Band]:
        """The fewest bands that fit."""
        most = max(self.h, self.slides[0].places)
        for count in range(1, most + 1):
            bands = self.bands_of(-(-most // count))
            need = max(map(self.nbytes, bands)) + 4096
            if need <= self.b.sbuf_free:
                self.rows_held = max(band.rows for band in bands)
                self.places_held = max(band.places for band in bands)
                return bands
        raise CapacityError(
            "windows to pool over have no room",
            code="TRN504",
            limit=f"{self.b.sbuf_free} bytes per partition left",
            got=f"{need} bytes for a row of windows",
            chip=self.b.chip.name,
            remedy="make the rows of the image shorter",
        )

    def load(self, view: HbmView, name: str, low: int, high: int, held: int, row: int, count: int) -> AP:
        """Rows [low, high) of `count` images [rows, columns], at most `held` rows, side by side on partitions."""
        width = view.shape[-1]
        tile = self.work.pool(name, (P, held * width), view.dtype, bufs=2).next()[:count, : (high - low) * width]
        ViewSource(view, rows=self.lead).load(self.b, tile, row, low * width)
        return tile

    def largest(self, x: AP, band: _Band) -> tuple[AP, AP]:
        """The largest of the windows' rows, [P, rows of the band and places], and of the windows, [P, places]."""
        width, dt = self.width, self.x.dtype
        across = self.work.pool("along rows", (P, self.rows_held * width), dt, bufs=2).next()[: x.partitions]
        across = across[:, : band.rows * width]
        result = self.work.pool("largest", (P, self.places_held * width), dt, bufs=2).next()[: x.partitions]
        result = result[:, : band.places * width]
        self._along_rows(across, x, band.rows)
        self._maximum(
            result,
            [
                (
                    (a, z) == (band.start, band.stop),
                    result[:, (a - band.start) * width : (z - band.start) * width],
                    across.with_dims(
                        (self.down.step * width, z - a),
                        (1, width),
                        skip=(t.first + a * self.down.step - band.low) * width,
                    ),
                )
                for t, a, z in self.met(band)
            ],
        )
        return across, result

    def _along_rows(self, across: AP, x: AP, rows: int) -> None:
        """The largest of the window's columns in every row of the image: a reduction, which streams one operand,
        unless neighbours follow each other and there is a fast mode for two."""
        width, step = self.width, self.along.step
        runs = self.along.runs()
        if sum(run.count for run in runs) == width and (step > 1 or not self.b.chip.has("vector_fast_modes")):
            for run in runs:
                seen = x.with_dims((self.w, rows), (step, run.count), (1, run.taps), skip=run.first)
                target = across.with_dims((width, rows), (1, run.count), skip=run.start)
                self.b.tensor_reduce(dst=target, data=seen, op="max", axes=1, engine=Engine.VECTOR)
            return
        parts = [
            (
                (t.start, t.stop) == (0, width),
                across.with_dims((width, rows), (1, t.stop - t.start), skip=t.start),
                self._columns(x, t, rows),
            )
            for t in self.along.taps
        ]
        self._maximum(across, parts)

    def met(self, band: _Band) -> list[tuple[WindowTap, int, int]]:
        """Rows of the window, and the places [a, z) of the band in which each meets the image."""
        found = [(t, max(t.start, band.start), min(t.stop, band.stop)) for t in self.down.taps]
        return [(t, a, z) for t, a, z in found if a < z]

    def _columns(self, x: AP, t: WindowTap, rows: int) -> AP:
        """What one column of the window meets, in every row of the image."""
        step = self.along.step
        return x.with_dims((self.w, rows), (step, t.stop - t.start), skip=t.first + t.start * step)

    def _maximum(self, whole: AP, parts: list[tuple[bool, AP, AP]]) -> None:
        """The largest of several sources, each with its part of the target; True for those that are all of it."""
        parts = sorted(parts, key=lambda part: not part[0])
        if len(parts) > 1 and parts[1][0]:
            (_, target, first), (_, _, second), *parts = parts
            self.b.tensor_tensor(dst=target, data1=first, data2=second, op="max", engine=Engine.VECTOR)
        elif parts and parts[0][0]:
            _, target, source = parts.pop(0)
            self.work.evacuate(target, source)
        else:
            self.b.memset(dst=whole, value=LOWEST, engine=Engine.VECTOR)
        for _, target, source in parts:
            self.b.tensor_tensor(dst=target, data1=target, data2=source, op="max", engine=Engine.VECTOR)

    def bands_of(self, size: int) -> list[_Band]:
        found = []
        for own in range(0, self.h, size):
            end = min(own + size, self.h)
            spans = [self._seen(t, own, end) for t in self.down.taps]
            spans = [(a, z) for a, z in spans if a < z] or [(0, 1)]
            start, stop = min(a for a, _ in spans), max(z for _, z in spans)
            low, high = self.down.rows(start, stop)
            found.append(_Band(min(low, own), max(high, end), start, stop, own, end))
        return found

    def _seen(self, t: WindowTap, own: int, end: int) -> tuple[int, int]:
        """The places in which a row of the window meets rows [own, end) of the image."""
        step = self.down.step
        return max(t.start, -((t.first - own) // step)), min(t.stop, -((t.first - end) // step))

    def nbytes(self, band: _Band) -> int:
        item, places, own = self.x.dtype.itemsize, band.places * self.width, band.end - band.own
        across, along, image = band.rows * self.width, own * self.width, own * self.w
        twice = item * (band.rows * self.w + across + 2 * places + image) + 4 * (along + image)
        return 2 * twice + 12 * max(along, places) + max(across, image)

    def record(self, dy: HbmView, dx: HbmView) -> None:
        """All rows, band by band."""
        held = max(band.end - band.own for band in self.bands)
        places, image, along = self.places_held * self.width, held * self.w, held * self.width
        pool = self.work.pool
        self.sums, self.along_rows = (pool(n, (P, c), float32, bufs=2) for n, c in (("sums", image), ("rows", along)))
        self.marks, self.shares = (
            pool(n, (P, max(along, places)), d, bufs) for n, d, bufs in (("marks", uint8, 4), ("share", float32, 2))
        )
        self.odd = pool("odd", (P, max(along, image, self.rows_held * self.width)), uint8, bufs=1)
        self.zero = self.b.tile((P, 1), float32, name="zero")
        self.b.memset(dst=self.zero, value=0.0, engine=Engine.GPSIMD)
        results = pool("dx", (P, image), dx.dtype, bufs=2)
        parts = [(row, band) for row in range(0, self.rows, P) for band in self.bands]
        ahead = self._prepared(dy, *parts[0])
        for i, (row, band) in enumerate(parts):
            prepared = ahead
            if i + 1 < len(parts):  # GpSimd compares these while Vector is still busy with the ones before
                ahead = self._prepared(dy, *parts[i + 1])
            total = self._gradient(prepared, band)
            result = total if dx.dtype is float32 else results.next()[: total.partitions, : total.free]
            if result is not total:
                self.b.activation(dst=result, data=total, op="copy", engine=Engine.SCALAR)
            store_rows(self.b, dx, result, row, band.own * self.w, rows=self.lead, engine=Engine.SCALAR)

    def _prepared(self, dy: HbmView, row: int, band: _Band) -> tuple[AP, AP, AP, AP]:
        """The image, the gradient of its windows, and the largest elements of these windows' rows and of these."""
        count = min(P, self.rows - row)
        x = self.load(self.x, "image", band.low, band.high, self.rows_held, row, count)
        given = self.load(dy, "dy", band.start, band.stop, self.places_held, row, count)
        return (x, given, *self.largest(x, band))

    def _gradient(self, prepared: tuple[AP, AP, AP, AP], band: _Band) -> AP:
        """Rows [own, end) of the image's gradient: from windows to rows of windows, from these to elements."""
        x, dy, across, best = prepared
        count, own = x.partitions, band.end - band.own
        along, total = self.along_rows.next()[:count, : own * self.width], self.sums.next()[:count, : own * self.w]
        for tile in (along, total):  # Scalar has nothing else to do
            zeros = self.zero[:count].with_dims((0, tile.free))
            self.b.activation(dst=tile, data=zeros, op="copy", engine=Engine.SCALAR)
        self._distribute([self._row(t, a, z, band) for t, a, z in self.met(band)], across, best, dy, along)
        below = band.own - band.low
        x, across = (
            tile.with_dims((1, own * width), skip=below * width)
            for tile, width in ((x, self.w), (across, self.width))
        )
        self._distribute([self._column(u, own) for u in self.along.taps], x, across, along, total)
        return total

    def _row(self, t: WindowTap, a: int, z: int, band: _Band) -> _Element:
        """A row of the window, in rows [a, z) of places."""
        step, width = self.down.step, self.width
        low, high = self._seen(t, band.own, band.end)
        low, high = max(low, a), max(min(high, z), max(low, a))
        return _Element(
            (z - a, width),
            _Steps((a - band.start) * width, width, 1),
            _Steps((t.first + a * step - band.low) * width, step * width, 1),
            (low - a, high - a),
            _Steps((t.first + low * step - band.own) * width, step * width, 1),
            t.first % step,
            (a, z) == (band.start, band.stop),
        )

    def _column(self, u: WindowTap, rows: int) -> _Element:
        """A column of the window, in all rows."""
        step = self.along.step
        seen = _Steps(u.first + u.start * step, self.w, step)
        everywhere = (u.start, u.stop) == (0, self.width)
        places = _Steps(u.start, self.width, 1)
        return _Element((rows, u.stop - u.start), places, seen, (0, rows), seen, u.first % step, everywhere)

    def _distribute(self, elements: list[_Element], x: AP, best: AP, rest: AP, total: AP) -> None:
        """Give each place's number in `rest` to the first of its elements that is as large as `best`, or NaN.

        Nothing is left in `rest`. `total` is zero at first. A last element that every place has gets what is left.
        """
        b = self.b
        odd = self.odd.next()[: x.partitions, : x.free]
        b.tensor_tensor(dst=odd, data1=x, data2=x, op="not_equal", engine=Engine.GPSIMD)
        begun: set[int] = set()
        for i, e in enumerate(elements):
            last = i == len(elements) - 1
            marks = None if last and e.everywhere else self._marks(e, x, odd, best)
            self._give(e, rest, marks, total, e.residue in begun)
            begun.add(e.residue)
            if not last:
                left = e.of_places(rest)
                b.select_reduce(dst=left, predicate=marks, on_true=left, on_false=0.0, reverse_pred=True)

    def _marks(self, e: _Element, x: AP, odd: AP, best: AP) -> AP:
        """Not zero where an element is the largest, or NaN."""
        b, marks = self.b, e.alike(self.marks.next()[: x.partitions])
        seen, largest, strange = e.of_image(x), e.of_places(best), e.of_image(odd)
        b.tensor_tensor(dst=marks, data1=seen, data2=largest, op="is_equal", engine=Engine.GPSIMD)
        b.tensor_tensor(dst=marks, data1=marks, data2=strange, op="max", engine=Engine.GPSIMD)
        return marks

    def _give(self, e: _Element, rest: AP, marks: AP | None, total: AP, begun: bool) -> None:
        """Add what is marked to an element's part of the sums, of which nothing is there yet if not `begun`."""
        first, last = e.inside
        if first == last:
            return
        b, target, given = self.b, e.of_total(total), e.of_places(rest, inside=True)
        if marks is None:
            if begun:
                b.tensor_tensor(dst=target, data1=target, data2=given, op="add", engine=Engine.VECTOR)
            else:
                self.work.evacuate(target, given)
            return
        inside = marks.with_dims((e.size[1], last - first), (1, e.size[1]), skip=first * e.size[1])
        share = target if not begun else e.alike(self.shares.next()[: rest.partitions], rows=last - first)
        b.select_reduce(dst=share, predicate=inside, on_true=given, on_false=0.0)
        if begun:
            b.tensor_tensor(dst=target, data1=target, data2=share, op="add", engine=Engine.VECTOR)


class _Steps(NamedTuple):
    """Where rows and columns of an access pattern lie: the first element, from row to row, from column to column."""

    skip: int
    pitch: int
    step: int

    def of(self, tile: AP, rows: int, cols: int, first: int = 0) -> AP:
        """Rows [first, +rows) of a tile."""
        return tile.with_dims((self.pitch, rows), (self.step, cols), skip=self.skip + first * self.pitch)


class _Element(NamedTuple):
    """A row or a column of the window: the rows and columns of places that it meets the image in, where these are,
    where it meets the image; the rows of places [first, last) in which that is inside of the sums, and where there.

    Elements of one `residue` share elements of the sums. `everywhere`: all places meet it.
    """

    size: tuple[int, int]
    places: _Steps
    image: _Steps
    inside: tuple[int, int]
    sums: _Steps
    residue: int
    everywhere: bool

    def of_places(self, tile: AP, *, inside: bool = False) -> AP:
        """Its part of a tile of places."""
        first, last = self.inside if inside else (0, self.size[0])
        return self.places.of(tile, last - first, self.size[1], first)

    def of_image(self, tile: AP) -> AP:
        """Its part of a tile of the image, place by place."""
        return self.image.of(tile, *self.size)

    def of_total(self, tile: AP) -> AP:
        """Its part of the sums."""
        return self.sums.of(tile, self.inside[1] - self.inside[0], self.size[1])

    def alike(self, tile: AP, rows: int | None = None) -> AP:
        """The beginning of a tile, as many rows and columns."""
        return tile.with_dims((self.size[1], self.size[0] if rows is None else rows), (1, self.size[1]))
