# SPDX-License-Identifier: Apache-2.0
"""Quotients that round, remainders, and shifts, of integers and floats.

PyTorch on the CPU raises where an integer is divided by zero. A program cannot: as in StableHLO the quotient is then
-1 and the remainder the dividend.
"""

from __future__ import annotations

from typing import Any

from trnlab.frontends.torch.lowerings.elementwise import arithmetic
from trnlab.frontends.torch.lowerings.registry import LoweringSite, lowers
from trnlab.graph import formulas
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32


@lowers("div.Tensor_mode", "div.Scalar_mode")
def div_mode(site, x, y, rounding_mode=None):
    if rounding_mode is None:
        return arithmetic(site, "divide", x, y)
    return floor_divide(site, x, y) if rounding_mode == "floor" else _truncated(site, x, y)


def _both(site: LoweringSite, x: Any, y: Any) -> list[Value]:
    """Both operands as tensors of the result's shape: floats in fp32, integers in the result's format."""
    if site.dtype.is_float:
        values = site.wide_values(x, y)
    else:
        values = [site.cast(v) if isinstance(v, Value) else site.b.constant(v, site.dtype) for v in (x, y)]
    return [site.b.broadcast_to(v, site.shape) for v in values]


def _both_rounded(site: LoweringSite, x: Any, y: Any) -> list[Value]:
    """As `_both`; numbers as the result's format holds them, which is how PyTorch's remainders take them."""
    rounded = (v if isinstance(v, Value) else float(site.dtype.numpy.type(v)) for v in (x, y))
    return _both(site, *rounded) if site.dtype.is_float else _both(site, x, y)


def _truncated(site: LoweringSite, x: Any, y: Any) -> Value:
    """Without the fraction of the quotient as the format holds it. With a number beside a tensor that is fp32."""
    tensors = isinstance(x, Value) and isinstance(y, Value)
    b, (x, y) = site.b, _both(site, x, y)
    if not site.dtype.is_float:
        return b.divide(x, y)
    if tensors and site.dtype is not float32:
        return formulas.truncate(b, site.cast(b.divide(x, y)))
    return site.cast(formulas.truncate_divide(b, x, y))


@lowers("floor_divide.default")
def floor_divide(site, x, y):
    """The floored quotient of integers: one less than the truncated quotient, where the remainder has another sign
    than the divisor."""
    b, (x, y) = site.b, _both(site, x, y)
    if site.dtype.is_float:
        return site.cast(formulas.floor_divide(b, x, y))
    beyond = _other_sign(b, b.remainder(x, y), y)
    quotient = b.subtract(b.divide(x, y), b.convert(beyond, x.dtype))
    return quotient if x.dtype.kind == "u" else b.select(b.compare(y, "EQ", 0), -1, quotient)


def _other_sign(b: GraphBuilder, rest: Value, divisor: Value) -> Value:
    """Whether a remainder that is not zero has another sign than the divisor."""
    other = b.xor(b.compare(rest, "LT", 0), b.compare(divisor, "LT", 0))
    return b.and_(b.compare(rest, "NE", 0), other)


@lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(site, x, y):
    """With the sign of the divisor, which is added only where signs differ, so that nothing overflows."""
    b, (x, y) = site.b, _both_rounded(site, x, y)
    if site.dtype.is_float:
        return site.cast(formulas.python_remainder(b, x, y))
    rest = b.remainder(x, y)
    return b.add(rest, b.select(_other_sign(b, rest, y), y, 0))


@lowers("fmod.Tensor", "fmod.Scalar")
def fmod(site, x, y):
    """With the sign of the dividend."""
    return site.cast(site.b.remainder(*_both_rounded(site, x, y)))


# -- shifts ---------------------------------------------------------------------------------------------------------


def _distance(site: LoweringSite, x: Any, by: Any) -> tuple[Value, Value]:
    """A number beyond the width is as good as the width, which every format holds."""
    width = 8 * site.dtype.itemsize
    x, by = _both(site, x, by if isinstance(by, Value) or 0 <= by < width else width)
    return x, by


@lowers(
    "bitwise_left_shift.Tensor",
    "bitwise_left_shift.Tensor_Scalar",
    "bitwise_left_shift.Scalar_Tensor",
    "__lshift__.Tensor",
    "__lshift__.Scalar",
)
def left_shift(site, x, by):
    return site.b.shift_left(*_distance(site, x, by))


@lowers(
    "bitwise_right_shift.Tensor",
    "bitwise_right_shift.Tensor_Scalar",
    "bitwise_right_shift.Scalar_Tensor",
    "__rshift__.Tensor",
    "__rshift__.Scalar",
)
def right_shift(site, x, by):
    return site.b.shift_right_arithmetic(*_distance(site, x, by))
