# SPDX-License-Identifier: Apache-2.0
"""Tiles of the old dialect: tensors with operators, index expressions, assignment and blocks.

Operations return tiles. Where a result is assigned to (part of) a tile, the instruction that made it writes there
directly; `psum += matmul` accumulates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Self

from trnlab.isa.base import Memory
from trnlab.lang import compose
from trnlab.lang import instructions as ins
from trnlab.lang.formats import format_of
from trnlab.lang.recorder import current
from trnlab.lang.strides import row_major
from trnlab.lang.tensor import Indirect, Region, Tensor, Window, refuse
from trnlab.nki.neuronxcc.affine import Affine, Mask


class ParDim(int):
    """A size that is the partition dimension."""


class Tile(Tensor):
    """A view with arithmetic."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        """Indices may also be index expressions (the result has their broadcast shape) and tiles (rows to gather)."""
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, (Affine, Tensor)) for k in keys):
            return self._by_expressions(self._expand(keys))
        return super().__getitem__(key)

    def _by_expressions(self, keys: list[Any]) -> Self:
        """Every index as an expression over common axes; slices take the axis at their own place."""
        ndim = max(len(k.extents) if isinstance(k, Affine) else k.ndim if isinstance(k, Tensor) else 0 for k in keys)
        rows = next((k for k in keys if isinstance(k, Tensor)), None)
        shape, strides, offset, indirect = [1] * ndim, [0] * ndim, self.offset, self._indirect
        free_axes = [a for a in range(ndim) if all(_extent(k, a, ndim) == 1 for k in keys)]
        for axis, (key, count, step) in enumerate(zip(keys, self.shape, self.strides)):
            if isinstance(key, Tensor):
                indirect = Indirect(key, count, step)
                shape[0], strides[0] = key.shape[0], step
                continue
            if not isinstance(key, Affine):
                key = self._expression(key, axis, count, free_axes, ndim)
            offset += key.constant * step
            for i, (extent, coefficient) in enumerate(zip(key.extents, key.coefficients)):
                at = i + ndim - len(key.extents)
                shape[at] = max(shape[at], extent)
                strides[at] += coefficient * step
        view = self._like(tuple(shape), tuple(strides), offset)
        if rows is not None:
            view._indirect = indirect
        return view

    def _bounds(self, key: Any, axis: int, count: int) -> tuple[int, int, int, bool]:
        """In HBM a slice may end past the tensor: a mask then leaves out what is not there."""
        window = slice(key.start, key.start + key.size) if isinstance(key, Window) else key
        if not self.on_chip and isinstance(window, slice) and window.stop is not None and int(window.stop) > count:
            start, step = int(window.start or 0), int(window.step or 1)
            return start, -(-(int(window.stop) - start) // step), step, True
        return super()._bounds(key, axis, count)

    def _expression(self, key: Any, axis: int, count: int, free_axes: list[int], ndim: int) -> Affine:
        start, length, stride, _ = self._bounds(key, axis, count)
        if not isinstance(key, (slice, Window)):
            return Affine((1,) * ndim, (0,) * ndim, start)
        if not free_axes:
            refuse("slices and index expressions do not line up", limit="one axis for each", got=key,
                   remedy="write the slice as an index expression too", code="TRN410")  # fmt: skip
        at = free_axes.pop(0)
        unit = tuple(int(a == at) for a in range(ndim))
        return Affine(tuple(length if u else 1 for u in unit), tuple(stride * u for u in unit), start)

    def __setitem__(self, key: Any, value: Any) -> None:
        assign(self[key], value)

    def broadcast_to(self, *shape: Any) -> Tensor:
        """Repeated to `shape`."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return compose.broadcast_to(self, tuple(int(s) for s in sizes))

    def reshape(self, *sizes: Any, shape: Any = None) -> Self:
        """The same elements in another shape."""
        return super().reshape(*sizes) if shape is None else super().reshape(shape)

    def astype(self, dtype: Any) -> Tensor:
        """A copy in another format."""
        return compose.copy(self, dtype)

    def expand_dims(self, axis: int) -> Self:
        """A new free dimension of one element."""
        return self.expand_dim(axis)

    def __add__(self, other: Any) -> Any:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return binary("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return binary("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return binary("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return binary("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return compose.divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return binary("multiply", compose.reciprocal(self), other)

    def __neg__(self) -> Any:
        return binary("multiply", self, -1.0)

    def __iadd__(self, other: Any) -> Self:
        add_to(self, other)
        return self

    def __isub__(self, other: Any) -> Self:
        compose.binary("subtract", self, other, dst=self)
        return self

    def __imul__(self, other: Any) -> Self:
        compose.binary("multiply", self, other, dst=self)
        return self


def _extent(key: Any, axis: int, ndim: int) -> int:
    if isinstance(key, Affine):
        at = axis - ndim + len(key.extents)
        return key.extents[at] if at >= 0 else 1
    if isinstance(key, Tensor):
        return key.shape[0] if axis == 0 else 1
    return 1


class Blocks:
    """A tensor whose leading dimensions number tiles: (blocks..., par_dim(P), F...)."""

    def __init__(self, shape: tuple[int, ...], blocks: int, make: Any, index: tuple[int, ...] = ()) -> None:
        self.shape, self._blocks, self._make, self._index = shape, blocks, make, index

    @property
    def dtype(self) -> Any:
        """Its number format."""
        return self._tile((0,) * self._blocks).dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def each(self, act: Callable[[Tensor], None]) -> None:
        """Do something with every tile."""
        for index in itertools.product(*(range(n) for n in self.shape[: self._blocks])):
            act(self._tile(index))

    def _tile(self, index: tuple[int, ...]) -> Any:
        return self._make((*self._index, *index))

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        if keys and keys[0] is Ellipsis and self._blocks == 0:
            keys = ()
        chosen = []
        for k, size in zip(keys[: self._blocks], self.shape):
            if not hasattr(k, "__index__"):
                refuse("a dimension that numbers tiles takes one index at a time", limit="an integer", got=k,
                       remedy="loop over it", code="TRN410")  # fmt: skip
            index = int(k) + size * (int(k) < 0)
            if not 0 <= index < size:
                refuse("no such tile", limit=f"0..{size - 1}", got=int(k), remedy="index within the shape",
                       code="TRN410")  # fmt: skip
            chosen.append(index)
        if len(chosen) < self._blocks:
            left = self._blocks - len(chosen)
            return Blocks(self.shape[len(chosen) :], left, self._make, (*self._index, *chosen))
        tile, rest = self._tile(tuple(chosen)), keys[self._blocks :]
        return tile[rest] if rest else tile

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        if isinstance(target, Blocks):
            for index in itertools.product(*(range(n) for n in target.shape[: target._blocks])):
                assign(target[index], value[index] if isinstance(value, Blocks) else value)
        else:
            assign(target, value)


class LoopSum:
    """nl.loop_reduce: the sum of a tile over iterations; the first one overwrites where it is assigned."""

    def __init__(self, tile: Tensor, first: bool, op: str) -> None:
        self.tile, self.first, self.op = tile, first, op


def assign(target: Tensor, value: Any) -> None:
    """target = value."""
    if isinstance(value, LoopSum):
        if value.first:
            assign(target, value.tile)
        else:
            compose.binary(value.op, target, _shaped(value.tile, target), dst=target)
        return
    if not isinstance(value, Tensor):
        compose.fill(target, value)
        return
    if (value.storage, value.offset, value.shape, value.strides) == (
        target.storage, target.offset, target.shape, target.strides,
    ):  # fmt: skip
        return
    value = _shaped(value, target)
    zeroed(target.storage, written=True)
    if ins.redirect(value, target):
        return
    if target.on_chip and value.on_chip and (target.shape[0] == value.shape[0]):
        compose.copy(value, dst=target)
    else:
        ins.dma_copy(target, compose.in_sbuf(value) if value.on_chip else value)


def _shaped(value: Tensor, target: Tensor) -> Tensor:
    if value.shape == target.shape:
        return value
    if value.size == target.size and (value.shape[0] == target.shape[0] or not value.on_chip):
        return value._reshaped(target.shape)
    return compose.broadcast_to(value, target.shape)


def add_to(target: Tensor, value: Any) -> None:
    """target += value: a matmul just recorded accumulates in PSUM, anything else is added."""
    if target.storage.region.memory is Memory.PSUM and isinstance(value, Tensor):
        if value.shape == target.shape and ins.redirect(value, target, accumulate=None):
            zeroed(target.storage, written=True)
            return
        zeroed(target.storage)
    compose.binary("add", target, _shaped(value, target) if isinstance(value, Tensor) else value, dst=target)


_ZERO = "zero when first read"


def zeroed(storage: Any, written: bool = False) -> None:
    """Write the zeros that nl.zeros promised for a PSUM tile, unless a matmul has started there."""
    pending = current().once(_ZERO, set)
    if storage not in pending:
        return
    pending.discard(storage)
    if not written and not storage.sums:
        ins.emit("memset", dst=Tile(storage, storage.shape, row_major(storage.shape)), value=0.0)


def promise_zero(tile: Tensor) -> None:
    """The tile is zero; what a matmul adds to first is overwritten instead."""
    current().once(_ZERO, set).add(tile.storage)


def binary(op: str, x: Any, y: Any) -> Any:
    """x op y for operators between tiles."""
    if isinstance(x, (Affine, Mask)) or isinstance(y, (Affine, Mask)):
        return NotImplemented
    return compose.binary(op, x, y)


def make(shape: Any, dtype: Any, region: Region, name: str = "") -> Any:
    """A tile, or blocks of them when the partition is not the first dimension."""
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    at = next((i for i, s in enumerate(sizes) if isinstance(s, ParDim)), 0)
    plain = tuple(int(s) for s in sizes)
    recorder = current()
    if region.memory is Memory.HBM or at == 0:
        if region.memory is not Memory.HBM and len(plain) == 1:
            plain = (*plain, 1)
        return recorder.tensor(plain, format_of(dtype), region, name=name)
    tiles: dict[tuple[int, ...], Tensor] = {}

    def tile(index: tuple[int, ...]) -> Tensor:
        if index not in tiles:
            tiles[index] = recorder.tensor(plain[at:], format_of(dtype), region)
        return tiles[index]

    return Blocks(plain, at, tile)


def trimmed(mask: Any, *tiles: Any) -> list[Any] | None:
    """The parts of tiles (and numbers) that a mask leaves, or None when nothing is left."""
    if mask is None or mask is True:
        return list(tiles)
    if not isinstance(mask, Mask):
        return list(tiles) if mask else None
    out = []
    for tile in tiles:
        if not isinstance(tile, Tensor):
            out.append(tile)
            continue
        view = tile
        for axis, (low, high) in mask.ranges(tile.ndim).items():
            if low >= high:
                return None
            if 0 <= axis < view.ndim and view.shape[axis] != 1:
                view = _cut(view, axis, low, min(high, view.shape[axis]))
        out.append(view)
    return out


def _cut(view: Tensor, axis: int, low: int, high: int) -> Tensor:
    shape = (*view.shape[:axis], high - low, *view.shape[axis + 1 :])
    return view._like(shape, view.strides, view.offset + low * view.strides[axis])
