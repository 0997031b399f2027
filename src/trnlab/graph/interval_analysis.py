# SPDX-License-Identifier: Apache-2.0
"""Interval analysis of graphs: what is known of the elements of each value, from constants, positions and formats.

One table of rules serves whoever asks: which integers may need more than 32 bits (`overflow`), which whole numbers
float32 holds exactly, and which floats are moderate, never zero or of one sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from trnlab.graph import intervals as arithmetic
from trnlab.graph.intervals import Interval, Range, in_float32, in_format, of_format, whole
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import OPS, SHAPE
from trnlab.numerics.dtypes import DType, bool_, dtype, float32


class Intervals:
    """Facts about the values of a graph, found when they are first asked for. `given`: of inputs, by their index.

    The graph may grow meanwhile. Of what an op gives besides its first result nothing is known but the format.
    """

    def __init__(self, given: Mapping[int, tuple[float, float]] | None = None) -> None:
        self._given = given or {}
        self._known: dict[Value, Interval] = {}

    def of(self, value: Value) -> Interval:
        """The interval of a value, as it is stored."""
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

    def exact(self, op: Op) -> Range | None:
        """The first result as whole numbers, before it wraps or is rounded; None where it may be something else."""
        found = _found(self, op)
        return None if found is None else found.range

    def range(self, value: Value) -> Range | None:
        """A value as whole numbers; None for floats that may be none, infinite or NaN."""
        return self.of(value).range

    def bounds(self, value: Value) -> Range:
        """The whole numbers of an integer or truth value."""
        found = self.range(value)
        assert found is not None
        return found

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
        if value.op is None:
            given = self._given.get(value.index)
            return of_format(value.dtype) if given is None else Interval(*given)
        found = _found(self, value.op) if value is value.op.result else None
        if found is None:
            return of_format(value.dtype)
        if OPS[value.op.name].kind == SHAPE or value.op.name == "select":
            return found  # what is moved is not rounded
        if value.op.name == "convert" and value.dtype is float32 and found.whole:
            return in_float32(found)
        return in_format(found, value.dtype)


Rule = Callable[[Intervals, Op], Interval | None]
"""The interval of an op's first result, as if it had no format; None where nothing is known of it."""


def _found(known: Intervals, op: Op) -> Interval | None:
    rule = _RULES.get(op.name)
    return rule(known, op) if rule is not None else None


def _each(function: Callable[..., Interval]) -> Rule:
    """A rule of the operands' intervals. Infinities and NaN come from such, and from where the function has them."""
    return lambda known, op: _merged(function, *(known.of(v) for v in op.operands))


def _merged(function: Callable[..., Interval], *given: Interval) -> Interval:
    found = function(*given)
    infinite, nan = any(x.infinite for x in given), any(x.nan for x in given)
    return replace(found, infinite=found.infinite or infinite, nan=found.nan or nan)


def _integers(function: Callable[..., Range], floats: Rule | None = None) -> Rule:
    """A rule for integers, of the operands' ranges, and one for floats."""

    def rule(known: Intervals, op: Op) -> Interval | None:
        if op.result.dtype.is_float:
            return None if floats is None else floats(known, op)
        return whole(function(*(known.bounds(v) for v in op.operands)))

    return rule


# -- sources, casts and moves ----------------------------------------------------------------------------------------


def _constant(known: Intervals, op: Op) -> Interval | None:
    value: Any = np.asarray(op.attrs["value"])
    if value.size == 0:
        return None
    if not op.result.dtype.is_float:
        return whole(Range(int(value.min()), int(value.max())))
    value = value.astype(np.float64)
    finite = value[np.isfinite(value)]
    if finite.size == 0:
        return None
    integral = bool((np.rint(finite) == finite).all())
    infinite, nan = bool(np.isinf(value).any()), bool(np.isnan(value).any())
    return Interval(float(finite.min()), float(finite.max()), integral, infinite, nan)


def _iota(known: Intervals, op: Op) -> Interval:
    return whole(Range(0, max(op.result.shape[op.attrs["iota_dimension"]] - 1, 0)))


def _convert(known: Intervals, op: Op) -> Interval | None:
    x, target = known.of(op.operands[0]), op.attrs["dtype"]
    if target is bool_:
        return None
    if target.is_float or x.range is not None:
        return x
    if x.infinite or x.nan:
        return None
    return whole(Range(math.trunc(x.low), math.trunc(x.high)))  # casts drop fractions


def _first(known: Intervals, op: Op) -> Interval:
    return known.of(op.operands[0])


def _select(known: Intervals, op: Op) -> Interval:
    """Either of both; what is asked whether it is finite is so where it is taken."""
    mask, taken, other = op.operands
    found = known.of(taken)
    if mask.op is not None and mask.op.name == "is_finite" and mask.op.operands[0] is taken:
        found = replace(found, infinite=False, nan=False)
    return found | known.of(other)


