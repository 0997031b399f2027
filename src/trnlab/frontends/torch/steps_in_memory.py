# SPDX-License-Identifier: Apache-2.0
"""Elements whose places in memory go up by constant steps, as those of strided views do: they are slices.

Where windows overlap, each is cut at the step from one to the next: the first parts of all windows are one slice, the
second parts another. Autograd adds the gradient of such a view up element by element, by places that it counts;
counted here, they are the same slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from trnlab.frontends.torch.geometry import MemoryRegion, TensorMeta, region
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import apply
from trnlab.graph.ir import Value
from trnlab.graph.ops import OPS, SHAPE
from trnlab.graph.passes.rewrite import is_zero

MOST_SLICES = 16
MOST_COUNTED = 1 << 26  # places that are counted here, of 4 bytes
_MAKERS = frozenset({"iota", "constant", "convert"})
Places = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Steps:
    """Places `offset` + i * step of each dimension."""

    offset: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, places: Places) -> Steps | None:
        """How places go up in each of their dimensions; None where they do not by constant steps, or go down."""
        if not places.size:
            return None
        first = places[(0,) * places.ndim]
        steps = [
            int(places[tuple(int(e == d) for e in range(places.ndim))] - first) if n > 1 else 0
            for d, n in enumerate(places.shape)
        ]
        if min(steps, default=0) < 0 or first < 0:
            return None
        found = cls(int(first), places.shape, tuple(steps))
        return found if np.array_equal(found.places(), places) else None

    @classmethod
    def of_line(cls, places: Places) -> Steps | None:
        """The same of places in one dimension, which become as many dimensions as they count in."""
        sizes: list[int] = []
        line = places
        while line.size > 1:
            differs = np.flatnonzero(np.diff(line) != line[1] - line[0])
            count = int(differs[0]) + 1 if differs.size else line.size
            if line.size % count or count == 1:
                return None
            sizes.insert(0, count)
            line = line.reshape(-1, count)[:, 0]
        return cls.of(places.reshape(sizes)) if len(sizes) <= 8 else None

    def places(self) -> Places:
        """All of them."""
        found: Places = np.asarray(self.offset)
        for count, step in zip(self.sizes, self.steps):
            found = found[..., None] + np.arange(count) * step
        return found

    def cut(self) -> tuple[int, int] | None:
        """Which dimension reaches over the step of another, and how many of its elements there are up to that."""
        order = sorted((d for d, n in enumerate(self.sizes) if n > 1), key=lambda d: -self.steps[d])
        for outer, inner in pairwise(order):
            step, small = self.steps[outer], self.steps[inner]
            if small and step % small == 0 and self.sizes[inner] * small > step > small:
                return inner, step // small
        return None

    def parts(self) -> Iterator[tuple[int, int, Steps]]:
        """The parts along the dimension that `cut` names: from where, how many, and their places."""
        found = self.cut()
        assert found is not None
        dim, count = found
        for start in range(0, self.sizes[dim], count):
            n = min(count, self.sizes[dim] - start)
            sizes = (*self.sizes[:dim], n, *self.sizes[dim + 1 :])
            yield start, n, replace(self, offset=self.offset + start * self.steps[dim], sizes=sizes)

    def slices(self, room: int) -> int | None:
        """How many slices of memory of `room` elements these places are; None for what is none."""
        if self.cut() is None:
            return None if self._region(room) is None else 1
        counts = [part.slices(room) for _, _, part in self.parts()]
        return None if None in counts else sum(n for n in counts if n is not None)

    def _region(self, room: int) -> MemoryRegion | None:
        strides = [s for s, n in zip(self.steps, self.sizes) if n > 1]
        if 0 in strides:
            return None
        return region(self._form(), self.offset, room)

    def _form(self) -> TensorMeta:
        return TensorMeta(self.sizes, self.steps, None, 0)  # type: ignore[arg-type]  # of whatever format

    def read(self, b: GraphBuilder, line: Value) -> Value:
        """The elements of memory `line` at these places."""
        found = self.cut()
        if found is not None:
            return b.concatenate([part.read(b, line) for _, _, part in self.parts()], found[0])
        lies = self._region(line.shape[0])
        assert lies is not None
        block = b.reshape(b.slice_dim(line, 0, lies.start, lies.start + prod(lies.shape)), lies.shape)
        if lies.slices:
            begins = [first for first, _ in lies.slices]
            block = b.slice(block, begins, [first + n for first, n in lies.slices])
        order = self._form().order
        block = b.reshape(block, tuple(self.sizes[d] for d in order))
        return b.transpose(block, [order.index(d) for d in range(len(order))]) if order != _counted(order) else block

    def added(self, b: GraphBuilder, line: Value, updates: Value, nothing: float) -> Value:
        """Memory with updates added at these places, windows before those that follow them as PyTorch adds them.
        nothing: what is added to all other elements, a zero of the sign that leaves them what they are."""
        found = self.cut()
        if found is not None:
            for start, n, part in reversed(list(self.parts())):
                line = part.added(b, line, b.slice_dim(updates, found[0], start, start + n), nothing)
            return line
        lies = self._region(line.shape[0])
        assert lies is not None
        order = self._form().order
        block = b.transpose(updates, order) if order != _counted(order) else updates
        if lies.slices:
            block = b.reshape(block, tuple(n for _, n in lies.slices))
            ends = [size - first - n for size, (first, n) in zip(lies.shape, lies.slices)]
            block = b.pad(block, [first for first, _ in lies.slices], ends, value=nothing)
        count = prod(lies.shape)
        block = b.reshape(block, (count,))
        if count != line.shape[0]:
            block = b.pad(block, (lies.start,), (line.shape[0] - lies.start - count,), value=nothing)
        return b.add(line, block)


def _counted(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(len(order)))


def counted(ids: Value) -> Places | None:
    """The numbers that whole numbers of a graph are, where nothing but counting is in them."""
    if ids.type.size > MOST_COUNTED or ids.op is None or ids.dtype.is_float:
        return None
    if ids.op.name not in _MAKERS and OPS[ids.op.name].kind != SHAPE:
        return None
    operands = [counted(v) for v in ids.op.operands]
    arrays = [a for a in operands if a is not None]
    if len(arrays) < len(operands):
        return None
    types = [v.type for v in ids.op.operands]
    found: Places = apply(ids.op.name, arrays, types, ids.op.attrs)[0]
    return found


def shown(b: GraphBuilder, x: Value, places: Places) -> Value | None:
    """The elements of a tensor, in row-major order, at places, in the shape of those; None where these are not a few
    slices."""
    found = Steps.of(places)
    if found is None or (found.slices(x.type.size) or MOST_SLICES + 1) > MOST_SLICES:
        return None
    return found.read(b, b.reshape(x, (x.type.size,)))


def added(b: GraphBuilder, x: Value, ids: Value, updates: Value) -> Value | None:
    """Memory x [N] with updates [M] added at places ids [M] that are counted; None where these are not a few
    slices."""
    places = counted(ids) if len(x.shape) == len(ids.shape) == 1 else None
    found = None if places is None else Steps.of_line(places)
    if found is None or (found.slices(x.shape[0]) or MOST_SLICES + 1) > MOST_SLICES:
        return None
    return found.added(b, x, b.reshape(updates, found.sizes), 0.0 if is_zero(x) else -0.0)
