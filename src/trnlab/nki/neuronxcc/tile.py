# SPDX-License-Identifier: Apache-2.0
"""Tiles of the old dialect: tensors with operators, index expressions and assignment.

Operations return tiles. Where a result is assigned to (part of) a tile, the instruction that made it writes there
directly; `psum += matmul` accumulates.

Source: class nki.tensor of the 2.2x documentation of aws-neuron-sdk.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Self

from trnlab.lang import compose
from trnlab.lang.assignment import alone_in_setting
from trnlab.lang.dynamic_index import Indirect
from trnlab.lang.storage import refuse
from trnlab.lang.tensor import IndexWindow, Tensor
from trnlab.nki.neuronxcc import assignment
from trnlab.nki.neuronxcc import elementwise as each
from trnlab.nki.neuronxcc.affine import Affine, AtRunTime, Mask
from trnlab.nki.neuronxcc.indexing import Limit, ViewUnderConstruction, remember, strided
from trnlab.nki.neuronxcc.masked import boxed, cut

_ADVANCED = (Affine, AtRunTime, Tensor)


class Tile(Tensor):
    """A view with arithmetic."""

    __slots__ = ()

    empty = False

    def __getitem__(self, key: Any) -> Self:
        """Indices may also be index expressions, which broadcast, tiles (rows to gather), or one mask.

        A mask that only compares numbers is a bool.
        """
        view = strided(self, key)
        if view is not None:
            return self._like(*view)
        if isinstance(key, bool):
            return self if key else _view_as(EmptyTile, self)  # type: ignore[return-value]
        if isinstance(key, Mask):
            box = boxed(key, self.shape)
            nothing = any(low >= high for low, high in box.values())
            return _view_as(EmptyTile, self) if nothing else cut(self, box)  # type: ignore[return-value]
        keys = key if isinstance(key, tuple) else (key,)
        if any(k is None for k in keys):
            return self._with_new_axes(keys)
        if any(isinstance(k, _ADVANCED) for k in keys) or self._overruns(keys):
            return self._indexed(self._expand(keys))
        return super().__getitem__(key)

    def _with_new_axes(self, keys: tuple[Any, ...]) -> Self:
        """None in an index is a new dimension of one element, as in NumPy; on chip not before the partition."""
        before = [sum(k is not Ellipsis for k in keys[:at]) for at, k in enumerate(keys) if k is None]
        if Ellipsis in keys:
            refuse(
                "new dimensions next to an ellipsis",
                limit="x[:, None]",
                got=keys,
                remedy="write out the other dimensions, or use nl.expand_dims",
                code="TRN410",
            )
        view = self[tuple(k for k in keys if k is not None) or ...]
        for axis in before:
            view = view.expand_dim(axis)
        return view

    def _overruns(self, keys: tuple[Any, ...]) -> bool:
        """Whether a slice of an HBM tensor may end past it, which a mask then makes good."""
        if self.on_chip:
            return False
        return any(isinstance(k, IndexWindow) or (isinstance(k, slice) and k.stop is not None) for k in keys) and any(
            _stop(k) > n for k, n in zip(self._expand(keys), self.shape)
        )

    def _indexed(self, keys: Any) -> Self:
        view = ViewUnderConstruction(self, keys)
        for dim, key in enumerate(keys):
            view.add(dim, key)
        remember(self, keys, view)
        made = self._like(tuple(view.shape), tuple(view.strides), view.offset)
        made._indirect = view.chosen
        return beyond(made, tuple(view.limits))  # type: ignore[return-value]

    def _bounds(self, key: Any, axis: int, count: int) -> tuple[int, int, int, bool]:
        """In HBM a slice may end past the tensor: a mask then leaves out what is not there."""
        if not self.on_chip and _stop(key) > count:
            window = slice(key.start, key.start + key.size) if isinstance(key, IndexWindow) else key
            start, step = int(window.start or 0), int(window.step or 1)
            return start, -(-(int(window.stop) - start) // step), step, True
        return super()._bounds(key, axis, count)

    def narrowed(self, axis: int, low: int, high: int) -> Tile:
        """Elements low..high of one dimension, which stays."""
        shape = (*self.shape[:axis], high - low, *self.shape[axis + 1 :])
        return self._like(shape, self.strides, self.offset + low * self.strides[axis])._rows_from(axis, low, high)

    def _rows_from(self, axis: int, low: int, high: int) -> Self:
        rows = self.indirect_rows
        if rows is not None and axis == 0 and rows.index.shape[0] != 1:
            self.offset -= low * self.strides[0]  # the index moves, not the table
            self._indirect = Indirect(rows.index[low:high], rows.rows, rows.step)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        alone = alone_in_setting(getrefcount(value), value)
        assignment.assign(self[key], value, alone)

    # -- what nki.tensor has ------------------------------------------------------------------------------------
    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.format.itemsize

    def as_tile(self) -> Self:
        """Itself: a view is a tile already."""
        return self

    def assert_shape(self, shape: Any) -> Self:
        """Itself. Raises ConstraintError when the shape is another."""
        if tuple(int(s) for s in shape) != self.shape:
            refuse(
                "the tensor does not have the shape that the kernel asserts",
                limit=list(shape),
                got=list(self.shape),
                remedy="check the sizes that lead here",
            )
        return self

    def broadcast_to(self, *shape: Any) -> Tensor:
        """Repeated to `shape`."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return compose.broadcast_to(self, tuple(int(s) for s in sizes))

    def reshape(self, *sizes: Any, shape: Any = None) -> Self:
        """The same elements in another shape."""
        return super().reshape(*sizes) if shape is None else super().reshape(shape)

    def astype(self, dtype: Any) -> Tensor:
        """A copy in another format."""
        return each.copied(self, dtype)

    def expand_dims(self, axis: Any) -> Self:
        """New free dimensions of one element."""
        view = self
        for at in sorted(axis) if isinstance(axis, (tuple, list)) else (axis,):
            view = view.expand_dim(at + view.ndim + 1 if at < 0 else at)
        return view

    def __bool__(self) -> bool:
        """Whether an argument is there; what a tile holds decides nothing while the kernel is recorded."""
        if not self.on_chip:
            return True
        refuse(
            "what a tile holds is not known yet, so that it cannot decide an if, a while, and, or, not",
            limit="integers, such as loop indices and shapes",
            got=repr(self),
            remedy="use nl.where, & | ~ between tiles, `is None` for what is left out",
            code="TRN410",
        )

    # -- operators ----------------------------------------------------------------------------------------------
    def __add__(self, other: Any) -> Any:
        return _both("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _both("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _both("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _both("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return _both("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _both("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return each.divided(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return each.divided(other, self)

    def __mod__(self, other: Any) -> Any:
        return _both("mod", self, other)

    def __pow__(self, other: Any) -> Any:
        return _both("power", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _both("power", other, self)

    def __and__(self, other: Any) -> Any:
        return _both("bitwise_and", self, other)

    def __or__(self, other: Any) -> Any:
        return _both("bitwise_or", self, other)

    def __xor__(self, other: Any) -> Any:
        return _both("bitwise_xor", self, other)

    def __lshift__(self, other: Any) -> Any:
        return _both("left_shift", self, other)

    def __rshift__(self, other: Any) -> Any:
        return _both("right_shift", self, other)

    def __neg__(self) -> Any:
        return each.negated(self)

    def __abs__(self) -> Any:
        return each.function("abs", self)

    def __invert__(self) -> Any:
        return each.inverted(self)

    def __lt__(self, other: Any) -> Any:
        return each.compared("is_lt", self, other)

    def __le__(self, other: Any) -> Any:
        return each.compared("is_le", self, other)

    def __gt__(self, other: Any) -> Any:
        return each.compared("is_gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return each.compared("is_ge", self, other)

    def __eq__(self, other: object) -> Any:
        return self is other if other is None else each.compared("is_equal", self, other)

    def __ne__(self, other: object) -> Any:
        return self is not other if other is None else each.compared("not_equal", self, other)

    __hash__ = object.__hash__

    def __iadd__(self, other: Any) -> Self:
        alone = assignment.alone_in_adding(getrefcount(other), other)
        assignment.add_to(self, other, alone)
        return self

    def __isub__(self, other: Any) -> Self:
        return self._updated("subtract", other)

    def __imul__(self, other: Any) -> Self:
        return self._updated("multiply", other)

    def __itruediv__(self, other: Any) -> Self:
        return self._updated("divide", other)

    def __iand__(self, other: Any) -> Self:
        return self._updated("bitwise_and", other)

    def __ior__(self, other: Any) -> Self:
        return self._updated("bitwise_or", other)

    def _updated(self, op: str, other: Any) -> Self:
        assignment.update(op, self, other)
        return self


class EmptyTile(Tile):
    """An operand of which a mask leaves nothing: operations on it do nothing."""

    __slots__ = ()

    empty = True


class OverhangingTile(Tile):
    """A view that ends past its tensor: usable under a mask that leaves out what is not there."""

    __slots__ = ("limits",)

    limits: tuple[Limit, ...]

    def narrowed(self, axis: int, low: int, high: int) -> Tile:
        """The part that a mask leaves, an ordinary view when nothing is outside any more."""
        shape = (*self.shape[:axis], high - low, *self.shape[axis + 1 :])
        part = _plain(self, shape, self.offset + low * self.strides[axis])._rows_from(axis, low, high)
        return beyond(part, tuple(limit.narrowed(axis, low) for limit in self.limits))

    def _like(self, *arguments: Any, **options: Any) -> Any:
        self._refuse()

    def _pattern(self, keep_dims: bool) -> Any:
        self._refuse()

    def _placed(self) -> Any:
        self._refuse()

    def _refuse(self) -> Any:
        bad = next(limit for limit in self.limits if not limit.holds(self.shape))
        low, high = bad.span(self.shape)
        name = self.name or self.storage.buffer.name
        refuse(
            f"index outside of {name!r}, dimension {bad.dim}",
            limit=f"0..{bad.size - 1}",
            got=f"{low}..{high}",
            remedy=f"pass a mask that leaves out what is not there, e.g. mask=index < {bad.size}",
            code="TRN410",
        )


def beyond(view: Tile, limits: tuple[Limit, ...]) -> Tile:
    """The view, marked when it reaches past its tensor."""
    limits = tuple(limit for limit in limits if not limit.holds(view.shape))
    if not limits:
        return view
    made = OverhangingTile(
        view.storage, view.shape, view.strides, view.offset, view.format, view.indirection, view.name
    )
    made.limits = limits
    return made


def _view_as(kind: type[Tile], view: Tile) -> Tile:
    return kind(view.storage, view.shape, view.strides, view.offset, view.format, view.indirection, view.name)


def _plain(view: Tile, shape: tuple[int, ...], offset: int) -> Tile:
    return Tile(view.storage, shape, view.strides, offset, view.format, view.indirection, view.name)


def _stop(key: Any) -> int:
    """Where a slice ends; 0 for what is none."""
    if isinstance(key, IndexWindow):
        return key.start + key.size
    return int(key.stop) if isinstance(key, slice) and key.stop is not None else 0


def _both(op: str, x: Any, y: Any) -> Any:
    """x op y for operators between tiles."""
    if isinstance(x, (Affine, Mask)) or isinstance(y, (Affine, Mask)):
        return NotImplemented
    return each.binary(op, x, y)
