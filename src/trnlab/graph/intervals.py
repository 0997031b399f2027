# SPDX-License-Identifier: Apache-2.0
"""Interval arithmetic: what the elements of a tensor may be, and how operations and number formats change that.

An interval says of every element that it is NaN or infinite, where it says that such may exist, or lies between two
bounds. The functions here compute with intervals as if numbers had no format: nothing wraps, nothing is rounded.
`in_format` says what results may be in the format that they are stored in: bounds of floats are widened by what
rounding may add, except of whole numbers that the format holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product as pairs

import ml_dtypes
import numpy as np

from trnlab.numerics.dtypes import DType, float8_e8m0fnu, tfloat32

MOST, LEAST = float(np.finfo(np.float32).max), 2.0**-149  # the largest and the smallest positive float32 number
EXACT = 2**24  # whole numbers up to here, and it, are float32 numbers
_SLACK = {4: 1e-5, 2: 2.0**-6, 1: 0.25}  # by bytes of a format: more than one op's rounding moves a bound
_SLACK_OF_TFLOAT32 = 2.0**-9


@dataclass(frozen=True, slots=True)
class Range:
    """The whole numbers low..high."""

    low: int
    high: int

    @property
    def magnitude(self) -> int:
        """The largest distance from zero."""
        return max(abs(self.low), abs(self.high))

    def within(self, other: Range) -> bool:
        """Whether all of it lies in `other`."""
        return other.low <= self.low and self.high <= other.high


@dataclass(frozen=True, slots=True)
class Interval:
    """What is known of the elements of a tensor: low <= x <= high for every x that is finite."""

    low: float = -MOST
    high: float = MOST
    whole: bool = False  # all that are finite are whole numbers
    infinite: bool = False  # infinities may be among the elements
    nan: bool = False  # NaN may be

    @property
    def magnitude(self) -> float:
        """The largest distance from zero of what is finite."""
        return max(abs(self.low), abs(self.high))

    @property
    def range(self) -> Range | None:
        """The same as whole numbers; None where there may be fractions, infinities or NaN."""
        if not self.whole or self.infinite or self.nan:
            return None
        return Range(math.ceil(self.low), math.floor(self.high))

    def is_number(self, number: float) -> bool:
        """Whether it is one number throughout."""
        return self.low == self.high == number and not self.infinite

    def has_magnitude(self, least: float, most: float) -> bool:
        """Whether every |x| is infinite or between the two; whole numbers may be zero as well."""
        smallest = 1.0 if self.whole else max(self.low, -self.high, 0.0)
        return smallest >= least and self.magnitude <= most

    @property
    def is_never_zero(self) -> bool:
        """Whether all that is finite lies above zero, or all of it below."""
        return self.low > 0 or self.high < 0

    def __or__(self, other: Interval) -> Interval:
        return Interval(
            min(self.low, other.low),
            max(self.high, other.high),
            self.whole and other.whole,
            self.infinite or other.infinite,
            self.nan or other.nan,
        )


ANY = Interval(infinite=True, nan=True)


def whole(found: Range) -> Interval:
    """An interval of these whole numbers."""
    return Interval(found.low, found.high, whole=True)


# -- formats ---------------------------------------------------------------------------------------------------------


@cache
def limits(dtype: DType) -> Range:
    """All that a format of integers or truth values holds."""
    low, high = dtype.limits
    return Range(int(low), int(high))


@cache
def of_format(dtype: DType) -> Interval:
    """All that a format holds; what is said of floats holds for every format of them."""
    return ANY if dtype.is_float else whole(limits(dtype))


@dataclass(frozen=True, slots=True)
class _Floats:
    """A float format."""

    most: float  # its largest number
    step: float  # its smallest positive one
    exact: int  # it holds whole numbers up to here
    slack: float  # relative width of what rounding may add
    infinite: bool  # it has infinities, else NaN takes their place


@cache
def _floats(dtype: DType) -> _Floats:
    info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    bits = 10 if dtype is tfloat32 else info.nmant
    step = float(info.smallest_normal) * 2.0**-bits
    slack = _SLACK_OF_TFLOAT32 if dtype is tfloat32 else _SLACK[dtype.itemsize]
    infinite = bool(np.isinf(np.float32(math.inf).astype(dtype.numpy)))
    return _Floats(float(info.max), step, 2 ** (bits + 1), slack, infinite)


def in_format(x: Interval, dtype: DType) -> Interval:
    """What results of exactly x are when stored: rounded; where not all of them fit, integers may be any."""
    if not dtype.is_float:
        numbers = x.range
        return whole(numbers) if numbers is not None and numbers.within(limits(dtype)) else of_format(dtype)
    if dtype is float8_e8m0fnu:  # powers of two: no zero, and few whole numbers
        return ANY
    form = _floats(dtype)
    low, high = x.low, x.high
    if not (x.whole and x.magnitude <= form.exact):
        low, high = low - form.slack * abs(low), high + form.slack * abs(high)
        low, high = _lowered(low, form.step), -_lowered(-high, form.step)
    found = _overflowed(low, high, x, form.most)
    return found if form.infinite else replace(found, infinite=False, nan=found.nan or found.infinite)


def _lowered(low: float, step: float) -> float:
    """A lower bound after underflow, which moves a number by less than the smallest one, and none past zero."""
    return max(low - step, 0.0) if low > 0 else low - step if low else low


def in_float32(x: Interval) -> Interval:
    """What results of exactly x, whole numbers, are when they are rounded once, to the nearest float32 number."""
    with np.errstate(over="ignore"):
        low, high = (float(np.float32(end)) for end in (x.low, x.high))
    return _overflowed(low, high, x, MOST)


def _overflowed(low: float, high: float, x: Interval, most: float) -> Interval:
    """What lies beyond the largest number is infinite; sums of what overflows on both sides may be NaN."""
    below, above = not low >= -most, not high <= most
    nan = x.nan or (below and above) or math.isnan(low) or math.isnan(high)
    ends = (-most if below else min(low, most)), (most if above else max(high, -most))
    return Interval(*ends, x.whole, x.infinite or below or above, nan)


# -- any numbers -----------------------------------------------------------------------------------------------------


def add(x: Interval, y: Interval) -> Interval:
    """x + y; infinities of opposite signs make NaN."""
    return Interval(x.low + y.low, x.high + y.high, x.whole and y.whole, nan=x.infinite and y.infinite)


def negate(x: Interval) -> Interval:
    """-x."""
    return Interval(-x.high, -x.low, x.whole, x.infinite, x.nan)


def multiply(x: Interval, y: Interval) -> Interval:
    """x y; infinity times zero is NaN."""
    corners = [a * c for a, c in pairs((x.low, x.high), (y.low, y.high))]
    nan = (x.infinite and not y.is_never_zero) or (y.infinite and not x.is_never_zero)
    return Interval(min(corners), max(corners), x.whole and y.whole, nan=nan)


def times(x: Interval, count: int) -> Interval:
    """The sum of `count` elements; an infinite sum may be NaN."""
    return Interval(count * x.low, count * x.high, x.whole, nan=x.infinite)


def divide(x: Interval, y: Interval) -> Interval:
    """x / y with fractions. By what may be zero it is bounded by zero at most; by infinity it is zero."""
    if not y.is_never_zero:
        return replace(ANY, low=0.0) if min(x.low, y.low) >= 0 else ANY
    found = multiply(replace(x, whole=False), Interval(1 / y.high, 1 / y.low))
    found = replace(found, nan=x.infinite and y.infinite)
    return found | Interval(0.0, 0.0) if y.infinite else found


def absolute(x: Interval) -> Interval:
    """|x|."""
    return Interval(max(x.low, -x.high, 0), x.magnitude, x.whole)


def sign(x: Interval) -> Interval:
    """-1, 0 or 1."""
    return Interval(-1 if x.low < 0 or x.infinite else 0, 1 if x.high > 0 or x.infinite else 0, whole=True)


def maximum(x: Interval, y: Interval) -> Interval:
    """The larger; beside minus infinity that is the other."""
    lows = [max(x.low, y.low), *([y.low] if x.infinite else []), *([x.low] if y.infinite else [])]
    return Interval(min(lows), max(x.high, y.high), x.whole and y.whole)


def minimum(x: Interval, y: Interval) -> Interval:
    """The smaller."""
    return negate(maximum(negate(x), negate(y)))


def rounded(function: Callable[[float], int]) -> Callable[[Interval], Interval]:
    """What a function makes of it that rounds to whole numbers and keeps order."""
    return lambda x: Interval(function(x.low), function(x.high), whole=True)


def exponential(x: Interval) -> Interval:
    """e^x, zero for minus infinity."""
    low, high = (math.exp(min(max(end, -745.0), 700.0)) for end in (x.low, x.high))
    return Interval(0.0 if x.infinite else low, high)


def exponential_minus_one(x: Interval) -> Interval:
    """e^x - 1, without cancellation near zero; -1 for minus infinity."""
    low, high = (math.expm1(min(end, 700.0)) for end in (x.low, x.high))
    return Interval(-1.0 if x.infinite else low, high)


def log(x: Interval) -> Interval:
    """The natural logarithm; NaN of what is negative."""
    low, high = (math.log(max(end, LEAST)) for end in (x.low, x.high))
    return Interval(low, high, infinite=x.low <= 0, nan=x.low < 0 or x.infinite)


def root(x: Interval) -> Interval:
    """The square root; NaN of what is negative."""
    low, high = (math.sqrt(max(end, 0.0)) for end in (x.low, x.high))
    return Interval(low, high, nan=x.low < 0 or x.infinite)


def reciprocal_root(x: Interval) -> Interval:
    """One over the square root."""
    low, high = (math.sqrt(max(end, LEAST)) for end in (x.low, x.high))
    return Interval(0.0 if x.infinite else 1 / high, 1 / low, infinite=x.low <= 0, nan=x.low < 0 or x.infinite)


def power(x: Interval, y: Interval) -> Interval:
    """x^y: of fractions to powers that are not negative; more is seldom needed."""
    if x.low < 0:
        return ANY
    if x.high > 1 or y.low < 0:
        return replace(ANY, low=0.0)
    return Interval(0.0 if y.infinite else x.low**y.high, x.high**y.low, nan=x.infinite or y.infinite)


# -- whole numbers ---------------------------------------------------------------------------------------------------


def whole_quotient(x: Range, y: Range) -> Range:
    """x / y, truncated; -1 where y is zero."""
    found = [Range(-1, -1)] if y.low <= 0 <= y.high else []
    for low, high in ((y.low, min(y.high, -1)), (max(y.low, 1), y.high)):
        if low <= high:
            ends = [_truncated(a, c) for a, c in pairs((x.low, x.high), (low, high))]
            found.append(Range(min(ends), max(ends)))
    return hull(*found)


def _truncated(x: int, y: int) -> int:
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def whole_remainder(x: Range, y: Range) -> Range:
    """The rest, which has the sign of x; x where y is zero."""
    most = max(x.magnitude if y.low <= 0 <= y.high else 0, min(x.magnitude, y.magnitude - 1))
    return Range(-most if x.low < 0 else 0, most if x.high > 0 else 0)


def whole_power(x: Range, y: Range) -> Range:
    """x^y, truncated. Beyond 64 bits the bound is only that it lies beyond."""
    most = max(x.magnitude ** min(max(y.high, 1), 64), 1)
    return Range(0 if x.low >= 0 else -most, most)


def whole_product(x: Range, count: int) -> Range:
    """Products of `count` numbers. Beyond 64 bits the bound is only that they lie beyond."""
    most = max(x.magnitude, 1) ** min(count, 64)
    return Range(1 if x.low > 0 else 0 if x.low >= 0 else -most, most)


def bits_and(x: Range, y: Range) -> Range:
    """Not more than the smaller of two that are not negative; one such is enough for a bound."""
    bounds = [r.high for r in (x, y) if r.low >= 0]
    return Range(0, min(bounds)) if bounds else bits_or(x, y)


def bits_or(x: Range, y: Range) -> Range:
    """Bits of either or both: within the bits that the operands have."""
    low, high = min(x.low, y.low), max(x.high, y.high)
    bits = max(max(high, 0).bit_length(), (-low - 1).bit_length() if low < 0 else 0)
    return Range(0 if low >= 0 else -(1 << bits), (1 << bits) - 1)


def shift_left(x: Range, by: Range, width: int) -> Range:
    """Bits moved up, as if there were no width; zero by less than nothing, or by the width or more."""
    inside, beyond = _distances(by, width)
    found = [Range(0, 0)] if beyond else []
    if inside is not None:
        ends = [a << d for a, d in pairs((x.low, x.high), (inside.low, inside.high))]
        found.append(Range(min(ends), max(ends)))
    return hull(*found)


def shift_right(x: Range, by: Range, width: int, *, signed: bool) -> Range | None:
    """Bits moved down, below copies of the sign or below zeros. Beyond the width only those are left.

    None where negative numbers may become large ones in more than one way.
    """
    inside, beyond = _distances(by, width)
    if not signed and x.low < 0:
        return Range(0, (1 << (width - inside.low)) - 1) if inside is not None and inside.low > 0 else None
    found = [Range(-1 if x.low < 0 else 0, 0 if x.high >= 0 else -1)] if beyond else []
    if inside is not None:
        ends = [a >> d for a, d in pairs((x.low, x.high), (inside.low, inside.high))]
        found.append(Range(min(ends), max(ends)))
    return hull(*found)


def _distances(by: Range, width: int) -> tuple[Range | None, bool]:
    """The distances of shifts that leave bits, if there are such, and whether there are others."""
    low, high = max(by.low, 0), min(by.high, width - 1)
    return (Range(low, high) if low <= high else None), by.low < 0 or by.high >= width


def hull(*ranges: Range) -> Range:
    """The smallest range that holds all of several."""
    return Range(min(r.low for r in ranges), max(r.high for r in ranges))
