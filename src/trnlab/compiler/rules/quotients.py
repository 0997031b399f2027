# SPDX-License-Identifier: Apache-2.0
"""Division. The engines have a reciprocal, rounded once, and no division.

x * (1 / y) is off by at most 1.5 units in the last place as long as 1 / y is a normal number: for |y| from 2^-126 to
2^126, and for zero, infinity and NaN. Beyond, 1 / y is infinite where the quotient is not, or has lost bits. There x
and y are both scaled by a power of two, s = about 2^(-e/2) for y of about 2^e: half of y's exponent with its bits
inverted. Neither y s, nor 1 / (y s), nor x s then leaves the range of fp32 before x / y does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.emission.emitter import Emitter
from trnlab.compiler.rules.recipes import ResultRecipe, TileRecipe
from trnlab.graph.ir import Op
from trnlab.isa.base import Engine, Memory
from trnlab.program import AP

NORMAL = 2.0**126  # one over a number up to here, and down to one over this, is normal
FAST = 2.0**42  # ScalarE's reciprocal is valid up to here, and down to one over this (nki.api.shared.rst)
ROOTS = 2.0**-57  # with the factor below, what ScalarE's rsqrt sees is in its range, 2^-87 to 2^97
ROOT_FACTOR = 2.0**-30
HALF_EXPONENT, INVERTED = 0x3F000000, 0x3F800000
UNBIASED = 2.0**62


def by_moderate(op: Op, known: Ranges) -> bool:
    """Whether one over the divisor is a normal number, or all that is asked for."""
    lhs, rhs = op.operands
    return known.of(lhs).is_number(1.0) or known.of(rhs).has_magnitude(1 / NORMAL, NORMAL)


def by_small(op: Op, known: Ranges) -> bool:
    """Whether the Scalar engine's reciprocal is valid for the divisor."""
    return known.of(op.operands[1]).has_magnitude(1 / FAST, FAST)


def by_positive(op: Op, known: Ranges) -> bool:
    """Whether the Scalar engine's inverse root is valid for the divisor, which is positive."""
    return _has_root(op, known) and known.sign_of(op.operands[1]) > 0


def by_negative(op: Op, known: Ranges) -> bool:
    """The same of a negative divisor."""
    return _has_root(op, known) and known.sign_of(op.operands[1]) < 0


def _has_root(op: Op, known: Ranges) -> bool:
    """In an update, where Vector has more to do than Scalar; else the quotient of more digits is worth its time. Of
    zeros, the square of a root forgets the sign."""
    divisor = known.of(op.operands[1])
    return op in known.updates and divisor.is_never_zero and divisor.has_magnitude(ROOTS, NORMAL)


def product_on_scalar(e: Emitter, op: Op) -> None:
    """x * (1 / y), the reciprocal on the Scalar engine."""
    _product(e, op, _fast)


def product(e: Emitter, op: Op) -> None:
    """x * (1 / y), the reciprocal on the Vector engine."""
    _product(e, op, _exact)


def product_of_roots(e: Emitter, op: Op) -> None:
    """x * (1 / y) for positive y, the reciprocal as the square of the inverse root, on the Scalar engine."""
    _product(e, op, lambda e, dst, src: _by_root(e, dst, src, 1.0))


def product_of_negative_roots(e: Emitter, op: Op) -> None:
    """x * (-1) * (1 / -y) for negative y, likewise."""
    _product(e, op, lambda e, dst, src: _by_root(e, dst, src, -1.0))


def _product(e: Emitter, op: Op, invert: Callable[[Emitter, AP, AP], float]) -> None:
    """`invert` records dst = factor / src and returns the factor, 1 or -1."""
    lhs, rhs = op.operands
    divisor = e.get(rhs)
    if isinstance(divisor, float):
        by_number(e, op)
        return
    narrow = not e.is_wide(rhs)
    source = e.ap(rhs)
    inverse = e.temp(e.narrow, source) if narrow else e.temp_beside(lhs)
    factor = invert(e, inverse, source)
    if factor < 0:
        data = e.ap(lhs)
        tile = e.dst(op.result)
        e.charge(Engine.VECTOR, 2 * tile.free)
        e.b.scalar_tensor_tensor(
            dst=tile,
            data=inverse,
            operand0=factor,
            operand1=e.as_wide_as(tile, data),
            op0="multiply",
            op1="multiply",
        )
    elif e.get(lhs) == 1.0:
        tile = e.dst(op.result)
        e.copy(tile, e.as_wide_as(tile, inverse))
    elif narrow and e.is_wide(lhs):
        data = e.ap(lhs)
        e.scalar_op(e.dst(op.result), data, "multiply", inverse, False)
    elif e.is_wide(lhs) or narrow:
        data = e.ap(lhs)
        tile = e.dst(op.result)
        e.tensor_op(tile, e.as_wide_as(tile, data), e.as_wide_as(tile, inverse), "multiply")
    else:
        held = e.narrow_form(lhs)
        e.scalar_op(e.dst(op.result), inverse, "multiply", held, False)


