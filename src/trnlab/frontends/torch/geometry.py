# SPDX-License-Identifier: Apache-2.0
"""How tensors lie in their storage, and how a view of it is written down in operators that mean the same.

PyTorch's view operators reach a device as headers: shape, strides, offset. A recording keeps those, and writes each
view down anew when it is compiled: as the contiguous region that it lies in, of which dimensions are sliced, permuted
and repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from math import isqrt, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

Sizes = tuple[int, ...]
_numbers = count()


@dataclass(frozen=True, eq=False)
class TensorMeta:
    """Shape, strides and format of a tensor. There is one object of each; `number` tells it from others."""

    shape: Sizes
    strides: Sizes
    dtype: torch.dtype
    number: int

    @cached_property
    def size(self) -> int:
        """How many elements."""
        return prod(self.shape)

    @cached_property
    def order(self) -> Sizes:
        """The dimensions by falling strides, as they lie in memory; those of size 1 stay before what follows them."""
        return _in_memory(self.shape, self.strides)

    @cached_property
    def dense(self) -> bool:
        """Whether the elements lie one after the other without gaps, in whatever order of dimensions."""
        expected = 1
        for dim in reversed(self.order):
            if self.shape[dim] != 1:
                if self.strides[dim] != expected:
                    return False
                expected *= self.shape[dim]
        return True

    @cached_property
    def packed(self) -> Sizes:
        """The shape of the memory of a dense tensor."""
        return tuple(self.shape[dim] for dim in self.order)

    @cached_property
    def overlaps(self) -> bool:
        """Whether several elements may lie in one place: a step does not lead beyond what the smaller ones reach."""
        reached = 1
        for dim in reversed(self.order):
            if self.shape[dim] != 1:
                if self.strides[dim] < reached:
                    return True
                reached += (self.shape[dim] - 1) * self.strides[dim]
        return False

    @cached_property
    def memory(self) -> TensorMeta:
        """The form of the memory: complex numbers are floats there, real parts before imaginary ones. Of all other
        tensors it is their own."""
        if not self.dtype.is_complex:
            return self
        return form_of((*self.shape, 2), (*(2 * s for s in self.strides), 1), self.dtype.to_real())

    @cached_property
    def extent(self) -> int:
        """How many places there are from the first element to the last."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides)) if self.size else 0


_forms: dict[tuple[Sizes, Sizes, torch.dtype], TensorMeta] = {}


def form_of(shape: Sizes, strides: Sizes, dtype: torch.dtype) -> TensorMeta:
    """The one object for such tensors."""
    key = (shape, strides, dtype)
    form = _forms.get(key)
    if form is None:
        form = _forms[key] = TensorMeta(tuple(shape), tuple(strides), dtype, next(_numbers))
    return form


def _in_memory(shape: Sizes, strides: Sizes) -> Sizes:
    real = sorted((d for d, n in enumerate(shape) if n != 1), key=lambda d: (-strides[d], d))
    order: list[int] = []
    waiting = iter(real)
    for dim, n in enumerate(shape):
        order.append(dim if n == 1 else next(waiting))
    return tuple(order)


_MOST_COMPARED = 1 << 22  # places; beyond that two views that may meet are taken to do so


def meet(form: TensorMeta, offset: int, other: TensorMeta, at: int) -> bool:
    """Whether two views of one storage, of one format, share an element. Dense ones do where their ends cross, as
    PyTorch has it."""
    first = max(offset, at)
    if first >= min(offset + form.extent, at + other.extent):
        return False
    return (form.dense and other.dense) or _share_elements(form, other, at - offset)


@lru_cache(maxsize=65536)
def _share_elements(form: TensorMeta, other: TensorMeta, apart: int) -> bool:
    begin, end = min(0, apart), max(form.extent, apart + other.extent)
    if end - begin > _MOST_COMPARED:
        return True
    taken = np.zeros(end - begin, np.bool_)
    _places(taken[-begin:], form)[...] = True
    return bool(_places(taken[apart - begin :], other).any())


def _places(memory: np.ndarray[Any, Any], form: TensorMeta) -> np.ndarray[Any, Any]:
    return np.lib.stride_tricks.as_strided(memory, form.shape, form.strides)


@dataclass(frozen=True)
class MemoryRegion:
    """Contiguous memory that a view lies in: `start` in the storage, shape, and what is sliced of each dimension."""

    start: int
    shape: Sizes
    slices: tuple[tuple[int, int], ...]


