# SPDX-License-Identifier: Apache-2.0
"""What is known of the numbers in a graph: an interval for each value, by interval arithmetic in float64.

A fact says that every element is NaN, or infinite where that is said to be possible, or lies in the interval. Bounds
are widened by what rounding may add, so that they hold for values computed in fp32, or rounded to 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import DType, bfloat16, bool_, float16, float32

_SLACK = {4: 1e-5, 2: 2.0**-6, 1: 0.25}  # by bytes of a format: more than one op's rounding moves a bound
_MOST = {float32: float(np.finfo(np.float32).max), bfloat16: 3.3895e38, float16: 65504.0}
_STEP = {bfloat16: 2.0**-133, float16: 2.0**-24}  # between the smallest numbers; of fp32: LEAST
MOST, LEAST = _MOST[float32], 2.0**-149  # the largest and the smallest positive number


@dataclass(frozen=True, slots=True)
class Interval:
    """low <= x <= high for every x that is finite. whole: all such are whole numbers. infinite: others may exist."""

    low: float = -MOST
    high: float = MOST
    whole: bool = False
    infinite: bool = False

    @property
    def magnitude(self) -> float:
        """The largest distance from zero of what is finite."""
        return max(abs(self.low), abs(self.high))

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
        )


ANY = Interval(infinite=True)


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

    def sign_of(self, value: Value, depth: int = 16) -> int:
        """1 where no element is below zero, -1 where none is above, infinities included; 0 when unknown.

        Zeros may have either sign, so what is infinite because of a zero has no known one. depth: how many ops to
        look back.
        """
        x = self.of(value)
        if not x.infinite:
            return (x.low >= 0) - (x.high <= 0)
        rule = _SIGNS.get(value.op.name) if value.op is not None and depth else None
        if rule is None or value.op is None:
            return 0
        if value.op.name in ("divide", "rsqrt") and not self.of(value.op.operands[-1]).is_never_zero:
            return 0
        return rule(*(self.sign_of(v, depth - 1) for v in value.op.operands))

    def _find(self, value: Value) -> Interval:
        full = of_format(value.dtype)
        if value.op is None:
            return Interval(*self._given[value.index]) if value.index in self._given else full
        rule = _RULES.get(value.op.name)
        found = rule(self, value.op) if rule is not None else full
        if value.dtype.is_float:
            return _rounded(found, value.dtype)
        return found if found.low >= full.low and found.high <= full.high else full  # beyond, it wraps


def _rounded(x: Interval, dtype: DType) -> Interval:
    """As it may be after rounding; small whole numbers, which every format has, stay. What overflows is infinite."""
    low, high, most = x.low, x.high, _MOST.get(dtype, MOST)
    if not (x.whole and x.magnitude <= 256):
        slack = _SLACK[dtype.itemsize]
        low, high = low - slack * abs(low), high + slack * abs(high)
        low, high = _towards_zero(low, _STEP.get(dtype, LEAST)), -_towards_zero(-high, _STEP.get(dtype, LEAST))
    over = low < -most or high > most or math.isnan(low) or math.isnan(high)
    return Interval(max(low, -most), min(high, most), x.whole, x.infinite or over)


def _towards_zero(low: float, step: float) -> float:
    """A lower bound above zero after underflow."""
    return max(low - step, 0.0) if low > 0 else low


Rule = Callable[[Intervals, Op], Interval]


def _each(function: Callable[..., Interval]) -> Rule:
    """A rule of the operands' intervals; infinities come from infinities, and from bounds that overflow."""

    def rule(known: Intervals, op: Op) -> Interval:
        operands = [known.of(v) for v in op.operands]
        found = function(*operands)
        return replace(found, infinite=found.infinite or any(x.infinite for x in operands))

    return rule


def _add(x: Interval, y: Interval) -> Interval:
    return Interval(x.low + y.low, x.high + y.high, x.whole and y.whole)


def _negate(x: Interval) -> Interval:
    return Interval(-x.high, -x.low, x.whole, x.infinite)


def _product(x: Interval, y: Interval) -> Interval:
    corners = [a * c for a in (x.low, x.high) for c in (y.low, y.high)]
    return Interval(min(corners), max(corners), x.whole and y.whole)


def _multiply(known: Intervals, op: Op) -> Interval:
    x, y = (known.of(v) for v in op.operands)
    found = replace(_product(x, y), infinite=x.infinite or y.infinite)
    return replace(found, low=max(found.low, 0.0)) if op.operands[0] is op.operands[1] else found


def _divide(x: Interval, y: Interval) -> Interval:
    """Division by what may be zero is bounded by zero at most; what is divided by infinity is zero."""
    if y.low <= 0 <= y.high:
        return replace(ANY, low=0.0) if min(x.low, y.low) >= 0 else ANY
    inverse = sorted((1 / y.low, 1 / y.high))
    found = _product(replace(x, whole=False), Interval(inverse[0], inverse[1]))
    return found | Interval(0.0, 0.0) if y.infinite else found


def _exponential(known: Intervals, op: Op) -> Interval:
    (value,) = op.operands
    if _less_its_maximum(value) is not None:
        return Interval(0.0, 1.0)
    x = known.of(value)
    low, high = (math.exp(min(max(end, -745.0), 700.0)) for end in (x.low, x.high))
    return Interval(0.0 if x.infinite else low, high, infinite=x.infinite)


def _exponential_minus_one(known: Intervals, op: Op) -> Interval:
    found = _exponential(known, op)
    return replace(found, low=found.low - 1, high=found.high - 1)