def _fast(e: Emitter, dst: AP, src: AP) -> float:
    """The reciprocal of the Scalar engine; of one column that of the Vector engine, whose table is always there."""
    if dst.free == 1:
        return _exact(e, dst, src)
    e.charge(Engine.SCALAR, dst.free)
    e.b.activation(dst=dst, data=src, op="reciprocal")
    return 1.0


def _exact(e: Emitter, dst: AP, src: AP) -> float:
    """The reciprocal of the Vector engine, eight cycles an element."""
    e.charge(Engine.VECTOR, 8 * dst.free)
    e.b.reciprocal(dst=dst, data=src)
    return 1.0


def _by_root(e: Emitter, dst: AP, src: AP, sign: float) -> float:
    """1 / |y| as (1 / sqrt |y|)^2. A quarter of the time of the reciprocal, and not on the Vector engine."""
    if dst.free == 1:
        return _exact(e, dst, src)
    e.charge(Engine.SCALAR, 2 * dst.free)
    root = dst if dst.memory is Memory.SBUF else e.temp(e.wide, dst)  # the port to PSUM is Vector's meanwhile
    e.b.activation(dst=root, data=src, op="rsqrt", scale=sign * ROOT_FACTOR)
    e.b.activation(dst=dst, data=root, op="square", scale=math.sqrt(ROOT_FACTOR))
    return sign


def by_number(e: Emitter, op: Op) -> None:
    """x / c as x * (1 / c), in two factors where 1 / c is no normal number."""
    x, c = (e.get(v) for v in op.operands)
    assert isinstance(c, float)
    if isinstance(x, float):
        with np.errstate(all="ignore"):
            e.values[op.result] = float(np.float32(x) / np.float32(c))
        return
    data, tile = e.ap(op.operands[0]), None
    tile = e.dst(op.result)
    data = e.as_wide_as(tile, data)
    if c == 0 or not math.isfinite(c) or 1 / NORMAL <= abs(c) <= NORMAL:
        with np.errstate(all="ignore"):
            e.scalar_op(tile, data, "multiply", float(np.float32(1) / np.float32(c)), False)
        return
    mantissa, exponent = math.frexp(c)
    first, second = math.ldexp(1 / mantissa, -(exponent // 2)), math.ldexp(1.0, exponent // 2 - exponent)
    e.charge(Engine.VECTOR, tile.free)
    e.b.tensor_scalar(dst=tile, data=data, operand0=first, op0="multiply", operand1=second, op1="multiply")


def scaled(e: Emitter, op: Op) -> None:
    """(x / (y s)) s for any y; the scale and the reciprocal are made once per row where y does not vary along it."""
    rhs = op.operands[1]
    if isinstance(e.get(rhs), float):
        by_number(e, op)
        return
    divisor = TileRecipe(e, wide=e.is_wide(rhs))
    y = divisor.float32(e.ap(rhs))
    scale = divisor.bits(y, "right_shift", 1, "bitwise_and", HALF_EXPONENT)
    scale = divisor.bits(scale, "bitwise_xor", INVERTED).cast(y.dtype)
    inverse = divisor.reciprocal(divisor.fused(scale, "multiply", UNBIASED, "multiply", y))
    r = ResultRecipe(e, op, operands=op.operands[:1])
    (x,) = r.operands
    if divisor.is_wide:
        r.pair(r.fused(scale, "multiply", UNBIASED, "multiply", x), "multiply", inverse, dst=r.out)
    else:
        scale = divisor.scalars(scale, "multiply", UNBIASED)
        r.scalars(x, "multiply", scale, "multiply", inverse, dst=r.out)
    r.done()
