# SPDX-License-Identifier: Apache-2.0
"""Index expressions of the old dialect: nl.arange and nl.mgrid, sums and multiples of them, and masks.

An expression is constant + sum(coefficient[a] * i[a]) over axes that broadcast as NumPy's do; used as an index it
gives a strided view, compared it gives a mask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trnlab.lang.tensor import refuse

_FLIPPED = {"is_lt": "is_gt", "is_gt": "is_lt", "is_le": "is_ge", "is_ge": "is_le"}
_TRUTH: dict[str, Callable[[int, int], bool]] = {
    "is_lt": operator.lt, "is_gt": operator.gt, "is_le": operator.le, "is_ge": operator.ge,
    "is_equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Affine:
    """constant + sum of coefficients * indices; extents has 1 where the axis is broadcast."""

    extents: tuple[int, ...]
    coefficients: tuple[int, ...]
    constant: int = 0

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
        extents: list[int] = []
        coefficients: list[int] = []
        axes = iter(zip(self.extents, self.coefficients))
        for k in key if isinstance(key, tuple) else (key,):
            if k is None:
                extents.append(1)
                coefficients.append(0)
            elif k == slice(None):
                extent, coefficient = next(axes)
                extents.append(extent)
                coefficients.append(coefficient)
            else:
                refuse("an index expression only takes new axes", limit="None and :", got=k,
                       remedy="make the range you want with nl.arange(start, stop)", code="TRN410")  # fmt: skip
        rest = list(axes)
        return Affine(
            (*extents, *(e for e, _ in rest)), (*coefficients, *(c for _, c in rest)), self.constant
        )  # fmt: skip

    def __add__(self, other: Any) -> Any:
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
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __lt__(self, other: Any) -> Mask:
        return Mask(((self - other, "is_lt"),))

    def __le__(self, other: Any) -> Mask:
        return Mask(((self - other, "is_le"),))

    def __gt__(self, other: Any) -> Mask:
        return Mask(((self - other, "is_gt"),))

    def __ge__(self, other: Any) -> Mask:
        return Mask(((self - other, "is_ge"),))

    def __eq__(self, other: object) -> Mask:  # type: ignore[override]
        return Mask(((self - other, "is_equal"),))

    def __ne__(self, other: object) -> Mask:  # type: ignore[override]
        return Mask(((self - other, "not_equal"),))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Mask:
    """All of these hold: (expression, comparison with zero)."""

    terms: tuple[tuple[Affine, str], ...]

    def __and__(self, other: Any) -> Any:
        if isinstance(other, Mask):
            return Mask(self.terms + other.terms)
        return self if other else False

    __rand__ = __and__

    def ranges(self, ndim: int) -> dict[int, tuple[int, int]]:
        """First and one-past-last index of each axis that the mask bounds, axes of a view with `ndim` dimensions.

        Raises ConstraintError for a mask that is not a box.
        """
        out: dict[int, tuple[int, int]] = {}
        for expression, compare in self.terms:
            shift = ndim - len(expression.extents)
            axes = [a for a, c in enumerate(expression.coefficients) if c]
            holds = _TRUTH[compare]
            if not axes:
                if not holds(expression.constant, 0):
                    return {0: (0, 0)}
                continue
            if len(axes) > 1 or compare == "not_equal":
                refuse("a mask must bound each index by itself", limit="i < n", got=expression,
                       remedy="use nisa.affine_select for masks over two dimensions", code="TRN411")  # fmt: skip
            axis = axes[0]
            good = [
                i for i in range(expression.extents[axis])
                if holds(expression.constant + expression.coefficients[axis] * i, 0)
            ]  # fmt: skip
            low, high = (good[0], good[-1] + 1) if good else (0, 0)
            old = out.get(axis + shift, (0, expression.extents[axis]))
            out[axis + shift] = (max(low, old[0]), max(min(high, old[1]), max(low, old[0])))
        return out


def _aligned(a: Affine, b: Affine) -> tuple[Affine, Affine]:
    n = max(len(a.extents), len(b.extents))
    return tuple(  # type: ignore[return-value]
        Affine((1,) * (n - len(e.extents)) + e.extents, (0,) * (n - len(e.extents)) + e.coefficients, e.constant)
        for e in (a, b)
    )


def arange(*bounds: int) -> Affine:
    """start, start + 1, ... before stop."""
    start, stop = (0, *bounds) if len(bounds) == 1 else bounds[:2]
    return Affine((int(stop) - int(start),), (1,), int(start))


class Grid(tuple[Affine, ...]):
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

    def __getitem__(self, key: Any) -> Grid:
        return Grid(self._axes(key if isinstance(key, tuple) else (key,)))

    def _axes(self, slices: tuple[slice, ...]) -> Iterator[Affine]:
        for axis, one in enumerate(slices):
            start, step = int(one.start or 0), int(one.step or 1)
            extent = -(-(int(one.stop) - start) // step)
            put = [1] * len(slices), [0] * len(slices)
            put[0][axis], put[1][axis] = extent, step
            yield Affine(tuple(put[0]), tuple(put[1]), start)


mgrid = _MeshGrid()