def _log(x: Interval) -> Interval:
    low, high = (math.log(max(end, LEAST)) for end in (x.low, x.high))
    return Interval(low, high, infinite=x.low <= 0)


def _root(x: Interval) -> Interval:
    low, high = (math.sqrt(max(end, 0.0)) for end in (x.low, x.high))
    return Interval(low, high)


def _reciprocal_root(x: Interval) -> Interval:
    low, high = (math.sqrt(max(end, LEAST)) for end in (x.low, x.high))
    return Interval(0.0 if x.infinite else 1 / high, 1 / low, infinite=x.low <= 0)


def _abs(x: Interval) -> Interval:
    return Interval(max(x.low, -x.high, 0.0), x.magnitude, x.whole)


def _power(x: Interval, y: Interval) -> Interval:
    """Interval of fractions to powers that are not negative; more is seldom needed."""
    if x.low < 0:
        return ANY
    if x.high > 1 or y.low < 0:
        return replace(ANY, low=0.0)
    return Interval(0.0 if y.infinite else x.low**y.high, x.high**y.low)


def _maximum(x: Interval, y: Interval) -> Interval:
    """Beside minus infinity the other is the larger."""
    lows = [max(x.low, y.low), *([y.low] if x.infinite else []), *([x.low] if y.infinite else [])]
    return Interval(min(lows), max(x.high, y.high), x.whole and y.whole)


def _minimum(x: Interval, y: Interval) -> Interval:
    return _negate(_maximum(_negate(x), _negate(y)))


def _constant(known: Intervals, op: Op) -> Interval:
    value: Any = np.asarray(op.attrs["value"], np.float64)
    finite = value[np.isfinite(value)]
    if finite.size == 0:
        return of_format(op.result.dtype)
    whole = bool((np.rint(finite) == finite).all())
    return Interval(float(finite.min()), float(finite.max()), whole, bool(np.isinf(value).any()))


def _iota(known: Intervals, op: Op) -> Interval:
    return Interval(0.0, max(op.result.shape[op.attrs["iota_dimension"]] - 1.0, 0.0), True)


def _convert(known: Intervals, op: Op) -> Interval:
    x, target = known.of(op.operands[0]), op.attrs["dtype"]
    if target.is_float:
        return x
    return x if x.whole and not x.infinite and target is not bool_ else of_format(target)


def _reduce(known: Intervals, op: Op) -> Interval:
    (value,), kind = op.operands, op.attrs["kind"]
    x, count = known.of(value), prod(value.shape[d] for d in op.attrs["dimensions"])
    if kind in ("maximum", "minimum", "and", "or"):
        return x if count else of_format(value.dtype)
    if kind != "add" or count == 0:
        return of_format(value.dtype)
    made = value.op
    peak = _less_its_maximum(made.operands[0]) if made is not None and made.name == "exponential" else None
    low = 1.0 if peak == op.attrs["dimensions"] else count * x.low  # one of the exponentials is that of zero
    return Interval(low, count * x.high, x.whole, x.infinite)


def _less_its_maximum(value: Value) -> tuple[int, ...] | None:
    """The dimensions along which a value is x - max(x); None when it is something else."""
    if value.op is None or value.op.name != "subtract":
        return None
    x, most = value.op.operands
    while most.op is not None and most.op.name in ("broadcast_in_dim", "reshape"):
        most = most.op.operands[0]
    found = most.op
    if found is None or found.name != "reduce" or found.attrs["kind"] != "maximum" or found.operands[0] is not x:
        return None
    dims: tuple[int, ...] = found.attrs["dimensions"]
    return dims


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
    "add": _each(_add),
    "subtract": _each(lambda x, y: _add(x, _negate(y))),
    "multiply": _multiply,
    "divide": _each(_divide),
    "power": _each(_power),
    "maximum": _each(_maximum),
    "minimum": _each(_minimum),
    "negate": _each(_negate),
    "abs": _each(_abs),
    "sign": _within(-1, 1, whole=True),
    "clamp": _each(lambda low, x, high: _minimum(_maximum(x, low), high)),
    "select": _each(lambda pred, x, y: x | y),
    "exponential": _exponential,
    "exponential_minus_one": _exponential_minus_one,
    "log": _each(_log),
    "sqrt": _each(_root),
    "rsqrt": _each(_reciprocal_root),
    **dict.fromkeys(("tanh", "erf", "sine", "cosine"), _within(-1, 1)),
    "atan": _within(-math.pi / 2, math.pi / 2),
    **dict.fromkeys(("logistic", "trn.rng_uniform"), _within(0, 1)),
    **dict.fromkeys(("compare", "is_finite"), _within(0, 1, whole=True)),
    **dict.fromkeys(("floor", "ceil", "round_nearest_even"), _each(lambda x: Interval(x.low - 1, x.high + 1, True))),
    "convert": _convert,
    "constant": _constant,
    "iota": _iota,
    **dict.fromkeys(("reshape", "transpose", "broadcast_in_dim", "slice", "gather", "optimization_barrier"), _first),
    **dict.fromkeys(("concatenate", "pad"), _union),
    "reduce": _reduce,
}

_SIGNS: dict[str, Callable[..., int]] = {  # of a result, by those of the operands
    **dict.fromkeys(("sqrt", "rsqrt", "exponential", "abs"), lambda x: 1),
    **dict.fromkeys(("reshape", "transpose", "broadcast_in_dim", "slice", "optimization_barrier"), lambda x: x),
    "negate": lambda x: -x,
    "add": lambda x, y: x if x == y else 0,
    "subtract": lambda x, y: x if x == -y else 0,
    **dict.fromkeys(("multiply", "divide"), lambda x, y: x * y),
}
