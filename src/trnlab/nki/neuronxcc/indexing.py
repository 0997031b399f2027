# SPDX-License-Identifier: Apache-2.0
"""Views by index expressions: x[i_p, j * 512 + i_f], x[index_tile, i_f], x[i_p < n].

All expressions of one index span common axes, which become the view's dimensions. Where they reach past the tensor,
the view can only be used under a mask that leaves out what is not there.
"""

from __future__ import annotations

import warnings
from typing import Any

from trnlab.lang import compose
from trnlab.lang.dynamic_index import Indirect
from trnlab.lang.formats import format_of
from trnlab.lang.storage import refuse
from trnlab.lang.tensor import IndexWindow, Tensor
from trnlab.nki.neuronxcc.affine import Affine, AtRunTime


class Limit:
    """Index `constant` + the sum of coefficient * i over (axis of the view, coefficient) must lie in 0..size."""

    __slots__ = ("constant", "dim", "size", "terms")

    def __init__(self, dim: int, size: int, constant: int, terms: tuple[tuple[int, int], ...]) -> None:
        self.dim, self.size, self.constant, self.terms = dim, size, constant, terms

    def span(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Smallest and largest index over a view of this shape."""
        ends = [(shape[axis] - 1) * step for axis, step in self.terms]
        return self.constant + sum(e for e in ends if e < 0), self.constant + sum(e for e in ends if e > 0)

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether a view of this shape stays within the tensor."""
        low, high = self.span(shape)
        return low >= 0 and high < self.size

    def narrowed(self, axis: int, low: int) -> Limit:
        """The limit when the view's axis begins at `low`."""
        shift = sum(step * low for at, step in self.terms if at == axis)
        return Limit(self.dim, self.size, self.constant + shift, self.terms)


def _whole(index: Tensor) -> Tensor:
    """One element that is an offset, as a whole number: kernels keep what max8 finds in tiles of floats."""
    if index.format.dtype.kind in "iu" or not index.on_chip:
        return index
    warnings.warn(f"an offset in {index.format} is converted to int32 in every use", stacklevel=2)
    return compose.copy(index, format_of("int32"))


class ViewUnderConstruction:
    """A view that is being put together, one dimension of the tensor after the other."""

    def __init__(self, tile: Tensor, keys: tuple[Any, ...]) -> None:
        self.tile = tile
        self.ndim = max(_ndim(k) for k in keys) or sum(isinstance(k, (slice, IndexWindow)) for k in keys)
        self.shape, self.strides = [1] * self.ndim, [0] * self.ndim
        self.offset, self.chosen = tile.offset, tile.indirection
        self.limits: list[Limit] = []
        self.free = [a for a in range(self.ndim) if all(_extent(k, a, self.ndim) == 1 for k in keys)]

    def add(self, dim: int, key: Any) -> None:
        """Dimension `dim` of the tensor, indexed with `key`."""
        if isinstance(key, Tensor):
            key = AtRunTime(Affine((1,) * self.ndim, (0,) * self.ndim), key)
        if isinstance(key, AtRunTime):
            self._gather(dim, key)
            self._walk(dim, key.expression)
            return
        if not isinstance(key, Affine):
            key = self._from_slice(dim, key)
        self.limits.append(Limit(dim, self.tile.shape[dim], key.constant, self._walk(dim, key)))

    def _walk(self, dim: int, key: Affine) -> tuple[tuple[int, int], ...]:
        """Put the expression's steps into the view; returns (axis of the view, coefficient) of those that move."""
        step, terms = self.tile.strides[dim], []
        self.offset += key.constant * step
        for i, (extent, coefficient) in enumerate(zip(key.extents, key.coefficients)):
            at = i + self.ndim - len(key.extents)
            self._extend(at, extent, dim)
            self.strides[at] += coefficient * step
            if coefficient:
                terms.append((at, coefficient))
        return tuple(terms)

    def _extend(self, axis: int, extent: int, dim: int) -> None:
        if extent != 1 and self.shape[axis] not in (1, extent):
            refuse(
                f"the indices of dimension {dim} do not line up with the others",
                limit=self.shape[axis],
                got=extent,
                remedy="give every index the same number of elements along an axis, or one",
                code="TRN410",
            )
        self.shape[axis] = max(self.shape[axis], extent)

    def _gather(self, dim: int, key: AtRunTime) -> None:
        """Rows that an index tile of one element per row chooses, or one start for all."""
        if self.chosen is not None:
            refuse(
                "only one dimension can be indexed with a tile",
                limit=1,
                got=key.tile,
                remedy="compute one index from both, and reshape the tensor to match",
                code="TRN410",
            )
        step, count = self.tile.strides[dim], self.tile.shape[dim]
        if key.tile.size == 1:
            ends = ((n - 1) * c for n, c in zip(key.expression.extents, key.expression.coefficients) if c > 0)
            self.chosen = self.tile._dynamic(_whole(key.tile), step, count - key.expression.constant - sum(ends))
            return
        self._extend(0, key.tile.shape[0], dim)
        self.strides[0] = step
        self.chosen = Indirect(key.tile, count, step)

    def _from_slice(self, dim: int, key: Any) -> Affine:
        """An integer, or a slice that takes the next axis which no expression uses."""
        start, length, step, _ = self.tile._bounds(key, dim, self.tile.shape[dim])
        if not isinstance(key, (slice, IndexWindow)):
            return Affine((1,) * self.ndim, (0,) * self.ndim, start)
        if not self.free:
            refuse(
                "slices and index expressions do not line up",
                limit="one axis for each",
                got=key,
                remedy="write the slice as an index expression too",
                code="TRN410",
            )
        at = self.free.pop(0)
        return Affine(
            tuple(length if a == at else 1 for a in range(self.ndim)),
            tuple(step if a == at else 0 for a in range(self.ndim)),
            start,
        )


# Views by integers and index expressions that differ only in where they begin: shape, strides, and for each index the
# step of its dimension, the size of that, and the least and the largest index, from the constant of the expression.
_Known = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int, int, int], ...]]
_known: dict[tuple[Any, ...], _Known] = {}
_MOST = 65536


