# SPDX-License-Identifier: Apache-2.0
"""Index expressions of the old dialect: nl.arange and nl.mgrid, sums and multiples of them, and masks.

An expression is constant + sum(coefficient[a] * i[a]) over axes that broadcast as NumPy's do; used as an index it
gives a strided view, compared it gives a mask. With a tile added it is an index that is known only at run time.

Source: nl.arange, nl.mgrid and "NKI API Masking" of the 2.2x documentation of aws-neuron-sdk.
"""

from __future__ import annotations

import ast
import linecache
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import CodeType
from typing import Any, NoReturn

from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor

_FLIPPED = {"is_lt": "is_gt", "is_gt": "is_lt", "is_le": "is_ge", "is_ge": "is_le"}
_TRUTH: dict[str, Callable[[int, int], bool]] = {
    "is_lt": operator.lt,
    "is_gt": operator.gt,
    "is_le": operator.le,
    "is_ge": operator.ge,
    "is_equal": operator.eq,
    "not_equal": operator.ne,
}
_ALL = slice(None)


class Affine:
    """constant + sum of coefficients * indices; extents has 1 where the axis is broadcast. It never changes."""

    __slots__ = ("_column", "_row", "coefficients", "constant", "extents")

    def __init__(self, extents: tuple[int, ...], coefficients: tuple[int, ...], constant: int = 0) -> None:
        self.extents, self.coefficients, self.constant = extents, coefficients, constant
        self._column: Affine | None = None  # [:, None] and [None, :] of it, which kernels write in every index
        self._row: Affine | None = None

    def __repr__(self) -> str:
        return f"Affine(extents={self.extents}, coefficients={self.coefficients}, constant={self.constant})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape as an index."""
        return self.extents

    @property
    def p(self) -> Affine:
        """Itself: the partition index of a grid."""
        return self

    x = p

    def __getitem__(self, key: Any) -> Affine:
        """Insert broadcast axes with None; other axes stay whole."""
        if key.__class__ is tuple and len(key) == 2 and len(self.extents) == 1:  # nl.arange(n)[:, None] and [None, :]
            first, last = key
            if last is None and first.__class__ is slice and first == _ALL:
                if self._column is None:
                    self._column = Affine((self.extents[0], 1), (self.coefficients[0], 0), self.constant)
                return self._column
            if first is None and last.__class__ is slice and last == _ALL:
                if self._row is None:
                    self._row = Affine((1, self.extents[0]), (0, self.coefficients[0]), self.constant)
                return self._row
        extents: list[int] = []
        coefficients: list[int] = []
        axes = iter(zip(self.extents, self.coefficients))
        for k in key if isinstance(key, tuple) else (key,):
            if k is None:
                extents.append(1)
                coefficients.append(0)
            elif k == _ALL:
                extent, coefficient = next(axes)
                extents.append(extent)
                coefficients.append(coefficient)
            else:
                refuse(
                    "an index expression only takes new axes",
                    limit="None and :",
                    got=k,
                    remedy="make the range you want with nl.arange(start, stop)",
                    code="TRN410",
                )
        rest = list(axes)
        return Affine((*extents, *(e for e, _ in rest)), (*coefficients, *(c for _, c in rest)), self.constant)

    def __add__(self, other: Any) -> Any:
        if other.__class__ is int:
            return Affine(self.extents, self.coefficients, self.constant + other)
        if isinstance(other, Tensor):
            return AtRunTime(self, other)
        if isinstance(other, Affine):
            a, b = _aligned(self, other)
            extents = tuple(max(m, n) for m, n in zip(a.extents, b.extents))
            return Affine(
                extents, tuple(m + n for m, n in zip(a.coefficients, b.coefficients)), a.constant + b.constant
            )
        if not hasattr(other, "__index__"):
            return NotImplemented
        return Affine(self.extents, self.coefficients, self.constant + int(other))

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        if not hasattr(other, "__index__"):
            return NotImplemented
        factor = int(other)
        return Affine(self.extents, tuple(c * factor for c in self.coefficients), self.constant * factor)

    __rmul__ = __mul__

    def __neg__(self) -> Affine:
        return self * -1  # type: ignore[no-any-return]

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Tensor) else self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __lt__(self, other: Any) -> Mask:
        return self._compared(other, "is_lt")

    def __le__(self, other: Any) -> Mask:
        return self._compared(other, "is_le")

    def __gt__(self, other: Any) -> Mask:
        return self._compared(other, "is_gt")

    def __ge__(self, other: Any) -> Mask:
        return self._compared(other, "is_ge")

    def __eq__(self, other: object) -> Mask:  # type: ignore[override]
        return self._compared(other, "is_equal")

    def __ne__(self, other: object) -> Mask:  # type: ignore[override]
        return self._compared(other, "not_equal")

    __hash__ = None  # type: ignore[assignment]

    def _compared(self, other: Any, compare: str) -> Mask:
        if not isinstance(other, Affine) and not hasattr(other, "__index__"):
            refuse(
                "a mask compares index expressions and integers",
                limit="what is known while recording",
                got=other,
                remedy="use nl.where or tensor_copy_predicated for what tiles hold",
                code="TRN411",
            )
        mask = Mask(((self - other, compare),))
        return _joined.pop() & mask if _joined else mask

    def __floordiv__(self, other: Any) -> Affine:
        return self._divided(other, "//")[0]

    def __mod__(self, other: Any) -> Affine:
        return self._divided(other, "%")[1]

    def _divided(self, divisor: Any, operator_: str) -> tuple[Affine, Affine]:
        """Quotient and remainder, where both are affine: what is no multiple of the divisor must stay below it."""
        if not hasattr(divisor, "__index__") or int(divisor) <= 0:
            self._not_affine(operator_, divisor)
        m = int(divisor)
        rest = tuple(0 if c % m == 0 else c for c in self.coefficients)
        reach = [c * (n - 1) for c, n in zip(rest, self.extents)]
        low, high = (
            self.constant % m + sum(min(r, 0) for r in reach),
            self.constant % m + sum(max(r, 0) for r in reach),
        )
        if low < 0 or high >= m:
            self._not_affine(operator_, divisor)
        whole = tuple(c // m if c % m == 0 else 0 for c in self.coefficients)
        return Affine(self.extents, whole, self.constant // m), Affine(self.extents, rest, self.constant % m)

    def _not_affine(self, operator_: str, other: Any) -> NoReturn:
        refuse(
            "index expressions are sums of multiples of indices",
            limit="i * n + j * m + constant",
            got=f"index {operator_} {other}",
            remedy="split the index into two: nl.arange for each part",
            code="TRN410",
        )

    def __bool__(self) -> bool:
        _no_truth("an index expression")


_joined: list[Mask] = []  # the left side of an `and` whose right side is about to be compared


@lru_cache(maxsize=256)
def joins_comparisons(code: CodeType, at: int) -> bool:
    """Whether the instruction at byte `at` decides a chain of comparisons joined by `and`, as the source says."""
    position = next(islice(code.co_positions(), at // 2, None), None)
    first, last, start, end = position if position is not None else (None,) * 4
    if first is None or last is None:
        return False
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        tree = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:
        return False
    return (
        isinstance(tree, ast.BoolOp)
        and isinstance(tree.op, ast.And)
        and all(isinstance(value, ast.Compare) and len(value.ops) == 1 for value in tree.values)
    )


@dataclass(frozen=True)
class Mask:
    """All of these hold: (expression, comparison with zero)."""

    terms: tuple[tuple[Affine, str], ...]

    def __and__(self, other: Any) -> Any:
        if isinstance(other, Mask):
            return Mask(self.terms + other.terms)
        return self if other else False

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        """Where one of the two holds everywhere or nowhere. Raises ConstraintError for other unions: no box."""
        for one, rest in ((self, other), (other, self)):
            known = one.decided() if isinstance(one, Mask) else bool(one)
            if known is not None:
                return True if known else rest
        refuse(
            "masks that are joined by or leave no box",
            limit="conditions joined by &",
            got="a | b",
            remedy="compute the parts one after the other, each under its own mask",
            code="TRN411",
        )

    __ror__ = __or__

    def decided(self) -> bool | None:
        """Whether it holds for all indices (True) or for none (False); None where that differs or is not seen."""
        holds: list[bool | None] = []
        for expression, compare in self.terms:
            axes = [(c, n) for c, n in zip(expression.coefficients, expression.extents) if c]
            if not axes:
                holds.append(_TRUTH[compare](expression.constant, 0))
            elif len(axes) > 1 or compare == "not_equal":
                return None
            else:
                low, high = _holds(axes[0][0], expression.constant, compare, axes[0][1])
                holds.append(None if 0 < high - low < axes[0][1] else high > low)
        return False if False in holds else None if None in holds else True

    def __bool__(self) -> bool:
        """Only in `a < m and b < n`, which kernels write for `&`: the next comparison joins this one."""
        frame = sys._getframe(1)
        if not joins_comparisons(frame.f_code, frame.f_lasti):
            _no_truth("a mask")
        _joined.append(self)
        return True

    def ranges(self, shape: tuple[int, ...]) -> dict[int, tuple[int, int]]:
        """First and one-past-last index of each axis that the mask bounds, axes of a view of this shape.

        An axis of an expression is the view's axis at the same place from the end, or from the start where only that
        one has as many elements. Raises ConstraintError for a mask that is not a box.
        """
        out: dict[int, tuple[int, int]] = {}
        for expression, compare in self.terms:
            axes = [a for a, c in enumerate(expression.coefficients) if c]
            if not axes:
                if not _TRUTH[compare](expression.constant, 0):
                    return {0: (0, 0)}
                continue
            if len(axes) > 1 or compare == "not_equal":
                refuse(
                    "a mask must bound each index by itself",
                    limit="i < n",
                    got=expression,
                    remedy="use nisa.affine_select for masks over two dimensions",
                    code="TRN411",
                )
            extent = expression.extents[axes[0]]
            low, high = _holds(expression.coefficients[axes[0]], expression.constant, compare, extent)
            axis = _place(axes[0], expression.extents, shape)
            old = out.get(axis, (0, extent))
            low, high = max(low, old[0]), min(high, old[1])
            out[axis] = (low, max(low, high))
        return out


def _holds(step: int, constant: int, compare: str, extent: int) -> tuple[int, int]:
    """First and one-past-last i in 0..extent with step * i + constant compared with zero as asked."""
    if compare == "is_equal":
        at, rest = divmod(-constant, step)
        return (at, at + 1) if not rest and 0 <= at < extent else (0, 0)
    if compare in ("is_gt", "is_ge"):
        step, constant, compare = -step, -constant, _FLIPPED[compare]
    bound = -constant + (compare == "is_le")  # step * i < bound
    low, high = (0, (bound - 1) // step + 1) if step > 0 else (bound // step + 1, extent)
    low, high = max(low, 0), min(high, extent)
    return low, max(low, high)


def _place(axis: int, extents: tuple[int, ...], shape: tuple[int, ...]) -> int:
    from_end = axis + len(shape) - len(extents)
    fits = from_end >= 0 and shape[from_end] == extents[axis]
    return axis if not fits and axis < len(shape) and (from_end < 0 or shape[axis] == extents[axis]) else from_end


@dataclass(frozen=True)
class AtRunTime:
    """An index that is known only at run time: an expression plus what a tile holds (one element, or one per row)."""

    expression: Affine
    tile: Tensor

    def __add__(self, other: Any) -> Any:
        return AtRunTime(self.expression + other, self.tile)

    __radd__ = __add__


def _no_truth(what: str) -> NoReturn:
    refuse(
        f"{what} stands for many values, so that it cannot decide an if, a while, and, or, not",
        limit="integers, such as loop indices",
        got=what,
        remedy="pass it as mask=, join masks with &",
        code="TRN411",
    )


def _aligned(a: Affine, b: Affine) -> tuple[Affine, Affine]:
    n = max(len(a.extents), len(b.extents))
    return tuple(  # type: ignore[return-value]
        Affine((1,) * (n - len(e.extents)) + e.extents, (0,) * (n - len(e.extents)) + e.coefficients, e.constant)
        for e in (a, b)
    )


def arange(*bounds: int) -> Affine:
    """start, start + 1, ... before stop."""
    if len(bounds) == 1 and bounds[0].__class__ is int:
        return _first(bounds[0])
    start, stop = (0, *bounds) if len(bounds) == 1 else bounds[:2]
    return Affine((int(stop) - int(start),), (1,), int(start))


@lru_cache(maxsize=1024)
def _first(count: int) -> Affine:
    """The first numbers, from zero on: one object for all indices that begin with them."""
    return Affine((count,), (1,), 0)


class IndexGrid(tuple[Affine, ...]):
    """The index expressions of nl.mgrid, one per dimension."""

    @property
    def p(self) -> Affine:
        """The first: the partition."""
        return self[0]

    @property
    def x(self) -> Affine:
        """The second: the first free dimension."""
        return self[1]

    @property
    def y(self) -> Affine:
        """The third."""
        return self[2]

    @property
    def z(self) -> Affine:
        """The fourth."""
        return self[3]


class _MeshGrid:
    """nl.mgrid[0:128, 0:512]."""

    def __getitem__(self, key: Any) -> IndexGrid:
        return IndexGrid(self._axes(key if isinstance(key, tuple) else (key,)))

    def _axes(self, slices: tuple[slice, ...]) -> Iterator[Affine]:
        for axis, one in enumerate(slices):
            start, step = int(one.start or 0), int(one.step or 1)
            extent = -(-(int(one.stop) - start) // step)
            put = [1] * len(slices), [0] * len(slices)
            put[0][axis], put[1][axis] = extent, step
            yield Affine(tuple(put[0]), tuple(put[1]), start)


mgrid = _MeshGrid()
