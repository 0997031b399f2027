# SPDX-License-Identifier: Apache-2.0
"""The way back from largest elements of windows that are looked for in order, as XLA's `select_and_scatter` does it:
an element stays the largest as long as it is at least the next one, row by row of the window. So NaN gives way to
whatever follows it, and the first of equal ones gets the gradient.

All windows of a band of an image are looked through at once: an element of theirs is an access pattern. VectorE
compares and chooses, ScalarE copies. Then each element is given what the windows that chose it have, from the last
one on: an element of the image gets that of windows before first, as XLA adds it up. Sums are fp32.

Letters: R images and channels, flattened; [H, W] input, [Y, X] places.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import P, ViewSource, Workspace, store_rows
from trnlab.kernels.pooling.room import no_room
from trnlab.kernels.view import HbmView
from trnlab.kernels.windows import Slide
from trnlab.numerics.dtypes import bfloat16, float32, uint8
from trnlab.program.access import AP
from trnlab.program.builder import Builder

MOST_ELEMENTS = 256  # of a window, which bfloat16 numbers


def ordered_pool_gradient(b: Builder, x: HbmView, dy: HbmView, dx: HbmView, slides: tuple[Slide, Slide]) -> None:
    """Record dx [..., H, W]: of each window, dy [..., y, x] at the element that is left. Windows lie within the
    image, and have up to MOST_ELEMENTS elements. Raises CapacityError where SBUF has no room for a row of windows."""
    with b.scope():
        _Ordered(b, x, slides).record(dy, dx)


class _Ordered:
    """Images in bands of their rows, with all windows that see one of these."""

    def __init__(self, b: Builder, x: HbmView, slides: tuple[Slide, Slide]) -> None:
        self.b, self.x, self.down, self.along, self.work = b, x, *slides, Workspace(b)
        self.lead, (self.h, self.w) = len(x.shape) - 2, x.shape[-2:]
        self.rows, self.width = prod(x.shape[:-2]), self.along.places
        for count in range(1, self.h + 1):
            self.own = -(-self.h // count)
            bands = [self._band(row) for row in range(0, self.h, self.own)]
            self.held = max(z - a for _, _, a, z in bands), max(stop - start for start, stop, _, _ in bands)
            need = self._nbytes()
            if need <= b.sbuf_free:
                return
        raise no_room(b, f"{need} bytes for a row of windows", "make the rows of the image shorter")

    def _band(self, row: int) -> tuple[int, int, int, int]:
        """Places [start, stop) of windows that see rows [row, +own) of the image, and the rows that these see."""
        step, size = self.down.stride, self.down.window
        start = max(0, -((size - 1 - row) // step))
        stop = min(self.down.places, (min(row + self.own, self.h) - 1) // step + 1)
        return start, max(stop, start), start * step, max((stop - 1) * step + size, start * step)

    def _nbytes(self) -> int:
        item, (rows, places) = self.x.dtype.itemsize, self.held
        image, windows = self.own * self.w, places * self.width
        return 2 * (item * (rows * self.w + 3 * windows + image) + 4 * (image + windows) + 4 * windows) + 4096

    def record(self, dy: HbmView, dx: HbmView) -> None:
        """All images, band by band."""
        pool, (rows, places) = self.work.pool, self.held
        images, given = (pool(n, (P, c * w), self.x.dtype, bufs=2) for n, c, w in self._tiles(rows, places))
        sums = pool("sums", (P, self.own * self.w), float32, bufs=2)
        results = pool("dx", (P, self.own * self.w), dx.dtype, bufs=2)
        for row, first in product(range(0, self.rows, P), range(0, self.h, self.own)):
            count, last = min(P, self.rows - row), min(first + self.own, self.h)
            start, stop, low, high = self._band(first)
            total = sums.next()[:count, : (last - first) * self.w]
            self.b.memset(dst=total, value=0.0, engine=Engine.GPSIMD)
            if start < stop:
                x = images.next()[:count, : (high - low) * self.w]
                ViewSource(self.x, rows=self.lead).load(self.b, x, row, low * self.w)
                dout = given.next()[:count, : (stop - start) * self.width]
                ViewSource(dy, rows=self.lead).load(self.b, dout, row, start * self.width)
                self._give_back(self._chosen(x, dout.free, stop - start), dout, total, first, last, start, stop)
            result = total
            if dx.dtype is not float32:
                result = results.next()[:count, : total.free]
                self.b.activation(dst=result, data=total, op="copy", engine=Engine.SCALAR)
            store_rows(self.b, dx, result, row, first * self.w, rows=self.lead, engine=Engine.SCALAR)

    def _tiles(self, rows: int, places: int) -> Iterator[tuple[str, int, int]]:
        yield "image", rows, self.w
        yield "dy", places, self.width

    def _elements(self) -> list[tuple[int, int]]:
        return list(product(range(self.down.window), range(self.along.window)))

    def _chosen(self, x: AP, size: int, places: int) -> AP:
        """The number of the element that each window keeps."""
        b, pool = self.b, self.work.pool
        whole = (P, self.held[1] * self.width)
        largest, stays = pool("largest", whole, self.x.dtype, bufs=3), pool("stays", whole, uint8, bufs=2)
        chosen = pool("chosen", whole, bfloat16, bufs=2).next()[: x.partitions, :size]
        b.memset(dst=chosen, value=0.0, engine=Engine.GPSIMD)
        best = largest.next()[: x.partitions, :size]
        for number, (i, j) in enumerate(self._elements()):
            seen = x.with_dims(
                (self.down.stride * self.w, places), (self.along.stride, self.width), skip=i * self.w + j
            )
            if number == 0:
                b.activation(dst=self._places(best, places), data=seen, op="copy", engine=Engine.SCALAR)
                continue
            kept, former = stays.next()[: x.partitions, :size], best
            best = largest.next()[: x.partitions, :size]
            b.activation(dst=self._places(best, places), data=seen, op="copy", engine=Engine.SCALAR)
            b.tensor_tensor(dst=kept, data1=former, data2=best, op="is_ge", engine=Engine.VECTOR)
            b.tensor_copy_predicated(dst=best, src=former, predicate=kept)
            b.select_reduce(dst=chosen, predicate=kept, on_true=chosen, on_false=float(number))
        return chosen

    def _places(self, tile: AP, places: int) -> AP:
        return tile.with_dims((self.width, places), (1, self.width))

    def _give_back(self, chosen: AP, dy: AP, total: AP, first: int, last: int, start: int, stop: int) -> None:
        """Add to rows [first, last) of the image what windows [start, stop) give them."""
        b, pool, step = self.b, self.work.pool, self.down.stride
        whole = (P, self.held[1] * self.width)
        marks, shares = pool("marks", whole, uint8, bufs=2), pool("share", whole, float32, bufs=2)
        for number, (i, j) in reversed(list(enumerate(self._elements()))):
            low, high = max(start, -((i - first) // step)), min(stop, -((i - last) // step))
            if low >= high:
                continue
            part = slice((low - start) * self.width, (high - start) * self.width)
            mine, share = (tile.next()[: dy.partitions, : (high - low) * self.width] for tile in (marks, shares))
            b.tensor_scalar(
                dst=mine, data=chosen[:, part], operand0=float(number), op0="is_equal", engine=Engine.VECTOR
            )
            b.select_reduce(dst=share, predicate=mine, on_true=dy[:, part], on_false=0.0)
            target = total.with_dims(
                (step * self.w, high - low),
                (self.along.stride, self.width),
                skip=(low * step + i - first) * self.w + j,
            )
            b.tensor_tensor(
                dst=target, data1=target, data2=self._places(share, high - low), op="add", engine=Engine.VECTOR
            )
