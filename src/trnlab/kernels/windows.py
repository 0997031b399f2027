# SPDX-License-Identifier: Apache-2.0
"""Where a sliding window meets its input, along one dimension."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True)
class WindowTap:
    """One element of the window: in place m, for m in [start, stop), it meets input element first + m * step of its
    phase; in the other places it meets zeros."""

    element: int
    first: int
    start: int
    stop: int


@dataclass(frozen=True)
class PlaceRun:
    """Places [start, +count), the first of which meets input elements [first, +taps), each next one as many a step
    further on."""

    start: int
    count: int
    first: int
    taps: int


@dataclass(frozen=True)
class OutputPhase:
    """Places residue + m * spread of the result, m in [0, places), and the elements of the window that meet input
    there."""

    residue: int
    places: int
    step: int
    taps: tuple[WindowTap, ...]

    def runs(self) -> list[PlaceRun]:
        """All places that meet any element of an undilated window, in runs that meet the same ones."""
        edges = sorted({edge for t in self.taps for edge in (t.start, t.stop)})
        found = []
        for start, stop in pairwise(edges):
            met = [t.first for t in self.taps if t.start <= start and stop <= t.stop]
            found += [PlaceRun(start, stop - start, min(met) + start * self.step, len(met))] if met else []
        return found

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        """The input elements, [first, last), that places m in [start, stop) need; (0, 0) where they need none."""
        met = [(t, max(start, t.start), min(stop, t.stop)) for t in self.taps]
        needed = [(t.first + a * self.step, t.first + (b - 1) * self.step + 1) for t, a, b in met if a < b]
        return (min(a for a, _ in needed), max(b for _, b in needed)) if needed else (0, 0)


@dataclass(frozen=True)
class Slide:
    """How a window slides along one dimension: see `graph.ops`, convolution. Strides or a spread, not both."""

    size: int
    window: int
    places: int
    stride: int = 1
    low: int = 0
    spread: int = 1
    dilation: int = 1
    reverse: bool = False

    def gradient(self) -> Slide:
        """How the places that see an element lie, for a window without gaps: what they give it is summed."""
        return Slide(self.places, self.window, self.size, 1, self.window - 1 - self.low, self.stride)

    def phases(self) -> tuple[OutputPhase, ...]:
        """One for each residue of the places by the spread."""
        return tuple(self._phase(r) for r in range(min(self.spread, self.places)))

    @property
    def phase_places(self) -> int:
        """Places of the first phase, which has the most."""
        return -(-self.places // self.spread)

    def of_places(self, places: range) -> tuple[Slide, slice]:
        """How the window slides over neighbouring places, from a multiple of the spread on, and the part of the input
        that they meet: one element at least."""
        start = places.start * self.stride - self.low
        last = start + (len(places) - 1) * self.stride + (self.window - 1) * self.dilation
        end = max(min(last // self.spread + 1, self.size), 1)
        first = min(max(start // self.spread, 0), end - 1)
        low = self.low - places.start * self.stride + first * self.spread
        return replace(self, size=end - first, places=len(places), low=low), slice(first, end)

    def _phase(self, residue: int) -> OutputPhase:
        count = -(-(self.places - residue) // self.spread)
        step = self.stride if self.spread == 1 else 1
        taps = []
        for i in range(self.window):
            distance = residue * self.stride + i * self.dilation - self.low
            if distance % self.spread:
                continue
            first = distance // self.spread
            start, stop = max(0, -(first // step)), min(count, (self.size - 1 - first) // step + 1)
            if start < stop:
                taps.append(WindowTap(self.window - 1 - i if self.reverse else i, first, start, stop))
        return OutputPhase(residue, count, step, tuple(taps))


@dataclass(frozen=True)
class Taps:
    """Where the pixels of the result meet the input, along one dimension: y * stride + tap * dilation - low."""

    count: int
    stride: int
    dilation: int
    low: int

    def reach(self, pixels: int) -> int:
        """Elements of the input from the first that is met to the last, zeros around it included."""
        return (pixels - 1) * self.stride + (self.count - 1) * self.dilation + 1
