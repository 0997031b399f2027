# SPDX-License-Identifier: Apache-2.0
"""Largest elements of windows, and the way back: rows of images on partitions, windows as access patterns.

An image comes on chip as it lies in memory. The maximum goes along rows of the image first, then along columns; what
a window sees outside of the image is left out. On the way back the maxima are made again, and each window's gradient
goes to the first of its elements that is as large, or is NaN.

Letters: R images and channels, flattened; [H, W] input, [Y, X] places.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from trnlab.errors import CapacityError
from trnlab.isa.base import Engine
from trnlab.kernels.blocks import P, ViewSource, Workspace, store_rows
from trnlab.kernels.view import View
from trnlab.kernels.windows import Slide, Tap
from trnlab.numerics.dtypes import bfloat16, float32, uint8
from trnlab.program.access import AP
from trnlab.program.builder import Builder

LOWEST = float("-inf")


def max_pool(b: Builder, x: View, out: View, slides: tuple[Slide, Slide]) -> None:
    """Record out[..., y, x] = the largest element of each window of x [..., H, W]; NaN is larger than all.

    x and out have one format. Uses the SBUF that is free in `b` and leaves it free. Raises CapacityError where it is
    too little.
    """
    with b.scope():
        _Forward(b, x, slides).record(out)


def max_pool_gradient(b: Builder, x: View, dy: View, dx: View, slides: tuple[Slide, Slide]) -> None:
    """Record dx [..., H, W]: of each window, dy [..., y, x] at its first largest element. Sums are fp32.

    Otherwise as `max_pool`.
    """
    with b.scope():
        _Backward(b, x, slides).record(dy, dx)


@dataclass(frozen=True)
class _Band:
    """Rows [low, high) of the image on chip, places [start, stop) of windows.

    A gradient is computed for rows [own, end).
    """

    low: int
    high: int
    start: int
    stop: int
    own: int = 0
    end: int = 0

    @property
    def rows(self) -> int:
        return self.high - self.low

    @property
    def places(self) -> int:
        return self.stop - self.start


class _Windows:
    """What forward and backward share: the image on chip in bands, and the maxima of its windows."""

    def __init__(self, b: Builder, x: View, slides: tuple[Slide, Slide]) -> None:
        self.b, self.x, self.slides, self.work = b, x, slides, Workspace(b)
        self.lead, (self.h, self.w) = len(x.shape) - 2, x.shape[-2:]
        self.rows, self.width = prod(x.shape[:-2]), slides[1].places
        self.down, self.along = slides[0].phases()[0], slides[1].phases()[0]
        self.bands = self._fitting()

    def bands_of(self, size: int) -> list[_Band]:
        """The bands that are `size` rows high, of places or of the image."""
        raise NotImplementedError

    def nbytes(self, band: _Band) -> int:
        """Bytes per partition that a band takes."""
        raise NotImplementedError

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
            "windows to pool over have no room", code="TRN504", limit=f"{self.b.sbuf_free} bytes per partition left",
            got=f"{need} bytes for a row of windows", chip=self.b.chip.name,
            remedy="make the rows of the image shorter",
        )  # fmt: skip

    def load(self, view: View, name: str, low: int, high: int, held: int, row: int, count: int) -> AP:
        """Rows [low, high) of `count` images [rows, columns], at most `held` rows, side by side on partitions."""
        width = view.shape[-1]
        tile = self.work.pool(name, (P, held * width), view.dtype, bufs=2).next()[:count, : (high - low) * width]
        ViewSource(view, rows=self.lead).load(self.b, tile, row, low * width)
        return tile

    def largest(self, x: AP, band: _Band) -> AP:
        """[P, places] from the rows of a band: along the rows of the image, then across them."""
        width, dt = self.width, self.x.dtype
        across = self.work.pool("along rows", (P, self.rows_held * width), dt, bufs=2).next()[: x.partitions]
        across = across[:, : band.rows * width]
        result = self.work.pool("largest", (P, self.places_held * width), dt, bufs=2).next()[: x.partitions]
        result = result[:, : band.places * width]
        self._maximum(
            across,
            [
                (
                    (t.start, t.stop) == (0, width),
                    across.with_dims((width, band.rows), (1, t.stop - t.start), skip=t.start),
                    self._columns(x, t, band.rows),
                )
                for t in self.along.taps
            ],
        )
        self._maximum(
            result,
            [
                (
                    (a, z) == (band.start, band.stop),
                    result[:, (a - band.start) * width : (z - band.start) * width],
                    across.with_dims(
                        (self.down.step * width, z - a), (1, width),
                        skip=(t.first + a * self.down.step - band.low) * width,
                    ),
                )
                for t, a, z in self.met(band)
            ],
        )  # fmt: skip
        return result

    def met(self, band: _Band) -> list[tuple[Tap, int, int]]:
        """Rows of the window, and the places [a, z) of the band in which each meets the image."""
        found = [(t, max(t.start, band.start), min(t.stop, band.stop)) for t in self.down.taps]
        return [(t, a, z) for t, a, z in found if a < z]

    def _columns(self, x: AP, t: Tap, rows: int) -> AP:
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


class _Forward(_Windows):
    """Bands of places."""

    def bands_of(self, size: int) -> list[_Band]:
        height = self.slides[0].places
        found = []
        for start in range(0, height, size):
            stop = min(start + size, height)
            low, high = self.down.rows(start, stop)
            found.append(_Band(low, max(high, low + 1), start, stop))
        return found

    def nbytes(self, band: _Band) -> int:
        return 2 * self.x.dtype.itemsize * (band.rows * (self.w + self.width) + band.places * self.width)

    def record(self, out: View) -> None:
        """All rows, band by band."""
        for row in range(0, self.rows, P):
            count = min(P, self.rows - row)
            for band in self.bands:
                x = self.load(self.x, "image", band.low, band.high, self.rows_held, row, count)
                store_rows(self.b, out, self.largest(x, band), row, band.start * self.width, rows=self.lead)


class _Backward(_Windows):
    """Bands of rows of the image, each with all windows that see it."""

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

    def _seen(self, t: Tap, own: int, end: int) -> tuple[int, int]:
        """The places in which a row of the window meets rows [own, end) of the image."""
        step = self.down.step
        return max(t.start, -((t.first - own) // step)), min(t.stop, -((t.first - end) // step))

    def nbytes(self, band: _Band) -> int:
        item, places, own = self.x.dtype.itemsize, band.places * self.width, (band.end - band.own) * self.w
        return (
            2 * item * band.rows * (self.w + self.width) + places * (2 * item + 2 * 4 + 2 * 6 + 2 * 3) + own * (8 + 8)
        )

    def record(self, dy: View, dx: View) -> None:
        """All rows, band by band."""
        b, held = self.b, max(band.end - band.own for band in self.bands) * self.w
        sums, results = (self.work.pool(n, (P, held), d, bufs=2) for n, d in (("sums", float32), ("dx", dx.dtype)))
        for row in range(0, self.rows, P):
            count = min(P, self.rows - row)
            for band in self.bands:
                x = self.load(self.x, "image", band.low, band.high, self.rows_held, row, count)
                given = self.load(dy, "dy", band.start, band.stop, self.places_held, row, count)
                own = (band.end - band.own) * self.w
                total = sums.next()[:count, :own]
                b.memset(dst=total, value=0.0, engine=Engine.GPSIMD)
                self._share(x, self.largest(x, band), given, total, band)
                result = total if dx.dtype is float32 else results.next()[:count, :own]
                if result is not total:
                    b.activation(dst=result, data=total, op="copy", engine=Engine.SCALAR)
                store_rows(b, dx, result, row, band.own * self.w, rows=self.lead)

    def _share(self, x: AP, best: AP, dy: AP, total: AP, band: _Band) -> None:
        """Add each window's gradient where its first largest element is: elements in their order."""
        b, shape = self.b, (P, self.places_held * self.width)
        taken = self.work.pool("taken", shape, bfloat16, bufs=2).next()[: x.partitions, : best.free]
        b.memset(dst=taken, value=0.0, engine=Engine.GPSIMD)
        for (t, a, z), u in product(self.met(band), self.along.taps):
            window = _Window(t, a, z, u)
            marks = self._first(window, x, best, taken, band)
            low, high = self._seen(t, band.own, band.end)
            low, high = max(low, a), min(high, z)
            if low >= high:
                continue
            cols = u.stop - u.start
            share = self.work.pool("share", shape, float32, bufs=2).next()[: x.partitions, : (high - low) * cols]
            share = share.with_dims((cols, high - low), (1, cols))
            mine = marks.with_dims((cols, high - low), (1, cols), skip=(low - a) * cols)
            b.select_reduce(
                dst=share, predicate=mine, on_true=self._of_places(dy, window, low, high, band), on_false=0.0
            )
            step, across = self.down.step, self.along.step
            target = total.with_dims(
                (step * self.w, high - low), (across, cols),
                skip=(t.first + low * step - band.own) * self.w + u.first + u.start * across,
            )  # fmt: skip
            b.tensor_tensor(dst=target, data1=target, data2=share, op="add", engine=Engine.VECTOR)

    def _first(self, window: _Window, x: AP, best: AP, taken: AP, band: _Band) -> AP:
        """Where an element of the window is the first of the largest: 1 or 0, uint8 [P, places that it meets]."""
        b, (t, a, z, u) = self.b, (window.row, window.start, window.stop, window.col)
        cols = u.stop - u.start
        dims, size = ((cols, z - a), (1, cols)), (P, self.places_held * self.width)
        step, across = self.down.step, self.along.step
        seen = x.with_dims(
            (step * self.w, z - a), (across, cols),
            skip=(t.first + a * step - band.low) * self.w + u.first + u.start * across,
        )  # fmt: skip
        here, gone = (self._of_places(v, window, a, z, band) for v in (best, taken))
        same, first = (
            self.work.pool(name, size, dt, bufs=2).next()[: x.partitions].with_dims(*dims)
            for name, dt in (("same", bfloat16), ("first", uint8))
        )
        b.tensor_tensor(dst=same, data1=seen, data2=here, op="is_equal", engine=Engine.VECTOR)
        odd = self.work.pool("odd", size, bfloat16, bufs=2).next()[: x.partitions].with_dims(*dims)
        b.tensor_tensor(dst=odd, data1=seen, data2=seen, op="not_equal", engine=Engine.VECTOR)
        b.tensor_tensor(dst=same, data1=same, data2=odd, op="max", engine=Engine.VECTOR)
        b.tensor_tensor(dst=first, data1=same, data2=gone, op="is_gt", engine=Engine.VECTOR)
        b.tensor_tensor(dst=gone, data1=gone, data2=same, op="max", engine=Engine.VECTOR)
        return first

    def _of_places(self, tile: AP, window: _Window, low: int, high: int, band: _Band) -> AP:
        """The part [P, places] of a tile in which an element of the window meets the image, of rows [low, high)."""
        u = window.col
        return tile.with_dims(
            (self.width, high - low), (1, u.stop - u.start), skip=(low - band.start) * self.width + u.start
        )


@dataclass(frozen=True)
class _Window:
    """One element of the window: its row, the places [start, stop) in which that meets the image, and its column."""

    row: Tap
    start: int
    stop: int
    col: Tap
