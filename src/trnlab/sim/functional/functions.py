# SPDX-License-Identifier: Apache-2.0
"""The functions of ScalarE in float32, branch-free so that loops over them vectorise.

The hardware uses piecewise polynomials that are not published; these aim at the function itself, to about two units
in the last place. The coefficients are minimax fits of our own (iteratively reweighted least squares on Chebyshev
nodes, in float64); `tests/sim/functional/test_functions.py` holds each function to its bound.
"""

from __future__ import annotations

import math

import numpy as np

from trnlab.sim.functional.linking import inline
from trnlab.sim.functional.native import bits, fma, from_bits, rint, sqrt

f32, i32, u32 = np.float32, np.int32, np.uint32
ZERO, HALF, ONE, TWO = f32(0), f32(0.5), f32(1), f32(2)
INF, NAN = f32(np.inf), f32(np.nan)
_SIGN, _MAGNITUDE = u32(0x80000000), u32(0x7FFFFFFF)

_LOG2_E = f32(1 / math.log(2))
_LN2_HIGH = f32(0.693359375)  # few bits, so that its multiples are exact
_LN2_LOW = f32(math.log(2) - 0.693359375)
_E0, _E1, _E2, _E3, _E4 = (f32(c) for c in (0.5, 0.16666512, 0.041666187, 0.0083695985, 0.0013951719))
_EXP_LOW, _EXP_HIGH = f32(-104.0), f32(89.0)
_LEAST_NORMAL = i32(-125)  # the least n for which y * 2 ** n is normal, y being 0.5 or more

_L0, _L1, _L2, _L3, _L4, _L5 = (f32(c) for c in (0.6666667, 0.40000054, 0.28568396, 0.223015, 0.17147851, 0.21792394))
_SQRT_HALF_BITS, _ONE_BITS = u32(0x3F3504F3), u32(0x3F800000)
_MIN_NORMAL, _TWO_23, _23 = f32(2.0**-126), f32(2.0**23), f32(23)

_T0, _T1, _T2, _T3, _T4 = (f32(c) for c in (-0.33333284, 0.1333149, -0.053743497, 0.020650588, -0.005717045))
_TANH_SMALL = f32(0.625)

_R0, _R1, _R2, _R3, _R4, _R5 = (
    f32(c) for c in (0.12837917, -0.37612572, 0.11282717, -0.026802547, 0.005051094, -0.0006315126)
)
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = (
    f32(c) for c in (0.28210896, 0.28182405, 0.24878609, 0.1705122, 0.082774065, 0.049138892, -0.19876012, 0.08402887)
)
_ERF_SMALL, _ERF_CLAMP, _GELU_CLAMP = f32(0.85), f32(12), f32(12 * math.sqrt(2))

_SQRT_HALF = f32(math.sqrt(0.5))
_SQRT_2_OVER_PI = f32(math.sqrt(2 / math.pi))
_TWO_OVER_SQRT_PI = f32(2 / math.sqrt(math.pi))
_ONE_OVER_SQRT_2PI = f32(1 / math.sqrt(2 * math.pi))
_GELU_CUBIC, _GELU_CUBIC_3 = f32(0.044715), f32(3 * 0.044715)
_GELU_SIGMOID = f32(1.702)
_MISH_HIGH = f32(20)


@inline
def absolute(x):
    """|x|."""
    return from_bits(bits(x) & _MAGNITUDE)


@inline
def with_sign(magnitude, x):
    """`magnitude` (not negative) with the sign of x."""
    return from_bits(bits(magnitude) | (bits(x) & _SIGN))


@inline
def power_of_two(n):
    """2 ** n for -126 <= n <= 127."""
    return from_bits(u32(n + i32(127)) << u32(23))


