# SPDX-License-Identifier: Apache-2.0
"""Strided views: which elements of a flat memory make an array, told by an offset and one stride for each dimension.

Offsets and strides count elements. Slicing, permuting, repeating, and, where strides can express it, reshaping move
no data. A stride may be zero (elements that repeat) or negative. The stride of a dimension of one element is never
stepped over: whoever compares strides leaves such dimensions out, and what is made here has there the stride that a
dense array would have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Generic, Self, TypeVar

Shape = tuple[int, ...]
Dims = tuple[tuple[int, int], ...]  # (stride, count) of each dimension, outermost first
ONE_ELEMENT: Dims = ((1, 1),)


@lru_cache(maxsize=65536)
def row_major(shape: Shape) -> Shape:
    """Strides of a dense array whose last dimension is contiguous."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@lru_cache(maxsize=65536)
def split(step: int, counts: Shape) -> Dims:
    """One dimension of stride `step` as several, the last of which keeps that stride."""
    return tuple((step * dense, count) for dense, count in zip(row_major(counts), counts))


@lru_cache(maxsize=65536)
def collapsed(dims: Dims) -> Dims:
    """The same elements in the same order in as few dimensions as possible; those of one element vanish.

    Two neighbours become one where the outer steps over all of the inner. One element in all is no dimension at all.
    """
    out: list[tuple[int, int]] = []
    for stride, count in dims:
        if count == 1:
            continue
        if out and out[-1][0] == stride * count:
            out[-1] = (stride, out[-1][1] * count)
        else:
            out.append((stride, count))
    return tuple(out)


def reshaped(shape: Shape, strides: Shape, wanted: Shape) -> Shape | None:
    """Strides of a view in another shape of as many elements; None where its data would have to move.

    None is exact: no strides whatever would do. Without elements any strides would, and those of a dense array are
    returned.
    """
    if not prod(wanted):
        return row_major(wanted)
    runs = list(collapsed(tuple(zip(strides, shape))) or ONE_ELEMENT)
    out: list[int] = []
    step, left = runs.pop()
    for size in reversed(wanted):
        if size == 1:
            out.append(step)
            continue
        if left == 1 and runs:
            step, left = runs.pop()
        if left % size:
            return None
        out.append(step)
        step, left = step * size, left // size
    return tuple(reversed(out))


def inferred(shape: Shape, size: int) -> Shape:
    """A shape with its one -1 replaced so that it holds `size` elements."""
    if -1 not in shape:
        return shape
    known = prod(s for s in shape if s != -1)
    return tuple(size // known if s == -1 and known else s for s in shape)


Base = TypeVar("Base")


@dataclass(frozen=True, slots=True)
class Strided(Generic[Base]):
    """A view of `base`, whatever stands for the memory: its elements from `offset` on, `strides` apart."""

    base: Base
    offset: int
    shape: Shape
    strides: Shape

    def like(self, offset: int, shape: Shape, strides: Shape) -> Self:
        """Another view of the same memory."""
        return type(self)(self.base, offset, shape, strides)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_packed(self) -> bool:
        """Whether its elements follow each other without gaps, in row-major order."""
        dense = row_major(self.shape)
        return all(count == 1 or a == b for count, a, b in zip(self.shape, self.strides, dense))

    def __getitem__(self, index: Any) -> Self:
        """NumPy basic indexing with steps of one and more: an int drops its dimension."""
        index = index if isinstance(index, tuple) else (index,)
        offset, shape, strides = self.offset, [], []
        for axis, (count, stride) in enumerate(zip(self.shape, self.strides)):
            item = index[axis] if axis < len(index) else slice(None)
            if isinstance(item, int):
                assert 0 <= item < count, (self.shape, index)
                offset += item * stride
                continue
            low, high, step = item.start or 0, count if item.stop is None else item.stop, item.step or 1
            assert 0 <= low <= high <= count, (self.shape, index)
            assert step >= 1, (self.shape, index)
            offset += low * stride
            shape.append(-(-(high - low) // step))
            strides.append(stride * step)
        return self.like(offset, tuple(shape), tuple(strides))

    def permute(self, *order: int) -> Self:
        """Dimensions in another order."""
        return self.like(self.offset, tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order))

    def expand(self, axis: int, count: int) -> Self:
        """A new dimension that repeats the same elements."""
        shape = (*self.shape[:axis], count, *self.shape[axis:])
        return self.like(self.offset, shape, (*self.strides[:axis], 0, *self.strides[axis:]))

    def split(self, axis: int, *counts: int) -> Self:
        """One dimension as several of as many elements together."""
        assert prod(counts) == self.shape[axis], (self.shape, axis, counts)
        strides = tuple(stride for stride, _ in split(self.strides[axis], counts))
        shape = (*self.shape[:axis], *counts, *self.shape[axis + 1 :])
        return self.like(self.offset, shape, (*self.strides[:axis], *strides, *self.strides[axis + 1 :]))

    def reshape(self, shape: Shape) -> Self | None:
        """The same elements in another shape of as many, or None where no strides can express it."""
        strides = reshaped(self.shape, self.strides, shape)
        return None if strides is None else self.like(self.offset, shape, strides)

    def collapsed(self, first: int = 0, last: int | None = None) -> Dims:
        """Dimensions `first` to before `last` in as few as possible, as (stride, count)."""
        return collapsed(tuple(zip(self.strides[first:last], self.shape[first:last])))