def _union(known: Intervals, op: Op) -> Interval:
    found = known.of(op.operands[0])
    for value in op.operands[1:]:
        found = found | known.of(value)
    return found


def _scatter(known: Intervals, op: Op) -> Interval | None:
    if op.result.dtype.is_float:
        return None
    into, _, update = (known.of(v) for v in op.operands)
    if op.attrs["kind"] != "add":
        return into | update
    none = whole(Range(0, 0))
    return arithmetic.add(into, arithmetic.times(update, op.operands[1].type.size) | none)


def _own_format(known: Intervals, op: Op) -> Interval:
    """Code from elsewhere computes in the formats that it was written for."""
    return of_format(op.result.dtype)


# -- element by element ----------------------------------------------------------------------------------------------


def _multiply(known: Intervals, op: Op) -> Interval:
    found = _merged(arithmetic.multiply, *(known.of(v) for v in op.operands))
    return replace(found, low=max(found.low, 0)) if op.operands[0] is op.operands[1] else found


def _clamp(low: Interval, x: Interval, high: Interval) -> Interval:
    return _merged(arithmetic.minimum, _merged(arithmetic.maximum, x, low), high)


def _exponential(known: Intervals, op: Op) -> Interval:
    (value,) = op.operands
    x = known.of(value)
    if _less_its_maximum(value) is not None:
        return Interval(0.0, 1.0, nan=x.nan)
    return _merged(arithmetic.exponential, x)


def _exponential_minus_one(known: Intervals, op: Op) -> Interval:
    (value,) = op.operands
    x = known.of(value)
    if _less_its_maximum(value) is not None:
        return Interval(-1.0, 0.0, nan=x.nan)
    return _merged(arithmetic.exponential_minus_one, x)


def _shift(known: Intervals, op: Op) -> Interval | None:
    x, by = (known.bounds(v) for v in op.operands)
    width = 8 * op.result.dtype.itemsize
    if op.name == "shift_left":
        return whole(arithmetic.shift_left(x, by, width))
    found = arithmetic.shift_right(x, by, width, signed=op.name == "shift_right_arithmetic")
    return None if found is None else whole(found)


def _not(known: Intervals, op: Op) -> Interval | None:
    x = known.bounds(op.operands[0])
    return None if op.result.dtype is bool_ else whole(Range(-x.high - 1, -x.low - 1))


def _within(low: float, high: float) -> Rule:
    """A function that has such values only, also of infinities, and gives NaN for NaN."""
    return lambda known, op: Interval(low, high, nan=any(known.of(v).nan for v in op.operands))


def _wave(known: Intervals, op: Op) -> Interval:
    x = known.of(op.operands[0])
    return Interval(-1, 1, nan=x.nan or x.infinite)


# -- sums and extremes -----------------------------------------------------------------------------------------------


def _reduce(known: Intervals, op: Op) -> Interval | None:
    (value,), kind = op.operands, op.attrs["kind"]
    count = prod(value.shape[d] for d in op.attrs["dimensions"])
    if count == 0 and kind != "add":
        return None
    found = _combined(kind, known.of(value), count, value.dtype)
    made = value.op
    peak = _less_its_maximum(made.operands[0]) if made is not None and made.name == "exponential" else None
    if found is not None and count and kind == "add" and peak == op.attrs["dimensions"]:
        return replace(found, low=1.0)  # one of the exponentials is that of zero
    return found


def _combined(kind: str, x: Interval, count: int, form: DType) -> Interval | None:
    """What `count` elements of a format make together."""
    if kind == "add":
        return _merged(lambda x: arithmetic.times(x, count), x)
    if kind in ("maximum", "minimum") or form is bool_:
        return x
    found = x.range
    if found is None or form.is_float:
        return None
    return whole(arithmetic.whole_product(found, count) if kind == "multiply" else arithmetic.bits_or(found, found))


def _less_its_maximum(value: Value) -> tuple[int, ...] | None:
    """The dimensions along which a value is x - max(x); None when it is something else."""
    if value.op is None or value.op.name != "subtract":
        return None
    x, most = value.op.operands
    axes: list[int] = list(range(len(x.shape)))  # of x, beside which the dimensions of `most` stand
    while most.op is not None and most.op.name in ("broadcast_in_dim", "reshape"):
        found = _axes_before(most.op, axes)
        if found is None:
            return None
        axes, most = found, most.op.operands[0]
    made = most.op
    if made is None or made.name != "reduce" or made.attrs["kind"] != "maximum" or made.operands[0] is not x:
        return None
    dims: tuple[int, ...] = made.attrs["dimensions"]
    kept = (axis for axis in range(len(x.shape)) if axis not in dims)
    return dims if all(n == 1 or a == b for n, a, b in zip(most.shape, axes, kept)) else None