@inline
def times_power_of_two(y, n):
    """y * 2 ** n, rounded once, for y within [0.5, 2) and -150 <= n <= 128.

    What may be subnormal is counted in multiples of 2 ** -149, as its bits do: processors take a hundred cycles and
    more for a product that is subnormal, or would be and is zero, as for all that a mask excludes.
    """
    high, low = max(n, _LEAST_NORMAL), min(n, _LEAST_NORMAL)
    half = high >> i32(1)
    normal = y * power_of_two(half) * power_of_two(high - half)  # in two steps: no early overflow
    counted = from_bits(u32(i32(rint(y * power_of_two(low + i32(149))))))
    return normal if n >= _LEAST_NORMAL else counted


@inline
def exp(x):
    """e ** x: range reduction by multiples of ln 2, then a polynomial of degree six."""
    clamped = x if x > _EXP_LOW else _EXP_LOW  # also where x is NaN, which the last line restores
    clamped = clamped if clamped < _EXP_HIGH else _EXP_HIGH
    n = rint(clamped * _LOG2_E)
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, clamped))
    p = fma(fma(fma(fma(_E4, r, _E3), r, _E2), r, _E1), r, _E0)
    whole = i32(n)
    y = times_power_of_two(fma(r * r, p, r) + ONE, whole)
    return y if x == x else x


@inline
def atanh_tail(s):
    """log((1 + s) / (1 - s)) for |s| <= 1/3."""
    z = s * s
    p = fma(fma(fma(fma(fma(_L5, z, _L4), z, _L3), z, _L2), z, _L1), z, _L0)
    return fma(s * z, p, TWO * s)


@inline
def log(x):
    """Natural logarithm; -inf at zero, NaN below."""
    small = x < _MIN_NORMAL
    u = bits(x * _TWO_23 if small else x)
    shifted = u - _SQRT_HALF_BITS
    n = f32(i32(shifted) >> i32(23)) - (_23 if small else ZERO)
    m = from_bits((shifted & u32(0x007FFFFF)) + _SQRT_HALF_BITS) - ONE
    y = fma(n, _LN2_LOW, atanh_tail(m / (TWO + m)))
    y = fma(n, _LN2_HIGH, y)
    y = x if x == INF else y
    y = NAN if x < ZERO else y
    y = -INF if x == ZERO else y
    return y if x == x else x


@inline
def tanh(x):
    """Hyperbolic tangent: a polynomial near zero, by exp elsewhere."""
    t = absolute(x)
    z = x * x
    p = fma(fma(fma(fma(_T4, z, _T3), z, _T2), z, _T1), z, _T0)
    near = with_sign(absolute(fma(x * z, p, x)), x)  # minus zero stays
    far = with_sign(ONE - TWO / (exp(t + t) + ONE), x)
    return near if t < _TANH_SMALL else (far if x == x else x)


@inline
def sigmoid(x):
    """1 / (1 + e ** -x); by e ** -|x|, which does not overflow where the result is small."""
    t = exp(-absolute(x))
    return (t if x < ZERO else ONE) / (ONE + t)


@inline
def gaussian(t):
    """e ** -(t * t), with the rounding error of the square carried along."""
    square = t * t
    return exp(-square) * (ONE - fma(t, t, -square))


@inline
def erfc_positive(t, bell):
    """1 - erf(t) for t >= 0.85, given bell = e ** -(t * t)."""
    w = ONE / fma(HALF, t, ONE)
    p = fma(fma(fma(fma(fma(fma(fma(_C7, w, _C6), w, _C5), w, _C4), w, _C3), w, _C2), w, _C1), w, _C0)
    return bell * w * p


@inline
def erf_near(x):
    """erf(x) for |x| <= 0.85."""
    z = x * x
    p = fma(fma(fma(fma(fma(_R5, z, _R4), z, _R3), z, _R2), z, _R1), z, _R0)
    return fma(x, p, x)


@inline
def erf_clamped(x):
    """|x| at most where the tail is zero, so that squares stay finite."""
    t = absolute(x)
    return _ERF_CLAMP if t > _ERF_CLAMP else t


@inline
def erf(x):
    """Error function."""
    t = erf_clamped(x)
    far = with_sign(ONE - erfc_positive(t, gaussian(t)), x)
    return erf_near(x) if t < _ERF_SMALL else (far if x == x else x)


