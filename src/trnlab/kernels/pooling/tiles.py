# SPDX-License-Identifier: Apache-2.0
"""Images on partitions, in bands of rows and of columns that have room on chip, for kernels that sum along both.

Where images are small, several lie side by side in a partition: transfers and instructions are as much longer.

Letters: R images and channels, flattened; [H, W] what is summed, [Y, X] sums; N images side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Generic, TypeVar

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import P, ViewSource, Workspace, store_rows
from trnlab.kernels.pooling.room import no_room
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import DType
from trnlab.program.access import AP
from trnlab.program.builder import Builder

FEWEST_BLOCKS = 6  # of up to P partitions, into which images are put side by side, so that transfers overlap
ALIGNED = 4096  # bytes that tiles may take beyond what they hold


@dataclass(frozen=True)
class ImageBand:
    """Sums [start, stop) along one dimension, and what they are sums of, [low, high)."""

    start: int
    stop: int
    low: int
    high: int

    @property
    def sums(self) -> int:
        """How many sums."""
        return self.stop - self.start

    @property
    def seen(self) -> int:
        """How many elements they are sums of."""
        return self.high - self.low


B = TypeVar("B", bound=ImageBand)


@dataclass(frozen=True)
class BandCutter(Generic[B]):
    """Sums along one dimension: `places` of them, of `size` elements. cut: the band of sums [start, stop)."""

    size: int
    places: int
    cut: Callable[[int, int], B]

    def bands(self, size: int) -> list[B]:
        """All sums, `size` at a time."""
        return [self.cut(start, min(start + size, self.places)) for start in range(0, self.places, size)]


@dataclass(frozen=True)
class ImageTile(Generic[B]):
    """`images` of each of `count` partitions from `row` on, in bands of rows and columns."""

    row: int
    count: int
    images: int
    down: B
    along: B

    @property
    def rows(self) -> int:
        """Rows of all images, that are summed."""
        return self.images * self.down.seen

    @property
    def seen(self) -> int:
        """Elements that are summed."""
        return self.rows * self.along.seen

    @property
    def between(self) -> int:
        """Sums along rows."""
        return self.rows * self.along.sums

    @property
    def sums(self) -> int:
        """Sums along rows and columns."""
        return self.images * self.down.sums * self.along.sums


class ImageTiler(Generic[B]):
    """What kernels share that sum x [..., H, W] along rows and columns into out [..., Y, X]."""

    loads = stores = 3  # tiles in flight

    def __init__(self, b: Builder, x: HbmView, out: HbmView, cutters: tuple[BandCutter[B], BandCutter[B]]) -> None:
        """cutters: of rows and of columns."""
        self.b, self.cutters = b, cutters
        self.work, self.dtype, self.lead = Workspace(b), x.dtype, len(x.shape) - 2
        images, self.bands = self._fitting(x.shape)
        batch = x.shape[-3] // images
        self.x, self.out = (view.split(self.lead - 1, batch, images) for view in (x, out))
        self.images, self.rows = images, prod(x.shape[:-2]) // images
        self.held = [ImageTile(0, 1, images, *bands) for bands in self.bands]

    def largest(self) -> int:
        """Elements of a partition that are summed at once, or sums, whichever are more."""
        raise NotImplementedError

    def nbytes(self, tile: ImageTile[B]) -> int:
        """Bytes per partition of all tiles in flight."""
        raise NotImplementedError

    def tiles(self) -> Iterator[ImageTile[B]]:
        """All images, band by band."""
        for row in range(0, self.rows, P):
            for bands in self.bands:
                yield ImageTile(row, min(P, self.rows - row), self.images, *bands)

    def _fitting(self, shape: tuple[int, ...]) -> tuple[int, list[tuple[B, B]]]:
        """Images side by side, and bands: as large as they may be, and have room."""
        down, along = self.cutters
        largest = self.largest()
        while largest:
            size = max(down.size * along.size, down.places * along.places)
            images = self._side_by_side(shape, largest // size)
            bands = self._cut(largest)
            need = max(self.nbytes(ImageTile(0, 1, images, *pair)) for pair in bands)
            if need <= self.b.sbuf_free:
                return images, bands
            largest //= 2
        raise no_room(self.b, f"{need} bytes for a window", "make the windows smaller")

    def _side_by_side(self, shape: tuple[int, ...], most: int) -> int:
        rows, batch = prod(shape[:-2]), shape[-3]
        most = min(most, rows // (P * FEWEST_BLOCKS))
        return max((n for n in range(1, most + 1) if batch % n == 0), default=1)

    def _cut(self, largest: int) -> list[tuple[B, B]]:
        """Bands of rows; of columns where rows are too long."""
        down, along = self.cutters
        for width in _sizes(along.places):
            columns = along.bands(width)
            wide = max(max(band.seen, band.sums) for band in columns)
            for height in _sizes(down.places):
                rows = down.bands(height)
                if max(max(band.seen, band.sums) for band in rows) * wide <= largest:
                    return list(product(rows, columns))
        return list(product(down.bands(1), along.bands(1)))

    def new(self, name: str, dt: DType, bufs: int, tile: ImageTile[B], size: str) -> AP:
        """A tile of as many elements as `size` says of the tile."""
        pool = self.work.pool(name, (P, max(getattr(held, size) for held in self.held)), dt, bufs)
        return pool.next()[: tile.count, : getattr(tile, size)]

    def load(self, tile: ImageTile[B]) -> AP:
        """What a tile is sums of, as [images, rows, columns]."""
        x = self.new("images", self.dtype, self.loads, tile, "seen")
        ends = (tile.down.low, tile.down.high), (tile.along.low, tile.along.high)
        ViewSource(self._part(self.x, ends), rows=self.lead).load(self.b, x, tile.row, 0)
        return x

    def store(self, tile: ImageTile[B], result: AP, engine: Engine) -> None:
        """The sums of a tile, triggered by an engine."""
        ends = (tile.down.start, tile.down.stop), (tile.along.start, tile.along.stop)
        store_rows(self.b, self._part(self.out, ends), result, tile.row, 0, rows=self.lead, engine=engine)

    def _part(self, view: HbmView, ends: Sequence[tuple[int, int]]) -> HbmView:
        """What bands have of each image."""
        return view[(slice(None),) * (self.lead + 1) + tuple(slice(*pair) for pair in ends)]


def _sizes(places: int) -> Iterator[int]:
    """Sizes of bands, from one band on to ever more."""
    size, last = places, 0
    for count in range(1, places + 1):
        size = -(-places // count)
        if size != last:
            yield size
        last = size