def _axes_before(op: Op, axes: list[int]) -> list[int] | None:
    """For each dimension of what was repeated or reshaped, the axis of its result's; -1 for those of one element."""
    given = op.operands[0].shape
    if op.name == "broadcast_in_dim":
        return [axes[d] for d in op.attrs["broadcast_dimensions"]]
    left = [(n, axis) for n, axis in zip(op.result.shape, axes) if n != 1]
    if [n for n, _ in left] != [n for n in given if n != 1]:
        return None
    places = iter(left)
    return [-1 if n == 1 else next(places)[1] for n in given]


def _dot_general(known: Intervals, op: Op) -> Interval | None:
    """An interval where operands are whole numbers, which those that are rounded first stay: others are rounded as
    precision asks."""
    if op.attrs["lhs_mx"] or op.attrs["rhs_mx"]:
        return None
    casts = (op.attrs["lhs_cast"], op.attrs["rhs_cast"])
    x, y = (in_format(known.of(v), dtype(to)) if to else known.of(v) for v, to in zip(op.operands, casts))
    if x.range is None or y.range is None:
        return None
    count = prod(op.operands[0].shape[d] for d in op.attrs["lhs_contracting_dimensions"])
    return arithmetic.times(arithmetic.multiply(x, y), count)


def _over_ranks(known: Intervals, op: Op) -> Interval | None:
    """What other ranks hold follows from no value of this one: each has constants of its own. Sums may leave the
    format; products do, too, and nothing watches them."""
    return None if op.attrs["kind"] == "add" else _own_format(known, op)


_RULES: dict[str, Rule] = {
    "constant": _constant,
    "iota": _iota,
    "convert": _convert,
    **dict.fromkeys(("reshape", "transpose", "broadcast_in_dim", "slice", "gather", "optimization_barrier"), _first),
    **dict.fromkeys(("concatenate", "pad"), _union),
    "scatter": _scatter,
    "trn.put_rows": lambda known, op: known.of(op.operands[0]) | known.of(op.operands[2]),
    **dict.fromkeys(("custom_call", "loop"), _own_format),
    **dict.fromkeys(("all_gather", "all_to_all", "collective_broadcast", "collective_permute"), _own_format),
    **dict.fromkeys(("all_reduce", "reduce_scatter"), _over_ranks),
    "select": _select,
    "clamp": _each(_clamp),
    "add": _each(arithmetic.add),
    "subtract": _each(lambda x, y: arithmetic.add(x, arithmetic.negate(y))),
    "multiply": _multiply,
    "divide": _integers(arithmetic.whole_quotient, _each(arithmetic.divide)),
    "remainder": _integers(arithmetic.whole_remainder),
    "power": _integers(arithmetic.whole_power, _each(arithmetic.power)),
    "maximum": _each(arithmetic.maximum),
    "minimum": _each(arithmetic.minimum),
    "and": _integers(arithmetic.bits_and),
    **dict.fromkeys(("or", "xor"), _integers(arithmetic.bits_or)),
    "not": _not,
    **dict.fromkeys(("shift_left", "shift_right_logical", "shift_right_arithmetic"), _shift),
    "negate": _each(arithmetic.negate),
    "abs": _each(arithmetic.absolute),
    "sign": lambda known, op: replace(arithmetic.sign(x := known.of(op.operands[0])), nan=x.nan),
    "floor": _each(arithmetic.rounded(math.floor)),
    "ceil": _each(arithmetic.rounded(math.ceil)),
    "round_nearest_even": _each(arithmetic.rounded(round)),
    "exponential": _exponential,
    "exponential_minus_one": _exponential_minus_one,
    "log": _each(arithmetic.log),
    "sqrt": _each(arithmetic.root),
    "rsqrt": _each(arithmetic.reciprocal_root),
    **dict.fromkeys(("tanh", "erf"), _within(-1, 1)),
    **dict.fromkeys(("sine", "cosine"), _wave),
    "atan": _within(-math.pi / 2, math.pi / 2),
    **dict.fromkeys(("logistic", "trn.rng_uniform"), _within(0, 1)),
    "reduce": _reduce,
    "dot_general": _dot_general,
}

_SIGNS: dict[str, Callable[..., int]] = {  # of a result, by those of the operands
    **dict.fromkeys(("sqrt", "rsqrt", "exponential", "abs"), lambda x: 1),
    **dict.fromkeys(("reshape", "transpose", "broadcast_in_dim", "slice", "optimization_barrier"), lambda x: x),
    "convert": lambda x: x,  # of what is infinite, to a float
    "negate": lambda x: -x,
    "add": lambda x, y: x if x == y else 0,
    "subtract": lambda x, y: x if x == -y else 0,
    **dict.fromkeys(("multiply", "divide"), lambda x, y: x * y),
}
