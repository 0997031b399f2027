# SPDX-License-Identifier: Apache-2.0
"""Images resized, and their gradients: weighted sums of few elements along rows, and of these along columns.

Sums whose weights are alike and that lie one step apart, as every fourth of an image that becomes four times as
large, have one instruction for each term: ScalarE makes first terms, VectorE adds the others. What has no weight is
left out, not multiplied by zero as the PE array would: an infinity reaches what it is a part of, and no more. Sums
are fp32, and rounded once.

Letters: as in `tiles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from trnlab.isa.base import Engine
from trnlab.kernels.pooling.tiles import ALIGNED, BandCutter, ImageBand, ImageTile, ImageTiler
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder

LARGEST = 8192  # elements of a partition that are summed at once, or sums, whichever are more
HELD = 2  # tiles in flight between what is loaded and what is stored
Dims = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class WeightedSums:
    """Sums along one dimension of `size` elements. terms: of each sum, elements and weights."""

    size: int
    terms: Sequence[tuple[tuple[int, float], ...]]


def resize(b: Builder, x: HbmView, out: HbmView, sums: tuple[WeightedSums, WeightedSums]) -> None:
    """Record out[..., y, x] = weighted sums of x [..., H, W] along rows, and of these along columns; zero of none.

    sums: along columns, and along rows. x and out have one format. Uses the SBUF that is free in `b` and leaves it
    free. Raises CapacityError where it is too little.
    """
    with b.scope():
        _Resizer(b, x, out, sums).record()


@dataclass(frozen=True)
class _Span:
    """`count` sums from `at` on, `step` apart: of elements `offset` from the first, which is `first` for the first of
    them and `stride` further on for each next one, with weights."""

    at: int
    step: int
    count: int
    first: int
    stride: int
    terms: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class _Band(ImageBand):
    """terms: of its sums, with elements counted from `low` on."""

    terms: tuple[tuple[tuple[int, float], ...], ...]

    @cached_property
    def spans(self) -> list[_Span]:
        """All sums that are of anything."""
        alike: dict[tuple[tuple[int, float], ...], list[tuple[int, int]]] = {}
        for at, terms in enumerate(self.terms):
            if terms:
                first = min(element for element, _ in terms)
                same = tuple((element - first, weight) for element, weight in terms)
                alike.setdefault(same, []).append((at, first))
        return [_Span(*run, same) for same, found in alike.items() for run in _runs(found)]

    @cached_property
    def plain(self) -> bool:
        """Whether sums are what they are sums of, one by one."""
        return self.terms == tuple(((i, 1.0),) for i in range(self.seen))

    @property
    def full(self) -> bool:
        """Whether every sum has an element."""
        return all(self.terms)


_Tile = ImageTile[_Band]


def _runs(found: list[tuple[int, int]]) -> list[tuple[int, int, int, int, int]]:
    """Pairs in runs of equal steps: the first of both, the steps, how many; as a span begins."""
    runs, i = [], 0
    while i < len(found):
        end = i + 1
        steps = tuple(b - a for a, b in zip(*found[i : i + 2])) if end < len(found) else (1, 1)
        while end < len(found) and tuple(b - a for a, b in zip(found[end - 1], found[end])) == steps:
            end += 1
        runs.append((found[i][0], steps[0], end - i, found[i][1], steps[1]))
        i = end
    return runs


def _band(sums: WeightedSums, start: int, stop: int) -> _Band:
    elements = [element for terms in sums.terms[start:stop] for element, _ in terms] or [0]
    low = min(elements)
    terms = tuple(tuple((e - low, w) for e, w in each) for each in sums.terms[start:stop])
    return _Band(start, stop, low, max(elements) + 1, terms)


class _Resizer(ImageTiler[_Band]):
    def __init__(self, b: Builder, x: HbmView, out: HbmView, sums: tuple[WeightedSums, WeightedSums]) -> None:
        self.on_vector = self.on_scalar = 0.0  # seconds of work given to each
        down, along = (BandCutter(s.size, len(s.terms), partial(_band, s)) for s in sums)
        super().__init__(b, x, out, (down, along))

    def largest(self) -> int:
        """See `ImageTiler`."""
        return LARGEST

    def nbytes(self, tile: _Tile) -> int:
        """See `ImageTiler`."""
        item, wide = self.dtype.itemsize, HELD * float32.itemsize
        totals = tile.sums if self.dtype is not float32 else 0
        return item * (self.loads * tile.seen + self.stores * tile.sums) + wide * (tile.between + totals) + ALIGNED

    def record(self) -> None:
        """All images, band by band."""
        for tile in self.tiles():
            x = self.load(tile)
            result = self.new("resized", self.dtype, self.stores, tile, "sums")
            total = result if self.dtype is float32 else self.new("totals", float32, HELD, tile, "sums")
            if tile.down.plain:
                self._along_rows(result, total, x, tile)
            elif tile.along.plain:
                self._along_columns(result, total, x, tile)
            else:
                between = self.new("along rows", float32, HELD, tile, "between")
                self._along_rows(between, between, x, tile)
                self._along_columns(result, total, between, tile)
            self.store(tile, result, Engine.GPSIMD)

    def _along_rows(self, dst: AP, total: AP, x: AP, tile: _Tile) -> None:
        band, rows = tile.along, tile.rows
        self._clear(dst, band)
        for s in band.spans:
            at: Dims = (band.sums, rows), (s.step, s.count)
            seen: Dims = (band.seen, rows), (s.stride, s.count)
            parts = [(x.with_dims(*seen, skip=s.first + offset), weight) for offset, weight in s.terms]
            self._sum(dst.with_dims(*at, skip=s.at), total.with_dims(*at, skip=s.at), parts)

    def _along_columns(self, dst: AP, total: AP, x: AP, tile: _Tile) -> None:
        band, images, width = tile.down, tile.images, tile.along.sums
        self._clear(dst, band)
        for s in band.spans:
            at: Dims = (band.sums * width, images), (s.step * width, s.count), (1, width)
            seen: Dims = (band.seen * width, images), (s.stride * width, s.count), (1, width)
            parts = [(x.with_dims(*seen, skip=(s.first + offset) * width), weight) for offset, weight in s.terms]
            self._sum(dst.with_dims(*at, skip=s.at * width), total.with_dims(*at, skip=s.at * width), parts)

    def _clear(self, dst: AP, band: _Band) -> None:
        if not band.full:
            self.b.memset(dst=dst, value=0.0, engine=Engine.GPSIMD)

    def _sum(self, dst: AP, total: AP, parts: list[tuple[AP, float]]) -> None:
        """dst = the sum of parts times weights, the first first; `total` has it until it is complete."""
        (first, weight), *others = parts
        self._scale(total if others else dst, first, weight)
        for i, (part, factor) in enumerate(others):
            self.on_vector += 2 * part.free / self.b.chip.vector.clock.value
            made = {"op0": "multiply", "operand0": factor, "op1": "add", "operand1": total}
            target = dst if i == len(others) - 1 else total
            self.b.scalar_tensor_tensor(dst=target, data=part, **made, engine=Engine.VECTOR)

    def _scale(self, dst: AP, x: AP, weight: float) -> None:
        """On VectorE or ScalarE, whichever is done sooner."""
        chip = self.b.chip
        on_vector, on_scalar = x.free / chip.vector.clock.value, x.free / chip.scalar.clock.value
        if self.on_vector + on_vector < self.on_scalar + on_scalar:
            self.on_vector += on_vector
            self.b.tensor_scalar(dst=dst, data=x, op0="multiply", operand0=weight, engine=Engine.VECTOR)
        else:
            self.on_scalar += on_scalar
            self.b.activation(dst=dst, data=x, op="copy", scale=weight, engine=Engine.SCALAR)