@inline
def normal_cdf(x, t, bell):
    """0.5 * (1 + erf(x / sqrt 2)) with its relative precision kept in the left tail."""
    near = fma(HALF, erf_near(x * _SQRT_HALF), HALF)
    tail = HALF * erfc_positive(t, bell)
    return near if t < _ERF_SMALL else (ONE - tail if x > ZERO else tail)


@inline
def half_gaussian(x):
    """e ** -(x * x / 2), with the rounding error of the square carried along.

    Of x itself and not of x / sqrt 2, whose rounding the exponential would amplify.
    """
    c = absolute(x)
    c = _GELU_CLAMP if c > _GELU_CLAMP else c
    square = c * c
    return exp(-HALF * square) * (ONE - HALF * fma(c, c, -square))


@inline
def gelu(x):
    """x times the normal distribution function."""
    t = erf_clamped(x * _SQRT_HALF)
    y = x * normal_cdf(x, t, half_gaussian(x))
    return y if x == x else x


@inline
def gelu_dx(x):
    """Derivative of gelu."""
    t = erf_clamped(x * _SQRT_HALF)
    bell = half_gaussian(x)
    y = normal_cdf(x, t, bell) + x * (bell * _ONE_OVER_SQRT_2PI)
    return y if x == x else x


@inline
def gelu_tanh_gate(x):
    """0.5 * (1 + tanh(u)) = sigmoid(2 u) of the tanh approximation of gelu."""
    return sigmoid(TWO * _SQRT_2_OVER_PI * fma(_GELU_CUBIC * x * x, x, x))


@inline
def gelu_tanh(x):
    """gelu by its tanh approximation."""
    return x * gelu_tanh_gate(x)


@inline
def gelu_tanh_dx(x):
    """Derivative of the tanh approximation of gelu."""
    s = gelu_tanh_gate(x)
    flat = s * (ONE - s)
    slope = TWO * _SQRT_2_OVER_PI * fma(_GELU_CUBIC_3 * x, x, ONE)
    return s + x * flat * (ONE if flat == ZERO else slope)  # which may be infinite where flat is zero


@inline
def gelu_sigmoid(x):
    """gelu by its sigmoid approximation."""
    return x * sigmoid(_GELU_SIGMOID * x)


@inline
def gelu_sigmoid_dx(x):
    """Derivative of the sigmoid approximation of gelu."""
    s = sigmoid(_GELU_SIGMOID * x)
    return s + _GELU_SIGMOID * x * (s * (ONE - s))


@inline
def silu(x):
    """x * sigmoid(x)."""
    return x * sigmoid(x)


@inline
def silu_dx(x):
    """Derivative of silu."""
    t = exp(-absolute(x))
    d = ONE / (ONE + t)
    return (t if x < ZERO else ONE) * d + x * (t * d * d)  # 1 - s cancels where x is large


@inline
def softplus(x):
    """log(1 + e ** x)."""
    e = exp(-absolute(x))
    return (x if x > ZERO or x != x else ZERO) + atanh_tail(e / (TWO + e))


@inline
def mish(x):
    """x * tanh(softplus(x)), as a quotient of polynomials in e ** x."""
    e = exp(x if x < _MISH_HIGH or x != x else _MISH_HIGH)
    n = e * (e + TWO)
    return x * (n / (n + TWO))


@inline
def erf_dx(x):
    """Derivative of erf."""
    return _TWO_OVER_SQRT_PI * gaussian(x if x == x and absolute(x) < _ERF_CLAMP else (_ERF_CLAMP if x == x else x))


@inline
def rsqrt(x):
    """1 / sqrt(x)."""
    return ONE / sqrt(x)


@inline
def sign(x):
    """-1, 0 or 1; NaN stays."""
    y = ONE if x > ZERO else (-ONE if x < ZERO else ZERO)
    return y if x == x else x


@inline
def relu(x):
    """max(x, 0); NaN stays."""
    return ZERO if x < ZERO else x