@lru_cache(maxsize=65536)
def region(form: TensorMeta, offset: int, room: int) -> MemoryRegion | None:
    """The smallest region of a storage of `room` elements that holds the view at `offset`; None where there is none.

    Its dimensions are the strides of the view, each a multiple of the next.
    """
    if form.dense:
        return MemoryRegion(offset, form.packed, ())
    steps = [(form.strides[d], form.shape[d]) for d in form.order if form.shape[d] != 1 and form.strides[d] != 0]
    sizes, strides = [n for _, n in steps], [s for s, _ in steps]
    if any(a % b or a // b < n for a, (b, n) in zip(strides, steps[1:])):
        return None
    outer = strides[0] if strides else 1
    start, rest = offset - offset % outer, offset % outer
    shape, slices = [sizes[0]] if sizes else [], [(0, sizes[0])] if sizes else []
    for before, step, n in zip(strides, strides[1:], sizes[1:]):
        shape.append(before // step)
        slices.append((rest // step, n))
        rest %= step
    if strides and strides[-1] != 1:
        shape.append(strides[-1])
        slices.append((rest, 1))
    inside = all(first + n <= size for size, (first, n) in zip(shape, slices))
    if not inside or start + prod(shape) > room:
        return None
    return MemoryRegion(start, tuple(shape), tuple(slices))


def view_of(base: Tensor, found: MemoryRegion, form: TensorMeta) -> Tensor:
    """The view of `form` where `base` is the memory of its region."""
    order = form.order
    if found.slices:
        for dim, (first, n) in enumerate(found.slices):
            if (first, n) != (0, base.shape[dim]):
                base = base.narrow(dim, first, n)
        base = base.reshape([1 if form.strides[d] == 0 else form.shape[d] for d in order])
    if order != tuple(range(len(order))):
        base = base.permute([order.index(d) for d in range(len(order))])
    return base if tuple(base.shape) == form.shape else base.expand(form.shape)


def seen_as(memory: Tensor, form: TensorMeta) -> Tensor:
    """A tensor of `form` where `memory` is one of the form of its memory."""
    return torch.view_as_complex(memory) if form.dtype.is_complex else memory


def part_of(base: Tensor, start: int, shape: Sizes) -> Tensor:
    """The contiguous memory from `start` on, in `shape`, of contiguous `base`, as a view."""
    if start == 0 and tuple(base.shape) == shape:
        return base
    if prod(shape) != base.numel():
        base = base.view(-1).narrow(0, start, prod(shape))
    return base.view(shape)


def shown(base: Tensor, form: TensorMeta, offset: int) -> Tensor:
    """The view at `offset` of a storage whose contiguous contents are `base`."""
    room = base.numel()
    found = region(form, offset, room)
    if found is not None:
        return view_of(part_of(base, found.start, found.shape), found, form)
    diagonal = _diagonal(form, offset, room)
    if diagonal is not None:
        dim, block, found = diagonal
        rows = view_of(part_of(base, found.start, found.shape), found, block)
        return rows.diagonal(0, dim, -1).movedim(-1, dim)
    stepped = _stepped(base.view(-1), form, offset)
    return base.view(-1).as_strided(form.shape, form.strides, offset) if stepped is None else stepped


def _stepped(line: Tensor, form: TensorMeta, offset: int) -> Tensor | None:
    """A view whose last row ends with its last element, as `x[::2]` of an odd number: rows within rows, by their
    strides, of which some are taken in steps. None where the rows do not fit."""
    order = [d for d in form.order if form.shape[d] != 1]
    for place, dim in enumerate(order):
        inner = 1 + sum((form.shape[d] - 1) * form.strides[d] for d in order[place + 1 :])
        found = _rows(line.shape[-1], offset, form.shape[dim], form.strides[dim], inner)
        if found is None:
            return None
        begin, count, row, first, step = found
        rows = line.narrow(-1, begin, count * row).unflatten(-1, (count, row))
        line = rows[..., first : first + (form.shape[dim] - 1) * step + 1 : step, :]
        offset -= begin + first * row
    return line[..., offset].permute([order.index(d) for d in sorted(order)]).reshape(form.shape)


def _rows(room: int, offset: int, n: int, stride: int, inner: int) -> tuple[int, int, int, int, int] | None:
    """How memory of `room` elements is rows, of which every so many-th, n in all, holds `inner` elements of a view
    from `offset` on: where the rows begin, how many there are, how long they are, the first one, and the step."""
    small = [r for r in range(1, isqrt(stride) + 1) if stride % r == 0]
    for row in sorted({*small, *(stride // r for r in small)}, reverse=True):
        for begin in sorted({0, offset, max(0, min(offset, room - n * stride))}):
            first, rest = divmod(offset - begin, row)
            count, step = (room - begin) // row, stride // row
            if rest + inner <= row and first + (n - 1) * step < count:
                return begin, count, row, first, step
    return None


@lru_cache(maxsize=65536)
def _diagonal(form: TensorMeta, offset: int, room: int) -> tuple[int, TensorMeta, MemoryRegion] | None:
    """Diagonal of a view that no region holds, as the last row of a matrix ends at its diagonal: which dimension
    is the diagonal of a block, whose columns are the last dimension, and the region of that."""
    columns = {1, *(n * step for n, step in zip(form.shape, form.strides))}
    for dim, (n, step) in enumerate(zip(form.shape, form.strides)):
        for column in sorted(c for c in columns if n > 1 and 0 < c < step):
            strides = (*form.strides[:dim], step - column, *form.strides[dim + 1 :], column)
            block = form_of((*form.shape, n), strides, form.dtype)
            found = region(block, offset, room)
            if found is not None:
                return dim, block, found
    return None
