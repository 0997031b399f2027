# SPDX-License-Identifier: Apache-2.0
"""What is known of the numbers in a graph: an interval for each value, by interval arithmetic in float64.

A fact says that every element is NaN or lies in the interval. Bounds are widened by what rounding may add, so that they
hold for values computed in fp32, or rounded to 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import DType, bool_

_SLACK = {4: 1e-5, 2: 2.0**-6, 1: 0.25}  # by bytes of a format: more than an op's rounding moves a bound


@dataclass(frozen=True, slots=True)
class Interval:
    """low <= x <= high for every x that is not NaN. whole: every x is a whole number, infinite or NaN."""

    low: float = -inf
    high: float = inf
    whole: bool = False

    @property
    def magnitude(self) -> float:
        """The largest distance from zero."""
        return max(abs(self.low), abs(self.high))

    def is_number(self, number: float) -> bool:
        """Whether it is one number throughout."""
        return self.low == self.high == number

    def has_magnitude(self, least: float, most: float) -> bool:
        """Whether every |x| is 0, infinite, or between the two."""
        smallest = 1.0 if self.whole else max(self.low, -self.high, 0.0)
        return smallest >= least and self.magnitude <= most

    def __or__(self, other: Interval) -> Interval:
        return Interval(min(self.low, other.low), max(self.high, other.high), self.whole and other.whole)


ANY = Interval()


def of_format(dtype: DType) -> Interval:
    """All that a format holds."""
    if dtype.is_float:
        return ANY
    if dtype is bool_:
        return Interval(0, 1, True)
    info = np.iinfo(dtype.numpy)
    return Interval(float(info.min), float(info.max), True)


class Intervals:
    """Facts about the values of a graph, found when they are first asked for. `given`: of inputs, by their index."""

    def __init__(self, given: dict[int, tuple[float, float]] | None = None) -> None:
        self._given = given or {}
        self._known: dict[Value, Interval] = {}

    def of(self, value: Value) -> Interval:
        """The interval of a value."""
        todo = [value]
        while todo:  # a graph may be deeper than Python's stack
            value = todo[-1]
            missing = [v for v in value.op.operands if v not in self._known] if value.op is not None else []
            if value in self._known or not missing:
                todo.pop()
                if value not in self._known:
                    self._known[value] = self._find(value)
            else:
                todo += missing
        return self._known[value]

    def _find(self, value: Value) -> Interval:
        full = of_format(value.dtype)
        if value.op is None:
            return Interval(*self._given[value.index]) if value.index in self._given else full
        rule = _RULES.get(value.op.name)
        if rule is None:
            return full
        found = rule(self, value.op)
        if any(math.isnan(end) for end in (found.low, found.high)):
            return full
        found = _widened(found, value.dtype) if value.dtype.is_float else found
        if not value.dtype.is_float and (found.low < full.low or found.high > full.high):
            return full  # it may wrap
        return Interval(max(found.low, full.low), min(found.high, full.high), found.whole or full.whole)


def _widened(x: Interval, dtype: DType) -> Interval:
    """As it may be after rounding; zero, whole numbers that every format has, and infinities stay."""
    slack = _SLACK[dtype.itemsize]
    small = x.whole and x.magnitude <= 256
    low, high = x.low, x.high
    if not small:
        low, high = low - slack * abs(low), high + slack * abs(high)
    largest = float(np.finfo(np.float32).max) if dtype.itemsize == 4 else 65504.0 if dtype.name == "float16" else 3e38
    return Interval(-inf if low < -largest else low, inf if high > largest else high, x.whole)


Rule = Callable[[Intervals, Op], Interval]


def _each(function: Callable[..., Interval]) -> Rule:
    return lambda known, op: function(*(known.of(v) for v in op.operands))


def _times(x: float, y: float) -> float:
    """A corner of a product; an infinite bound times zero bounds nothing but zeros."""
    return 0.0 if x == 0 or y == 0 else x * y


def _product(x: Interval, y: Interval) -> Interval:
    corners = [_times(a, c) for a in (x.low, x.high) for c in (y.low, y.high)]
    return Interval(min(corners), max(corners), x.whole and y.whole)


def _multiply(known: Intervals, op: Op) -> Interval:
    x, y = (known.of(v) for v in op.operands)
    found = _product(x, y)
    return Interval(max(found.low, 0.0), found.high, found.whole) if op.operands[0] is op.operands[1] else found


def _divide(x: Interval, y: Interval) -> Interval:
    if y.low <= 0 <= y.high:
        return Interval(0.0, inf) if min(x.low, y.low) >= 0 else ANY
    inverse = sorted((1 / y.low, 1 / y.high))
    return _product(Interval(x.low, x.high), Interval(*inverse))


def _monotone(function: Callable[[float], float]) -> Rule:
    def rule(known: Intervals, op: Op) -> Interval:
        x = known.of(op.operands[0])
        with np.errstate(all="ignore"):
            low, high = (float(function(np.float64(end))) for end in (x.low, x.high))  # type: ignore[arg-type]
        return Interval(low, high)

    return rule


def _root(known: Intervals, op: Op) -> Interval:
    x = known.of(op.operands[0])
    return Interval(math.sqrt(max(x.low, 0.0)), math.sqrt(max(x.high, 0.0)))


def _reciprocal_root(known: Intervals, op: Op) -> Interval:
    x = known.of(op.operands[0])
    low, high = (math.sqrt(max(end, 0.0)) for end in (x.low, x.high))
    return Interval(1 / high if high else 0.0, 1 / low if low else inf)


def _abs(x: Interval) -> Interval:
    return Interval(max(x.low, -x.high, 0.0), x.magnitude, x.whole)


def _power(x: Interval, y: Interval) -> Interval:
    """A fraction to a power that is not negative stays one; more is seldom needed."""
    if x.low < 0:
        return ANY
    return Interval(0.0, 1.0) if x.high <= 1 and y.low >= 0 else Interval(0.0, inf)


def _clamp(low: Interval, x: Interval, high: Interval) -> Interval:
    raised = Interval(max(low.low, x.low), max(low.high, x.high))
    return Interval(min(raised.low, high.low), min(raised.high, high.high))


def _constant(known: Intervals, op: Op) -> Interval:
    value: Any = np.asarray(op.attrs["value"], np.float64)
    if value.size == 0 or np.isnan(value).any():
        return ANY
    whole = bool((np.rint(value) == value).all())
    return Interval(float(value.min()), float(value.max()), whole)


def _iota(known: Intervals, op: Op) -> Interval:
    return Interval(0.0, max(op.result.shape[op.attrs["iota_dimension"]] - 1.0, 0.0), True)


def _convert(known: Intervals, op: Op) -> Interval:
    x, target = known.of(op.operands[0]), op.attrs["dtype"]
    if target is bool_:
        return Interval(0, 1, True)
    if target.is_float:
        return x
    full = of_format(target)
    inside = x.low >= full.low and x.high <= full.high and op.operands[0].dtype.kind != "f"
    return Interval(math.floor(x.low), math.ceil(x.high), True) if inside else full


def _reduce(known: Intervals, op: Op) -> Interval:
    (value,), kind = op.operands, op.attrs["kind"]
    x, count = known.of(value), prod(value.shape[d] for d in op.attrs["dimensions"])
    if kind in ("maximum", "minimum", "and", "or"):
        return x if count else of_format(value.dtype)
    if kind != "add" or count == 0:
        return of_format(value.dtype)
    low, high = (_times(float(count), end) for end in (x.low, x.high))
    if _less_its_maximum(value, op):
        low = 1.0  # one of the exponentials is that of zero
    return Interval(low, high, x.whole)


def _less_its_maximum(value: Value, total: Op) -> bool:
    """Whether a value is exp(x - max(x)), the maximum along the dimensions that are summed."""
    if value.op is None or value.op.name != "exponential":
        return False
    difference = value.op.operands[0].op
    if difference is None or difference.name != "subtract":
        return False
    x, most = difference.operands
    while most.op is not None and most.op.name in ("broadcast_in_dim", "reshape"):
        most = most.op.operands[0]
    found = most.op
    return (
        found is not None
        and found.name == "reduce"
        and found.attrs["kind"] == "maximum"
        and found.operands[0] is x
        and found.attrs["dimensions"] == total.attrs["dimensions"]
    )


def _first(known: Intervals, op: Op) -> Interval:
    return known.of(op.operands[0])


def _within(low: float, high: float, *, whole: bool = False) -> Rule:
    return lambda known, op: Interval(low, high, whole)


def _union(known: Intervals, op: Op) -> Interval:
    found = known.of(op.operands[0])
    for value in op.operands[1:]:
        found = found | known.of(value)
    return found


_RULES: dict[str, Rule] = {
    "add": _each(lambda x, y: Interval(x.low + y.low, x.high + y.high, x.whole and y.whole)),
    "subtract": _each(lambda x, y: Interval(x.low - y.high, x.high - y.low, x.whole and y.whole)),
    "multiply": _multiply,
    "divide": _each(_divide),
    "power": _each(_power),
    "maximum": _each(lambda x, y: Interval(max(x.low, y.low), max(x.high, y.high), x.whole and y.whole)),
    "minimum": _each(lambda x, y: Interval(min(x.low, y.low), min(x.high, y.high), x.whole and y.whole)),
    "negate": _each(lambda x: Interval(-x.high, -x.low, x.whole)),
    "abs": _each(_abs),
    "sign": _within(-1, 1, whole=True),
    "clamp": _each(_clamp),
    "select": _each(lambda pred, x, y: x | y),
    "exponential": _monotone(np.exp),
    "log": lambda known, op: Interval(*(math.log(v) if v > 0 else -inf for v in _ends(known, op))),
    "sqrt": _root,
    "rsqrt": _reciprocal_root,
    "tanh": _within(-1, 1),
    "erf": _within(-1, 1),
    "sine": _within(-1, 1),
    "cosine": _within(-1, 1),
    "logistic": _within(0, 1),
    "trn.rng_uniform": _within(0, 1),
    "compare": _within(0, 1, whole=True),
    "is_finite": _within(0, 1, whole=True),
    **dict.fromkeys(("floor", "ceil", "round_nearest_even"), _each(lambda x: Interval(x.low - 1, x.high + 1, True))),
    "convert": _convert,
    "constant": _constant,
    "iota": _iota,
    **dict.fromkeys(("reshape", "transpose", "broadcast_in_dim", "slice", "gather"), _first),
    **dict.fromkeys(("concatenate", "pad"), _union),
    "reduce": _reduce,
}


def _ends(known: Intervals, op: Op) -> tuple[float, float]:
    x = known.of(op.operands[0])
    return x.low, x.high
