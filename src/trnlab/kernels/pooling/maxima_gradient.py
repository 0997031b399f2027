# SPDX-License-Identifier: Apache-2.0
"""The way back from largest elements of windows: rows of images on partitions, windows as access patterns.

An image comes on chip as it lies in memory, and the maxima are made again, along rows of the image first, then along
columns; what a window sees outside of the image is left out. Each window's gradient goes to the first of its elements
that is its maximum: first to one of the window's rows, then from what each row was given to one of its elements.

GpSimd compares: the bits, since a maximum is one of the elements, and NaN is not equal to itself. Zeros have one sign
before. VectorE selects and adds, a few rows at a time: what is given away lies in PSUM then, because an engine takes
two operands at a cycle an element from there, and at two where both are in SBUF.

Letters: R images and channels, flattened; [H, W] input, [Y, X] places.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from math import prod
from typing import NamedTuple

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, BANKS, P, ViewSource, Workspace, store_rows
from trnlab.kernels.pooling.room import no_room
from trnlab.kernels.view import HbmView
from trnlab.kernels.windows import Slide, WindowTap
from trnlab.numerics.dtypes import float32, int16, int32, uint8
from trnlab.program.access import AP
from trnlab.program.builder import Builder

LOWEST = float("-inf")
FEWEST_ROWS = 2  # given away at a time: windows that see two parts of an image are looked at twice


def max_pool_gradient(b: Builder, x: HbmView, dy: HbmView, dx: HbmView, slides: tuple[Slide, Slide]) -> None:
    """Record dx [..., H, W]: of each window, dy [..., y, x] at its first largest element. Sums are fp32.

    NaN is larger than all; of several with different bits it is one of them. x, dy and dx have one format. Uses the
    SBUF that is free in `b` and leaves it free. Raises CapacityError where it is too little.
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
        self.part = self._rows_of_a_bank()
        self.bands = self._fitting()

    def _rows_of_a_bank(self) -> int:
        """Rows of an image that are given their gradients at a time, from a bank of PSUM; 0 where none would do."""
        for size in range(min(BANK // self.width, self.h), FEWEST_ROWS - 1, -1):
            parts = self.bands_of(size)
            if max(max(part.end - part.own, part.places) for part in parts) * self.width <= BANK:
                return size - size % self.down.step if size > self.down.step else size
        return 0

    def _fitting(self) -> list[_Band]:
        """The fewest bands that fit."""
        for count in range(1, self.h + 1):
            bands = self.bands_of(-(-self.h // count))
            need = max(map(self.nbytes, bands)) + 4096
            if need <= self.b.sbuf_free:
                self.rows_held = max(band.rows for band in bands)
                self.places_held = max(band.places for band in bands)
                return bands
        raise no_room(self.b, f"{need} bytes for a row of windows", "make the rows of the image shorter")

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

    def bands_of(self, size: int, first: int = 0, last: int = 0) -> list[_Band]:
        """Rows [first, last) of the image, or all, so many at a time."""
        found, last = [], last or self.h
        for own in range(first, last, size):
            end = min(own + size, last)
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
        """Bytes per partition of all tiles that a band takes."""
        item, places, own = self.x.dtype.itemsize, band.places * self.width, band.end - band.own
        across, along, image = band.rows * self.width, own * self.width, own * self.w
        given = BANK if self.part else along
        twice = item * (2 * band.rows * self.w + across + 2 * places + image) + 4 * (given + image)
        twice += len(self.down.taps) * places + len(self.along.taps) * along
        return 2 * twice + (0 if self.part else 8 * max(along, places))

    def record(self, dy: HbmView, dx: HbmView) -> None:
        """All rows, band by band."""
        held = max(band.end - band.own for band in self.bands)
        self.places, self.image, self.given = self.places_held * self.width, held * self.w, held * self.width
        along, pool = BANK if self.part else self.given, self.work.pool
        self.sums, self.along_rows = (
            pool(n, (P, c), float32, bufs=2) for n, c in (("sums", self.image), ("rows", along))
        )
        self.banks = [self.b.psum((P, BANK), bank=i) for i in range(BANKS)] if self.part else []
        self.turns = cycle(range(BANKS // 2)), cycle(range(BANKS // 2, BANKS))  # what is given away, shares
        self.zero = self.b.tile((P, 1), float32, name="zero")
        self.b.memset(dst=self.zero, value=0.0, engine=Engine.GPSIMD)
        results = pool("dx", (P, self.image), dx.dtype, bufs=2)
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

    def _prepared(self, dy: HbmView, row: int, band: _Band) -> _Prepared:
        """The gradient of a band's windows, and what of it goes to each row of these, and then to each column."""
        count = min(P, self.rows - row)
        x = self._of_one_zero(self.load(self.x, "image", band.low, band.high, self.rows_held, row, count))
        given = self.load(dy, "dy", band.start, band.stop, self.places_held, row, count)
        across, best = self.largest(x, band)
        rows = [self._row(t, a, z, band) for t, a, z in self.met(band)]
        columns = [self._column(u, band) for u in self.along.taps]
        down = self._all_marks("row", self.places, rows, across, best)
        below = band.own - band.low
        x, across = (
            tile.with_dims((1, tile.free - below * n), skip=below * n)
            for tile, n in ((x, self.w), (across, self.width))
        )
        return _Prepared(given, down, self._all_marks("column", self.given, columns, x, across))

    def _of_one_zero(self, x: AP) -> AP:
        """x with zero added, which makes zero of minus zero; ScalarE has little else to do."""
        clean = self.work.pool("clean", (P, self.rows_held * self.w), x.dtype, bufs=2).next()[
            : x.partitions, : x.free
        ]
        self.b.activation(
            dst=clean, data=x, op="copy", scale=1.0, bias=self.zero[: x.partitions], engine=Engine.SCALAR
        )
        return clean

    def _all_marks(self, name: str, size: int, elements: list[_Element], x: AP, best: AP) -> list[AP | None]:
        """Where each element of the windows is their largest; None for the last if it gets all that is left."""
        found: list[AP | None] = []
        for i, e in enumerate(elements):
            if e.everywhere and i == len(elements) - 1:
                found.append(None)
                continue
            marks = self.work.pool(f"{name} {i}", (P, size), uint8, bufs=2).next()[: x.partitions]
            seen, largest = (tile.cast(int16 if tile.dtype.itemsize == 2 else int32) for tile in (x, best))
            self.b.tensor_tensor(
                dst=e.alike(marks),
                data1=e.of_image(seen),
                data2=e.of_places(largest),
                op="is_equal",
                engine=Engine.GPSIMD,
            )
            found.append(marks)
        return found

    def _gradient(self, prepared: _Prepared, band: _Band) -> AP:
        """Rows [own, end) of the image's gradient."""
        own = band.end - band.own
        total = self.sums.next()[: prepared.dy.partitions, : own * self.w]
        met = [(u, u.start, u.stop) for u in self.along.taps]
        for start, count in _left_out(met, self.along.step, 0, self.w):
            self._clear(total.with_dims((self.w, own), (1, count), skip=start))
        for part in self.bands_of(self.part, band.own, band.end) if self.part else [band]:
            first, last = ((row - band.own) * self.w for row in (part.own, part.end))
            self._give_part(prepared, band, part, total[:, first:last])
        return total

    def _give_part(self, prepared: _Prepared, band: _Band, part: _Band, total: AP) -> None:
        """From windows to rows of windows, from these to elements, of a part of a band."""
        width, met = self.width, self.met(part)
        along = self.along_rows.next()[: total.partitions, : (part.end - part.own) * width]
        for start, count in _left_out(met, self.down.step, part.own, part.end):
            self._clear(along[:, start * width : (start + count) * width])
        dy = prepared.dy[:, (part.start - band.start) * width : (part.stop - band.start) * width]
        marks = {t: (a, found) for (t, a, _), found in zip(self.met(band), prepared.rows)}
        rows = [(self._row(t, a, z, part), marks[t][1], (a - marks[t][0]) * width) for t, a, z in met]
        self._distribute(rows, self._near(dy), along)
        below = part.own - band.own
        columns = [
            (self._column(u, part), found, below * (u.stop - u.start))
            for u, found in zip(self.along.taps, prepared.columns)
        ]
        self._distribute(columns, self._near(along), total)

    def _clear(self, tile: AP) -> None:
        """Zeros, by ScalarE, which has little else to do."""
        zeros = self.zero[: tile.partitions].with_dims((0, tile.free))
        self.b.activation(dst=tile, data=zeros, op="copy", engine=Engine.SCALAR)

    def _near(self, tile: AP) -> AP:
        """A copy in PSUM, where that is used."""
        if not self.part:
            return tile
        copy = self.banks[next(self.turns[0])][: tile.partitions, : tile.free]
        self.b.activation(dst=copy, data=tile, op="copy", engine=Engine.SCALAR)
        return copy

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

    def _column(self, u: WindowTap, band: _Band) -> _Element:
        """A column of the window, in all rows."""
        step, rows = self.along.step, band.end - band.own
        seen = _Steps(u.first + u.start * step, self.w, step)
        everywhere = (u.start, u.stop) == (0, self.width)
        places = _Steps(u.start, self.width, 1)
        return _Element((rows, u.stop - u.start), places, seen, (0, rows), seen, u.first % step, everywhere)

    def _distribute(self, elements: list[tuple[_Element, AP | None, int]], rest: AP, total: AP) -> None:
        """Give each place's number in `rest` to the first of its elements that is marked, from so many marks on.

        Nothing is left in `rest`. `total` is zero where the first element of a residue leaves something out. A last
        element without marks gets what is left.
        """
        begun: set[int] = set()
        for i, (e, whole, skip) in enumerate(elements):
            marks = None if whole is None else e.alike(whole, skip=skip)
            self._give(e, rest, marks, total, e.residue in begun)
            begun.add(e.residue)
            if i < len(elements) - 1:
                assert marks is not None
                left = e.of_places(rest)
                self.b.select_reduce(dst=left, predicate=marks, on_true=left, on_false=0.0, reverse_pred=True)

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
        share = e.alike(self._share()[: rest.partitions], rows=last - first) if begun else target
        b.select_reduce(dst=share, predicate=inside, on_true=given, on_false=0.0)
        if begun:
            b.tensor_tensor(dst=target, data1=target, data2=share, op="add", engine=Engine.VECTOR)

    def _share(self) -> AP:
        """Room for what an element is given."""
        if self.part:
            return self.banks[next(self.turns[1])]
        return self.work.pool("share", (P, max(self.given, self.places)), float32, bufs=2).next()


def _left_out(met: list[tuple[WindowTap, int, int]], step: int, low: int, high: int) -> list[tuple[int, int]]:
    """Elements [low, high) that the first tap of their residue by the steps does not meet, in runs from `low` on."""
    firsts = {t.first % step: range(t.first + a * step, t.first + z * step, step) for t, a, z in reversed(met)}
    bare = [i for i in range(low, high) if i not in firsts.get(i % step, ())]
    runs: list[tuple[int, int]] = []
    for i in bare:
        start, count = runs[-1] if runs else (0, 0)
        if runs and start + count == i - low:
            runs[-1] = start, count + 1
        else:
            runs.append((i - low, 1))
    return runs


class _Prepared(NamedTuple):
    """What a band gives away: the gradient of its windows, and marks of each of their rows and columns; None for what
    gets all that is left."""

    dy: AP
    rows: list[AP | None]
    columns: list[AP | None]


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

    def alike(self, tile: AP, rows: int | None = None, skip: int = 0) -> AP:
        """As many rows and columns of a tile, from an element on."""
        dims = (self.size[1], self.size[0] if rows is None else rows), (1, self.size[1])
        return tile.with_dims(*dims, skip=skip)