def _form(tile: Tensor, keys: Any) -> tuple[Any, ...] | None:
    """What decides shape and strides of a view; None where more than that does, as tiles and slices do."""
    form: list[Any] = [tile.shape, tile.strides]
    for key in keys:
        if key.__class__ is Affine:
            form.append(key.extents)
            form.append(key.coefficients)
        elif key.__class__ is int:
            form.append(0)
        else:
            return None
    return tuple(form) if len(keys) == len(tile.shape) and tile.indirection is None else None


def strided(tile: Tensor, keys: Any) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """Shape, strides and offset of a view of a form that was seen before; None for others, and for what overruns."""
    form = _form(tile, keys) if keys.__class__ is tuple else None
    known = _known.get(form) if form is not None else None
    if known is None:
        return None
    shape, strides, limits = known
    offset = tile.offset
    for key, (step, size, low, high) in zip(keys, limits):
        start = key if key.__class__ is int else key.constant
        if start + low < 0 or start + high >= size:
            return None
        offset += start * step
    return shape, strides, offset


def remember(tile: Tensor, keys: Any, view: ViewUnderConstruction) -> None:
    """Let `strided` know a view that was put together."""
    form = _form(tile, keys)
    if form is None or not any(key.__class__ is Affine for key in keys):
        return
    if len(_known) >= _MOST:
        _known.clear()
    shape = tuple(view.shape)
    ends = [(limit.constant, *limit.span(shape)) for limit in view.limits]
    _known[form] = (
        shape,
        tuple(view.strides),
        tuple(
            (step, size, low - start, high - start)
            for step, size, (start, low, high) in zip(tile.strides, tile.shape, ends)
        ),
    )


def _ndim(key: Any) -> int:
    if isinstance(key, AtRunTime):
        return max(len(key.expression.extents), key.tile.ndim)
    return len(key.extents) if isinstance(key, Affine) else key.ndim if isinstance(key, Tensor) else 0


def _extent(key: Any, axis: int, ndim: int) -> int:
    if isinstance(key, Affine):
        at = axis - ndim + len(key.extents)
        return key.extents[at] if at >= 0 else 1
    if isinstance(key, AtRunTime):
        return max(_extent(key.expression, axis, ndim), _extent(key.tile, axis, ndim))
    if isinstance(key, Tensor):
        return key.shape[0] if axis == 0 else 1
    return 1
