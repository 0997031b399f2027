# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on integers: narrow formats in 32 bits, division by an estimate in float32 and exact corrections."""

from __future__ import annotations

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.analysis.selection import SHORT
from trnlab.compiler.rewriting.legalize.casts import widen
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import float32, int32, uint32

ONE_STEP = 2**20  # operands up to here: the first estimate of a quotient is off by less than one


def widened(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """In int32, of which the lowest bits are the result in the narrow format."""
    if op.result.dtype not in SHORT:
        return None
    wide = b.append(op.name, [widen(b, v) for v in op.operands], op.attrs).results[0]
    return b.convert(wide, op.result.dtype)


def negate(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """0 - x; the smallest number is its own negative."""
    (x,) = op.operands
    return None if x.dtype.is_float else b.subtract(0, x)


def absolute(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """The larger of x and -x."""
    (x,) = op.operands
    if x.dtype.is_float:
        return None
    return x if known.bounds(x).low >= 0 else b.maximum(x, b.subtract(0, x))


def sign(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """-1, 0 or 1, whichever is nearest."""
    (x,) = op.operands
    if x.dtype.is_float:
        return None
    return b.minimum(x, 1) if x.dtype.kind == "u" else b.clamp(-1, x, 1)


def clamp(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """min(max(x, low), high)."""
    low, x, high = op.operands
    low, high = (b.broadcast_to(v, x.shape) for v in (low, high))
    return b.minimum(b.maximum(x, low), high)


def divide(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """Truncated; all ones by zero."""
    if op.result.dtype in SHORT:
        return widened(op, b, known)
    if op.result.dtype is uint32:
        return _divided_words(b, op, known)[0]
    return _divided(b, op, known)[0] if op.result.dtype is int32 else None


def remainder(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """With the sign of the dividend; the dividend by zero."""
    if op.result.dtype in SHORT:
        return widened(op, b, known)
    if op.result.dtype is uint32:
        return _divided_words(b, op, known)[1]
    return _divided(b, op, known)[1] if op.result.dtype is int32 else None


def _divided_words(b: GraphBuilder, op: Op, known: Ranges) -> tuple[Value, Value]:
    """Quotient and remainder of uint32: half of x by y in int32, both doubled, and one more where y still fits.

    A divisor from 2^31 on goes into x once or not at all.
    """
    x, y = op.operands
    if max(known.bounds(x).high, known.bounds(y).high) < 2**31:
        signed = b.convert(x, int32), b.convert(y, int32)
        return b.convert(b.divide(*signed), uint32), b.convert(b.remainder(*signed), uint32)
    large = b.compare(y, "GE", 2**31)
    half, divisor = b.convert(b.shift_right_logical(x, 1), int32), b.convert(b.select(large, 1, y), int32)
    quotient, rest = (b.convert(v, uint32) for v in (b.divide(half, divisor), b.remainder(half, divisor)))
    quotient = b.select(large, 0, b.add(quotient, quotient))
    rest = b.select(large, x, b.add(b.add(rest, rest), b.and_(x, 1)))
    more = b.compare(rest, "GE", y)
    return b.add(quotient, b.convert(more, uint32)), b.subtract(rest, b.select(more, y, 0))


def _divided(b: GraphBuilder, op: Op, known: Ranges) -> tuple[Value, Value]:
    """Quotient and remainder of int32.

    A quotient in float32 is off by a few parts in 2^22: by less than 2^10 in all, and then the quotient of what is
    left by less than one. Products and differences wrap, but what is left is always less than 2^31, and so exact.
    """
    x, y = op.operands
    may_be_zero = known.bounds(y).low <= 0 <= known.bounds(y).high
    by_zero = b.compare(y, "EQ", 0) if may_be_zero else None
    divisor = y if by_zero is None else b.select(by_zero, 1, y)
    quotient, rest = _estimated(b, x, divisor)
    if max(known.bounds(x).magnitude, known.bounds(y).magnitude) > ONE_STEP:
        more, rest = _estimated(b, rest, divisor)
        quotient = b.add(quotient, more)
    step = _overshoot(b, x, rest)
    if known.bounds(y).low < 0:
        step = b.multiply(step, b.clamp(-1, divisor, 1))
    quotient, rest = b.subtract(quotient, step), b.add(rest, b.multiply(step, divisor))
    if by_zero is None:
        return quotient, rest
    return b.select(by_zero, -1, quotient), b.select(by_zero, x, rest)


def _estimated(b: GraphBuilder, x: Value, y: Value) -> tuple[Value, Value]:
    """x / y to the nearest whole number that float32 gives, and what is left."""
    ratio = b.divide(b.convert(x, float32), b.convert(y, float32))
    quotient = b.convert(b.round_nearest_even(ratio), int32)
    return quotient, b.subtract(x, b.multiply(quotient, y))


def _overshoot(b: GraphBuilder, x: Value, rest: Value) -> Value:
    """1 or -1, the sign of x, where the rest has the other sign: the quotient is one too far from zero."""
    over = b.and_(b.compare(x, "GT", 0), b.compare(rest, "LT", 0))
    under = b.and_(b.compare(x, "LT", 0), b.compare(rest, "GT", 0))
    return b.subtract(b.convert(over, int32), b.convert(under, int32))


def power(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """By squaring, one bit of the exponent after the other; wraps. What is below one truncates to 0, 1 or -1."""
    x, exponent = op.operands
    if op.result.dtype in SHORT:
        return widened(op, b, known)
    if op.result.dtype not in (int32, uint32):
        return None
    result, base = b.constant(1, x.dtype, x.shape), x
    bits = max(known.bounds(exponent).high, 1).bit_length()
    for i in range(bits):
        bit = b.and_(b.shift_right_logical(exponent, i) if i else exponent, 1)
        result = b.select(b.compare(bit, "EQ", 1), b.multiply(result, base), result)
        base = b.multiply(base, base)
    if known.bounds(exponent).low >= 0:
        return result
    odd = b.compare(b.and_(exponent, 1), "EQ", 1)
    reciprocal = b.select(b.compare(x, "EQ", 1), 1, b.select(b.compare(x, "EQ", -1), b.select(odd, x, 1), 0))
    return b.select(b.compare(exponent, "LT", 0), reciprocal, result)
