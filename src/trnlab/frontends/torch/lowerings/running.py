# SPDX-License-Identifier: Apache-2.0
"""Running sums, products and extremes along a dimension, in time (nearly) linear in its length.

Sums are products with a triangle of ones, of blocks of a fixed length: the PE array is the chip's adder of rows. What
comes before each block is the running sum of the blocks' own sums. All else doubles its reach in each round: what an
element and those before it within reach combine to is combined with the same of the element that far before.

Here the dimension is the last, x [..., N].
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from trnlab.frontends.torch.lowerings.registry import LoweringSite, dim_of, lowers
from trnlab.frontends.torch.lowerings.sorting import is_nan, limit_of, moved_last, results_of
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.formulas import running_sums
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32, int32

_BIAS, _LEAST_NORMAL = 127, 2.0**-126  # of the exponent of fp32, and its least number with all digits
_MOST_HALVINGS = 280  # beyond which a number of fp32 is zero, or infinite


def _moved_back(site: LoweringSite, x: Value, dim: int) -> Value:
    """The result, of which `dim` is the last dimension, as PyTorch has it."""
    order = list(range(len(x.shape) - 1))
    order.insert(dim_of(dim, len(x.shape)), len(x.shape) - 1)
    return site.shaped(site.cast(x if order == sorted(order) else site.b.transpose(x, order)))


# -- sums -----------------------------------------------------------------------------------------------------------


@lowers("cumsum.default")
def cumsum(site, x, dim, dtype=None):
    """In fp32, or in the integers of the result."""
    if not x.shape or x.type.size == 0:
        return site.cast(x)
    return _moved_back(site, running_sums(site.b, moved_last(site, site.working(x), dim)), dim)


# -- by doubling ----------------------------------------------------------------------------------------------------


def _reaches(size: int) -> Iterator[int]:
    """How far before each round looks."""
    reach = 1
    while reach < size:
        yield reach
        reach *= 2


def _before(b: GraphBuilder, x: Value, reach: int, start: Any) -> Value:
    """The element `reach` places before each; `start` where there is none."""
    none = [0] * (len(x.shape) - 1)
    return b.pad(b.slice_dim(x, len(x.shape) - 1, 0, x.shape[-1] - reach), [*none, reach], [*none, 0], value=start)


@lowers("cumprod.default")
def cumprod(site, x, dim, dtype=None):
    """Cumulative product of floats as significands and exponents: as PyTorch's, which are made in double, they
    leave fp32 and return."""
    if not x.shape or x.type.size == 0:
        return site.cast(x)
    products = _products if site.dtype.is_float else _whole_products
    return _moved_back(site, products(site.b, moved_last(site, site.working(x), dim)), dim)


def _whole_products(b: GraphBuilder, x: Value) -> Value:
    for reach in _reaches(x.shape[-1]):
        x = b.multiply(_before(b, x, reach, 1), x)
    return x


def _products(b: GraphBuilder, x: Value) -> Value:
    """Significands stay in [1, 2), so that no product on the way leaves the format, and none makes NaN of zero and
    an infinity that is none."""
    small = b.compare(b.abs(x), "LT", _LEAST_NORMAL)
    digits, power = _taken_apart(b, b.select(small, b.multiply(x, 2.0**24), x))
    power = b.subtract(power, b.select(small, b.constant(24.0), 0.0))
    for reach in _reaches(x.shape[-1]):
        digits, carry = _taken_apart(b, b.multiply(_before(b, digits, reach, 1.0), digits))
        power = b.add(b.add(_before(b, power, reach, 0.0), power), carry)
    return _put_together(b, digits, power)


def _taken_apart(b: GraphBuilder, x: Value) -> tuple[Value, Value]:
    """Significand in [1, 2), with the sign, and exponent; zero, infinities and NaN are their own significand."""
    bits = b.bitcast_convert(x, int32)
    power = b.subtract(b.convert(b.and_(b.shift_right_logical(bits, 23), 0xFF), float32), float(_BIAS))
    kept = b.or_(b.and_(bits, ~(0xFF << 23)), _BIAS << 23)
    plain = b.and_(b.is_finite(x), b.compare(x, "NE", 0.0))
    return b.select(plain, b.bitcast_convert(kept, float32), x), b.select(plain, power, 0.0)


def _put_together(b: GraphBuilder, digits: Value, power: Value) -> Value:
    """digits * 2^power, in steps that all but the last are exact, rounded once where it is subnormal."""
    power = b.clamp(float(-_MOST_HALVINGS), power, float(_MOST_HALVINGS))
    for _ in range(3):  # the first two take it to the edge of the normal numbers, and so nothing is rounded twice
        step = b.clamp(-126.0, power, 127.0)
        digits, power = b.multiply(digits, _power_of_two(b, step)), b.subtract(power, step)
    return digits


def _power_of_two(b: GraphBuilder, exponent: Value) -> Value:
    return b.bitcast_convert(b.shift_left(b.convert(b.add(exponent, float(_BIAS)), int32), 23), float32)


@lowers("cummax.default")
def cummax(site, x, dim):
    return _so_far(site, x, dim, True)


@lowers("cummin.default")
def cummin(site, x, dim):
    return _so_far(site, x, dim, False)


def _so_far(site: LoweringSite, x: Value, dim: int, largest: bool) -> Any:
    """The largest or smallest of what comes before each element of `dim` or is it, and where the last of them is. One
    NaN is as good as another, and better than a number."""
    b, x = site.b, moved_last(site, x, dim)
    if x.type.size == 0:
        return tuple(b.constant(0, t.dtype, t.shape) for t in site.types if t is not None)
    places, beyond = b.iota(x.shape, int32, len(x.shape) - 1), limit_of(x, largest)
    for reach in _reaches(x.shape[-1]):
        other, there = _before(b, x, reach, beyond), _before(b, places, reach, 0)
        stays = b.compare(x, "GE" if largest else "LE", other)
        nan, other_nan = is_nan(site, x), is_nan(site, other)
        if nan is not None and other_nan is not None:
            stays = b.or_(nan, b.and_(stays, b.not_(other_nan)))
        x, places = b.select(stays, x, other), b.select(stays, places, there)
    return results_of(site, x, places, dim)


@lowers("logcumsumexp.default")
def logcumsumexp(site, x, dim):
    """log of the sum of exp of all so far, as the largest and the sum of what all are of its exp: rounded once."""
    if not x.shape or x.type.size == 0:
        return site.cast(x)
    b, largest = site.b, moved_last(site, site.wide(x), dim)
    total = b.constant(1.0, float32, largest.shape)
    for reach in _reaches(largest.shape[-1]):
        other, before = _before(b, largest, reach, -inf), _before(b, total, reach, 0.0)
        together = b.maximum(other, largest)
        parts = (b.multiply(t, _share(b, x, together)) for t, x in ((before, other), (total, largest)))
        total, largest = b.add(*parts), together
    return _moved_back(site, b.add(largest, b.log(total)), dim)


def _share(b: GraphBuilder, x: Value, largest: Value) -> Value:
    """exp(x - largest), which of two equal infinities is one."""
    return b.exponential(b.select(b.compare(x, "EQ", largest), 0.0, b.subtract(x, largest)))
