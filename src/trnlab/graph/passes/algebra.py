# SPDX-License-Identifier: Apache-2.0
"""Identities of arithmetic that hold for every float, as one rule per op. The sign of a zero counts: 1 / x shows it.

Left out on purpose, because NaN, infinity or rounding make them wrong: x * 0, x - x, x / x, reassociation, division
by a number whose reciprocal is not exact. And for the sign of a zero, of floats: x + 0, 0 - x, -(x - y).
"""

from __future__ import annotations

import math
from typing import Any

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.rewrite import Rule, made_by, rewrite, splat
from trnlab.numerics.dtypes import bool_


def simplify_arithmetic(graph: Graph) -> bool:
    """One walk over the elementwise ops."""
    return rewrite(graph, _RULES)


def _is_zero(value: Value, *, negative: bool) -> bool:
    """Whether a value is zero throughout; of floats, the zero of that sign."""
    number = splat(value)
    return (
        number is not None
        and number == 0
        and (not value.dtype.is_float or (math.copysign(1.0, number) < 0) == negative)
    )


def _add(op: Op, b: GraphBuilder) -> Value | None:
    """x + -0 = x, for integers x + 0 = x; x + (-y) = x - y."""
    x, y = op.operands
    for one, other in ((x, y), (y, x)):
        if _is_zero(other, negative=True):
            return one
        negated = made_by(other, "negate")
        if negated:
            return b.subtract(one, negated.operands[0])
    return None


def _subtract(op: Op, b: GraphBuilder) -> Value | None:
    """x - 0 = x; -0 - x = -x; x - (-y) = x + y; for integers also 0 - x = -x, x - x = 0."""
    x, y = op.operands
    if _is_zero(y, negative=False):
        return x
    if _is_zero(x, negative=True):
        return b.negate(y)
    if x is y and not x.dtype.is_float:
        return b.constant(0, x.dtype, x.shape)
    negated = made_by(y, "negate")
    return b.add(x, negated.operands[0]) if negated else None


def _multiply(op: Op, b: GraphBuilder) -> Value | None:
    """x * 1 = x; x * -1 = -x; (-x) * (-y) = x * y; x * 0 = 0 for integers."""
    x, y = op.operands
    for one, other in ((x, y), (y, x)):
        factor = splat(other)
        if factor == 1:
            return one
        if factor == -1:
            return b.negate(one)
        if factor == 0 and not one.dtype.is_float:
            return other
    left, right = made_by(x, "negate"), made_by(y, "negate")
    return b.multiply(left.operands[0], right.operands[0]) if left and right else None


def _divide(op: Op, b: GraphBuilder) -> Value | None:
    """x / 1 = x; x / -1 = -x; x / 2^k = x * 2^-k, which is exact."""
    x, y = op.operands
    divisor = splat(y)
    if divisor == 1:
        return x
    if divisor is None or not x.dtype.is_float:
        return None
    if divisor == -1:
        return b.negate(x)
    if divisor != 0 and math.isfinite(divisor) and abs(math.frexp(divisor)[0]) == 0.5 and abs(divisor) < 2**64:
        return b.multiply(x, 1 / divisor) if abs(divisor) > 2**-64 else None
    return None


def _power(op: Op, b: GraphBuilder) -> Value | None:
    """Exponents that are cheaper otherwise: 0, 1, 2, -1; of what has no sign also 0.5, -0.5.

    A power of -0 or minus infinity to 0.5 has no sign, a root has.
    """
    x, y = op.operands
    exponent = splat(y)
    if exponent == 0:
        return b.constant(1, x.dtype, x.shape)
    if exponent == 1:
        return x
    if exponent == 2:
        return b.multiply(x, x)
    if not x.dtype.is_float:
        return None
    if exponent == -1:
        return b.divide(1.0, x)
    if exponent in (0.5, -0.5) and _has_no_sign(x):
        return b.sqrt(x) if exponent == 0.5 else b.rsqrt(x)
    return None


def _has_no_sign(x: Value) -> bool:
    """Whether no element is negative or -0."""
    op = x.op
    square = op is not None and op.name == "multiply" and op.operands[0] is op.operands[1]
    return square or (op is not None and op.name in ("abs", "exponential", "logistic"))


def _negate(op: Op, b: GraphBuilder) -> Value | None:
    """--x = x; for integers -(x - y) = y - x."""
    inner = made_by(op.operands[0], "negate")
    if inner:
        return inner.operands[0]
    if op.result.dtype.is_float:
        return None
    inner = made_by(op.operands[0], "subtract")
    return b.subtract(inner.operands[1], inner.operands[0]) if inner else None


def _extreme(op: Op, b: GraphBuilder) -> Value | None:
    """max(x, x) = x; max(x, -inf) = x, min(x, inf) = x."""
    x, y = op.operands
    neutral = -math.inf if op.name == "maximum" else math.inf
    if x is y or splat(y) == neutral:
        return x
    return y if splat(x) == neutral else None


def _select(op: Op, b: GraphBuilder) -> Value | None:
    """A constant predicate chooses; equal branches need none; a negated predicate swaps them."""
    pred, x, y = op.operands
    choice = splat(pred)
    if choice is not None:
        return x if choice else y
    if x is y:
        return x
    negated = made_by(pred, "not")
    return b.op("select", negated.operands[0], y, x) if negated else None


def _logic(op: Op, b: GraphBuilder) -> Value | None:
    """x and x = x or x = x; for bools the constants true and false decide or do nothing."""
    x, y = op.operands
    if op.name != "xor" and x is y:
        return x
    if x.dtype is not bool_:
        return None
    for one, other in ((x, y), (y, x)):
        known = splat(other)
        if known is not None:
            return _logic_with(op.name, one, other, known, b)
    return None


def _logic_with(name: str, x: Value, constant: Value, known: Any, b: GraphBuilder) -> Value:
    if name == "xor":
        return b.not_(x) if known else x
    return x if known == (name == "and") else constant


def _not(op: Op, b: GraphBuilder) -> Value | None:
    """Not not x = x; not (x = y) is x != y, and back (the other comparisons differ for NaN)."""
    inner = made_by(op.operands[0], "not")
    if inner:
        return inner.operands[0]
    inner = made_by(op.operands[0], "compare")
    opposite = {"EQ": "NE", "NE": "EQ"}.get(inner.attrs["comparison_direction"]) if inner else None
    return b.op("compare", *inner.operands, comparison_direction=opposite) if inner and opposite else None


_RULES: dict[str, Rule] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "power": _power,
    "negate": _negate,
    "maximum": _extreme,
    "minimum": _extreme,
    "select": _select,
    "and": _logic,
    "or": _logic,
    "xor": _logic,
    "not": _not,
}
