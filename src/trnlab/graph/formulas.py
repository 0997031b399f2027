# SPDX-License-Identifier: Apache-2.0
"""Functions that no engine has, in terms of ops that they have: `atan2(b, y, x)` appends to a builder.

All take and give fp32 (or float64, where the interpreter holds that). Each keeps its relative precision near its
zeros and in its tails, its value at infinity and the sign of zero; docs/functions.md says how far each may be off, in
units in the last place.
"""

from __future__ import annotations

import math

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import bfloat16, int32

LN2 = math.log(2)
_WHOLE = 512  # elements whose running sums one triangle makes
_BLOCK = 128  # of longer rows: what the PE array sums at once
LARGE = 2.0**30  # from here on x^2 + 1 is x^2 in fp32

# -- whole numbers, remainders, signs -------------------------------------------------------------------------------


def truncate(b: GraphBuilder, x: Value) -> Value:
    """The whole number next to x towards zero."""
    return b.copysign(b.floor(b.abs(x)), x)


def python_remainder(b: GraphBuilder, x: Value, y: Value) -> Value:
    """x - floor(x / y) y, with the divisor's sign: the exact remainder of division, and a divisor more when signs
    differ."""
    rest = b.remainder(x, y)
    differ = b.compare(b.compare(rest, "LT", 0.0), "NE", b.compare(y, "LT", 0.0))
    return b.select(b.and_(differ, b.compare(rest, "NE", 0.0)), b.add(rest, y), rest)


def floor_divide(b: GraphBuilder, x: Value, y: Value) -> Value:
    """floor(x / y) by the exact remainder, so that no rounding of the quotient moves it across a whole number."""
    rest = b.remainder(x, y)
    exact = b.round_nearest_even(b.divide(b.subtract(x, rest), y))
    differ = b.compare(b.compare(rest, "LT", 0.0), "NE", b.compare(y, "LT", 0.0))
    lower = b.select(b.and_(differ, b.compare(rest, "NE", 0.0)), b.subtract(exact, 1.0), exact)
    quotient = b.divide(x, y)
    found = b.select(b.compare(lower, "EQ", 0.0), b.copysign(0.0, quotient), lower)
    return b.select(b.compare(y, "EQ", 0.0), quotient, found)


def truncate_divide(b: GraphBuilder, x: Value, y: Value) -> Value:
    """The quotient rounded to fp32, without its fraction; the quotient itself where that is not finite.

    The engines' quotient may be off by a unit in the last place, which would move it across a whole number. The
    exact remainder r gives the whole number k below x / y instead, and x / y rounds to k + 1 where 1 - r / y is no
    more than half a step of the format there. From 2^21 on k itself may be off by one, as the quotient is.
    """
    quotient, rest = b.divide(x, y), b.remainder(x, y)
    whole = b.abs(b.round_nearest_even(b.divide(b.subtract(x, rest), y)))
    above = b.add(whole, 1.0)
    half = b.multiply(b.subtract(above, b.multiply(above, 1 - 2.0**-24)), 0.5)
    # So that nothing below is subnormal.
    scale = b.select(b.compare(b.abs(y), "LT", 1.0), b.constant(2.0**64, y.dtype), 1.0)
    size, rest = b.multiply(b.abs(y), scale), b.multiply(b.abs(rest), scale)
    rounds_up = b.compare(b.subtract(size, rest), "LE", b.multiply(size, half))
    rounds_up = b.and_(rounds_up, b.and_(b.is_finite(y), b.compare(whole, "LT", 2.0**24)))
    found = b.select(rounds_up, above, whole)
    return b.select(b.is_finite(quotient), b.copysign(found, quotient), quotient)


def signbit(b: GraphBuilder, x: Value) -> Value:
    """Whether x is negative or -0.0."""
    return b.compare(b.copysign(1.0, x), "LT", 0.0)


