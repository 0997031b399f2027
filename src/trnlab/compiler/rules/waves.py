# SPDX-License-Identifier: Apache-2.0
"""Sine, cosine and tangent of any number. The Scalar engine's sine knows [-pi, pi], so multiples of pi are taken off
first.

Up to 2^13 this is Cody and Waite's reduction: pi in five parts, of which all but the last have 11 bits, so that their
products with a count of up to 13 bits are exact in fp32. What is left has its own relative precision, also beside a
multiple of pi.

Beyond, it is Payne and Hanek's: the bits of 1 / (2 pi) that matter for the argument's exponent are cut out of a table
and multiplied with its 24 bits, in 32-bit integers that wrap, so that whole turns fall away by themselves. What is
left has an absolute precision of 2^-29.

Both are computed and one is taken; where the argument is known to be small, only the first.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.emission.emitter import Emitter
from trnlab.compiler.rules.recipes import SIGN, WHOLE, ResultRecipe, TileRecipe
from trnlab.graph.ir import Op
from trnlab.numerics.dtypes import int32
from trnlab.program import AP

NEAR = 2.0**13  # Cody and Waite up to here
PI = Fraction(3141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825, 10**90)
EXPONENT_BIAS, FRACTION, LEADING_BIT = 127, 0x007FFFFF, 0x00800000
CLASSES = (4, 5, 6, 7)  # the upper three bits of the exponents from 2^13 on


def _parts_of_pi() -> list[float]:
    """Four parts of 11 bits, then the rest."""
    parts, left = [], PI
    for _ in range(4):
        _, exponent = math.frexp(float(left))
        step = Fraction(2) ** (exponent - 11)
        parts.append(float(int(left / step) * step))
        left -= Fraction(parts[-1])
    return [*parts, float(left)]


def _words_of_turns() -> list[int]:
    """Words of 32 bits of 1 / (2 pi), behind 54 zeros.

    A number with the stored exponent E is m 2^(E - 150). Of 1 / (2 pi) its turns need the bits from E - 150 behind
    the point on: here they begin at bit E - 96, that is in word E / 32 - 3.
    """
    bits = int(2 ** (32 * 8 - 54) / (2 * PI))
    return [bits >> (32 * (7 - i)) & 0xFFFFFFFF for i in range(8)]


PI_PARTS, TURNS = _parts_of_pi(), _words_of_turns()


def of_near(op: Op, known: Ranges) -> bool:
    """Whether the argument is at most 2^13."""
    return known.of(op.operands[0]).magnitude <= NEAR


def near_wave(e: Emitter, op: Op) -> None:
    """Sine or cosine of an argument up to 2^13."""
    r = ResultRecipe(e, op)
    x = r.float32(r.operands[0])
    left, sign = _cody_waite(r, x, cosine=op.name == "cosine")
    _signed_sine(r, left, sign, op)


def any_wave(e: Emitter, op: Op) -> None:
    """Sine or cosine of any argument; NaN for infinities."""
    r = ResultRecipe(e, op)
    x = r.float32(r.operands[0])
    left, sign = _cody_waite(r, x, cosine=op.name == "cosine")
    _payne_hanek(r, x, left, sign, cosine=op.name == "cosine")
    _signed_sine(r, left, sign, op)


def _signed_sine(r: ResultRecipe, left: AP, sign: AP, op: Op) -> None:
    r.bit_pair(r.function(left, "sin"), "bitwise_xor", sign, r.out)
    r.done()


def _cody_waite(r: TileRecipe, x: AP, *, cosine: bool) -> tuple[AP, AP]:
    """x less the nearest multiple of pi (of odd multiples of pi / 2 for a cosine), and the sign that goes with it.

    The count n is the last bits of x / pi + 1.5 2^23; its lowest bit, moved to the top, is the sign (-1)^n.
    cos(x) = -(-1)^n sin(x - (n + 1/2) pi).
    """
    turns = r.scalars(x, "multiply", 1 / math.pi, "add", -0.5) if cosine else r.scalars(x, "multiply", 1 / math.pi)
    shifted = r.scalars(turns, "add", WHOLE)
    count = r.scalars(shifted, "subtract", WHOLE, "add", 0.5 if cosine else 0.0)
    left = x
    for part in PI_PARTS:
        left = r.fused(count, "multiply", -part, "add", left)
    sign = r.bits(shifted, "left_shift", 31)
    if cosine:
        sign = r.bits(sign, "bitwise_xor", SIGN)
    return left, sign


def _payne_hanek(r: TileRecipe, x: AP, left: AP, sign: AP, *, cosine: bool) -> None:
    """Put into `left` and `sign` what belongs to arguments beyond 2^13."""
    turns = _turns(r, x)
    if cosine:  # of |x|, a quarter of a turn on
        turns = r.whole(turns, "add", r.filled(1 << 30))
    half = r.bits(r.whole(turns, "add", r.filled(1 << 30)), "bitwise_and", SIGN)
    rest = r.bits(turns, "left_shift", 1).cast(int32)  # signed: the nearest multiple of pi is taken off
    angle = r.scalars(rest, "multiply", math.pi * 2.0**-32)
    if not cosine:
        half = r.bit_pair(half, "bitwise_xor", r.bits(x, "bitwise_and", SIGN))
    unbounded = r.scalars(x, "multiply", 0.0, "add", 1.0)  # NaN where x is infinite or NaN, 1 elsewhere
    far = r.where(x, "is_ge", NEAR, magnitude=True)
    r.replace(left, far, r.pair(angle, "multiply", unbounded))
    r.replace(sign, far, half)


def _turns(r: TileRecipe, x: AP) -> AP:
    """|x| / (2 pi) modulo 1, in units of 2^-32."""
    mantissa = r.bits(x, "bitwise_and", FRACTION, "bitwise_or", LEADING_BIT)
    shift = r.bits(x, "right_shift", 23, "bitwise_and", 31)
    back = r.bits(shift, "bitwise_xor", 31)  # 31 - shift; one more is shifted before
    words = _words(r, x)
    high, low = (
        r.bit_pair(
            r.bit_pair(first, "left_shift", shift),
            "bitwise_or",
            r.bit_pair(r.bits(second, "right_shift", 1), "right_shift", back),
        )
        for first, second in pairwise(words)
    )
    whole = r.whole(mantissa, "multiply", high)
    carried = r.fused(mantissa, "multiply", 2.0**-32, "multiply", low, dtype=int32)
    return r.whole(whole, "add", carried)


def _words(r: TileRecipe, x: AP) -> list[AP]:
    """Three words of 1 / (2 pi) from the one on that the exponent asks for."""
    tiles = [r.filled(TURNS[CLASSES[0] - 3 + i]) for i in range(3)]
    for kind in CLASSES[1:]:
        beyond = r.where(x, "is_ge", 2.0 ** (32 * kind - EXPONENT_BIAS), magnitude=True)
        for i, tile in enumerate(tiles):
            r.replace(tile, beyond, TURNS[kind - 3 + i])
    return tiles