def sign(b: GraphBuilder, x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN, as PyTorch has it."""
    return b.select(b.compare(x, "NE", x), 0.0, b.sign(x))


# -- exponentials and logarithms ------------------------------------------------------------------------------------


def _binary_logarithm(b: GraphBuilder, x: Value) -> tuple[Value, Value]:
    """(n, log(x 2^-n)) for a whole n that leaves the second between -log(2) / 2 and log(2) / 2."""
    n = b.clamp(-126.0, b.round_nearest_even(b.multiply(b.log(x), 1 / LN2)), 127.0)
    return n, b.log(b.multiply(x, b.power(2.0, b.negate(n))))


def log2(b: GraphBuilder, x: Value) -> Value:
    """Base two; exact for powers of two."""
    n, rest = _binary_logarithm(b, x)
    return b.add(n, b.multiply(rest, 1 / LN2))


def log10(b: GraphBuilder, x: Value) -> Value:
    """Base ten. log10(2) comes in two parts, so that n times the first is exact."""
    high = 0.30078125
    n, rest = _binary_logarithm(b, x)
    low = b.add(b.multiply(n, math.log10(2) - high), b.multiply(rest, 1 / math.log(10)))
    return b.add(b.multiply(n, high), low)


def power_less_one(b: GraphBuilder, base: float, exponent: Value) -> Value:
    """base^x - 1 for a base above zero, with the relative precision of x where the power is near one."""
    return b.exponential_minus_one(b.multiply(exponent, math.log(base)))


def exp2(b: GraphBuilder, x: Value) -> Value:
    """2^x."""
    return b.power(2.0, x)


def sinh(b: GraphBuilder, x: Value) -> Value:
    """(e + e / (e + 1)) / 2 with e = exp(|x|) - 1; beyond 10, exp(|x| / 2)^2 / 2, which overflows no sooner."""
    size = b.abs(x)
    e = b.exponential_minus_one(b.minimum(size, 10.0))
    near = b.multiply(b.add(e, b.divide(e, b.add(e, 1.0))), 0.5)
    root = b.exponential(b.multiply(size, 0.5))
    far = b.multiply(b.multiply(root, 0.5), root)
    return b.copysign(b.select(b.compare(size, "GT", 10.0), far, near), x)


def cosh(b: GraphBuilder, x: Value) -> Value:
    """exp(|x| / 2)^2 / 2 + exp(-|x|) / 2."""
    size = b.abs(x)
    root = b.exponential(b.multiply(size, 0.5))
    falling = b.multiply(b.exponential(b.negate(size)), 0.5)
    return b.add(b.multiply(b.multiply(root, 0.5), root), falling)


def asinh(b: GraphBuilder, x: Value) -> Value:
    """log(1 + a + a^2 / (1 + sqrt(1 + a^2))) for a = |x|; log(a) + log(2) where one adds nothing to a^2."""
    size = b.abs(x)
    bounded = b.minimum(size, LARGE)
    squared = b.multiply(bounded, bounded)
    over = b.divide(squared, b.add(b.sqrt(b.add(squared, 1.0)), 1.0))
    near = b.log_plus_one(b.add(bounded, over))
    return b.copysign(b.select(b.compare(size, "GT", LARGE), b.add(b.log(size), LN2), near), x)


def acosh(b: GraphBuilder, x: Value) -> Value:
    """log(1 + t + sqrt(2 t + t^2)) for t = x - 1; NaN below one."""
    over = b.subtract(b.minimum(x, LARGE), 1.0)
    near = b.log_plus_one(b.add(over, b.sqrt(b.multiply(over, b.add(over, 2.0)))))
    found = b.select(b.compare(x, "GT", LARGE), b.add(b.log(x), LN2), near)
    return b.select(b.compare(x, "LT", 1.0), math.nan, found)


def atanh(b: GraphBuilder, x: Value) -> Value:
    """log(1 + 2 a / (1 - a)) / 2 for a = |x|; infinite at one, NaN beyond."""
    size = b.abs(x)
    quotient = b.divide(b.add(size, size), b.subtract(1.0, size))
    return b.copysign(b.multiply(b.log_plus_one(quotient), 0.5), x)


# -- circles --------------------------------------------------------------------------------------------------------


def tan(b: GraphBuilder, x: Value) -> Value:
    """sin(x) / cos(x)."""
    return b.divide(b.sine(x), b.cosine(x))


def asin(b: GraphBuilder, x: Value) -> Value:
    """2 atan(x / (1 + sqrt((1 - x) (1 + x)))); NaN beyond one."""
    root = b.sqrt(b.multiply(b.subtract(1.0, x), b.add(x, 1.0)))
    half = b.atan(b.divide(x, b.add(root, 1.0)))
    return b.add(half, half)


def acos(b: GraphBuilder, x: Value) -> Value:
    """2 atan(sqrt(1 - x) / sqrt(1 + x)); NaN beyond one."""
    half = b.atan(b.divide(b.sqrt(b.subtract(1.0, x)), b.sqrt(b.add(x, 1.0))))
    return b.add(half, half)


def atan2(b: GraphBuilder, y: Value, x: Value) -> Value:
    """The angle of (x, y): that of the smaller over the larger magnitude, moved to its octant. Zeros as in C."""
    up, along = b.abs(y), b.abs(x)
    small, large = b.minimum(up, along), b.maximum(up, along)
    ratio = b.select(b.compare(large, "EQ", 0.0), 0.0, b.divide(small, large))
    ratio = b.select(b.compare(small, "EQ", math.inf), 1.0, ratio)
    angle = b.atan(ratio)
    angle = b.select(b.compare(up, "GT", along), b.subtract(math.pi / 2, angle), angle)
    angle = b.select(signbit(b, x), b.subtract(math.pi, angle), angle)
    return b.copysign(angle, y)


def hypot(b: GraphBuilder, x: Value, y: Value) -> Value:
    """sqrt(x^2 + y^2) = m sqrt(1 + (n / m)^2) for the larger magnitude m; infinite beside infinity, NaN or not."""
    one, other = b.abs(x), b.abs(y)
    small, large = b.minimum(one, other), b.maximum(one, other)
    ratio = b.divide(small, large)
    found = b.multiply(large, b.sqrt(b.add(b.multiply(ratio, ratio), 1.0)))
    found = b.select(b.compare(large, "EQ", 0.0), 0.0, found)
    unbounded = b.or_(b.compare(one, "EQ", math.inf), b.compare(other, "EQ", math.inf))
    return b.select(unbounded, math.inf, found)


# -- the error function ---------------------------------------------------------------------------------------------

# erfc(t) = exp(-t^2) w p(w) with w = 1 / (1 + t / 2), for t >= 0.85: a minimax fit of our own.
_TAIL = (0.28210896, 0.28182405, 0.24878609, 0.1705122, 0.082774065, 0.049138892, -0.19876012, 0.08402887)
_TAIL_FROM, _TAIL_TO = 0.85, 12.0
_SPLIT = 4097.0  # 2^12 + 1


def erfc(b: GraphBuilder, x: Value) -> Value:
    """1 - erf(x), in relative precision where that is small."""
    size = b.minimum(b.abs(x), _TAIL_TO)
    return _complement(b, x, size, _bell(b, size, 1.0))


def normal_cdf(b: GraphBuilder, x: Value) -> Value:
    """erfc(-x / sqrt(2)) / 2; the exponential is taken of x itself, whose rounding by sqrt(2) it would amplify."""
    root = math.sqrt(0.5)
    size = b.minimum(b.abs(x), _TAIL_TO / root)
    scaled = b.multiply(x, -root)
    return b.multiply(_complement(b, scaled, b.multiply(size, root), _bell(b, size, 0.5)), 0.5)


def _complement(b: GraphBuilder, x: Value, size: Value, bell: Value) -> Value:
    """erfc(x) given |x|, bounded, and exp(-x^2)."""
    w = b.divide(1.0, b.add(b.multiply(size, 0.5), 1.0))
    sum_ = b.multiply(w, _TAIL[-1])
    for coefficient in reversed(_TAIL[1:-1]):
        sum_ = b.multiply(b.add(sum_, coefficient), w)
    tail = b.multiply(b.multiply(bell, w), b.add(sum_, _TAIL[0]))
    tail = b.select(b.compare(x, "LT", 0.0), b.subtract(2.0, tail), tail)
    near = b.subtract(1.0, b.erf(x))
    return b.select(b.compare(size, "LT", _TAIL_FROM), near, tail)


def _bell(b: GraphBuilder, size: Value, factor: float) -> Value:
    """exp(-factor size^2): of the square of the upper 12 bits, which is exact, times that of what they leave out."""
    spread = b.multiply(size, _SPLIT)
    upper = b.subtract(spread, b.subtract(spread, size))
    exact = b.exponential(b.multiply(b.multiply(upper, upper), -factor))
    rest = b.multiply(b.multiply(b.subtract(upper, size), b.add(upper, size)), factor)
    return b.multiply(exact, b.exponential(rest))


# -- running sums ---------------------------------------------------------------------------------------------------


def running_sums(b: GraphBuilder, x: Value) -> Value:
    """Running sums of x [..., N], in float32 or int32, as products with a triangle of ones: the PE array is the
    chip's adder of rows. Beyond the length of one triangle they are made in blocks; what comes before each block is
    the running sum of the blocks' own."""
    size = x.shape[-1]
    if size <= _WHOLE:
        return _sums_of_row(b, x)
    count = -(-size // _BLOCK)
    none = [0] * (len(x.shape) - 1)
    whole = b.pad(x, [*none, 0], [*none, count * _BLOCK - size]) if count * _BLOCK > size else x
    inside = _sums_of_row(b, b.reshape(whole, (*x.shape[:-1], count, _BLOCK)))
    last = len(inside.shape) - 1
    ends = b.reshape(b.slice_dim(inside, last, _BLOCK - 1, _BLOCK), (*x.shape[:-1], count))
    before = b.pad(b.slice_dim(running_sums(b, ends), last - 1, 0, count - 1), [*none, 1], [*none, 0])
    summed = b.add(inside, b.reshape(before, (*before.shape, 1)))
    return b.slice_dim(b.reshape(summed, whole.shape), last - 1, 0, size)


def _sums_of_row(b: GraphBuilder, x: Value) -> Value:
    """By one triangle. In a product an infinity would spoil all of its row (0 times infinity is NaN): counted, it
    comes back behind its place, and one of each sign, or NaN, makes NaN."""
    if not x.dtype.is_float:
        return _triangle(b, x)
    nan, sums = b.compare(x, "NE", x), _triangle(b, b.select(b.is_finite(x), x, 0.0))
    for sign in (math.inf, -math.inf):
        one = b.convert(b.or_(nan, b.compare(x, "EQ", sign)), bfloat16)
        sums = b.select(b.compare(_triangle(b, one), "GT", 0.0), b.add(sums, sign), sums)
    return sums


def _triangle(b: GraphBuilder, x: Value) -> Value:
    size = x.shape[-1]
    upper = b.compare(b.iota((size, size), int32, 0), "LE", b.iota((size, size), int32, 1))
    return b.dot_general(x, b.convert(upper, x.dtype), ((len(x.shape) - 1,), (0,)), precision="HIGHEST", asked=0)
