# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, comparisons, logic, casts and activations."""

from __future__ import annotations

from math import inf
from typing import Any

from trnlab.frontends.torch.lowerings.registry import LATE, LoweringSite, lowers
from trnlab.graph.ir import Value
from trnlab.graph.powers import beside_one
from trnlab.numerics.dtypes import bool_, float32

_UNARY = {
    "neg": "negate",
    "abs": "abs",
    "floor": "floor",
    "ceil": "ceil",
    "round": "round_nearest_even",
    "exp": "exponential",
    "expm1": "exponential_minus_one",
    "log": "log",
    "log1p": "log_plus_one",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sin": "sine",
    "cos": "cosine",
    "tanh": "tanh",
    "erf": "erf",
    "sigmoid": "logistic",
}
_COMPARISONS = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_MOST_POWERS_UNROLLED = 4


def _unary(name: str) -> Any:
    return lambda site, x: site.b.op(name, site.cast(x))


for _aten, _name in _UNARY.items():
    lowers(f"{_aten}.default")(_unary(_name))


def arithmetic(site: LoweringSite, name: str, x: Any, y: Any) -> Value:
    """A two-operand op in the result's format; with a number beside a 16-bit tensor, in fp32 and rounded once."""
    if site.dtype.is_float and site.dtype is not float32 and not (isinstance(x, Value) and isinstance(y, Value)):
        return site.cast(site.b.binary(name, site.wide(x), site.wide(y)))
    x, y = site.cast(x), site.cast(y)
    exact = beside_one(site.b, name, x, y) if name in ("add", "subtract") else None
    return site.b.binary(name, x, y) if exact is None else exact


def _scaled(site: LoweringSite, x: Any, alpha: float) -> Any:
    if alpha == 1:
        return x
    return alpha * x if not isinstance(x, Value) else arithmetic(site, "multiply", x, alpha)


@lowers("add.Tensor", "add.Scalar")
def add(site, x, y, alpha=1):
    return arithmetic(site, "add", x, _scaled(site, y, alpha))


@lowers("sub.Tensor", "sub.Scalar")
def sub(site, x, y, alpha=1):
    return arithmetic(site, "subtract", x, _scaled(site, y, alpha))


@lowers("rsub.Tensor", "rsub.Scalar")
def rsub(site, x, y, alpha=1):
    return arithmetic(site, "subtract", y, _scaled(site, x, alpha))


@lowers("mul.Tensor", "mul.Scalar")
def mul(site, x, y):
    if site.dtype is bool_:
        return site.b.and_(*site.common(x, y))
    return arithmetic(site, "multiply", x, y)


@lowers("div.Tensor", "div.Scalar")
def div(site, x, y):
    return arithmetic(site, "divide", x, y)


@lowers("maximum.default")
def maximum(site, x, y):
    return arithmetic(site, "maximum", x, y)


@lowers("minimum.default")
def minimum(site, x, y):
    return arithmetic(site, "minimum", x, y)


@lowers("reciprocal.default")
def reciprocal(site, x):
    return arithmetic(site, "divide", 1.0, x)


@lowers("square.default")
def square(site, x):
    return site.b.multiply(x, x)


@lowers("pow.Tensor_Scalar")
def pow_number(site, x, exponent):
    x = site.cast(x)
    if exponent in (0.5, -0.5):
        return site.b.sqrt(x) if exponent > 0 else site.b.rsqrt(x)
    if exponent == -1:
        return arithmetic(site, "divide", 1.0, x)
    if exponent == int(exponent) and 1 <= exponent <= _MOST_POWERS_UNROLLED:
        base = result = site.working(x)
        for _ in range(int(exponent) - 1):
            result = site.b.multiply(result, base)
        return site.cast(result)
    return arithmetic(site, "power", x, exponent)


@lowers("pow.Scalar", "pow.Tensor_Tensor")
def pow_tensor(site, x, exponent):
    return arithmetic(site, "power", x, exponent)


@lowers("addcmul.default")
def addcmul(site, x, y, z, value=1):
    b = site.b
    x, y, z = (site.working(v) for v in (x, y, z))
    return site.cast(b.add(x, _times(site, b.multiply(y, z), value)))


def multiply_add(site, x, y, z):
    """x * y + z, rounded twice: the engines have no form that rounds once."""
    x, y, z = (site.working(v) for v in (x, y, z))
    return site.cast(site.b.add(site.b.multiply(x, y), z))


LATE["prims.fma.default"] = multiply_add


@lowers("addcdiv.default")
def addcdiv(site, x, y, z, value=1):
    b = site.b
    return site.cast(b.add(site.wide(x), _times(site, b.divide(site.wide(y), site.wide(z)), value)))


def _times(site: LoweringSite, x: Value, factor: float) -> Value:
    return x if factor == 1 else site.b.multiply(x, factor)


@lowers("lerp.Scalar", "lerp.Tensor")
def lerp(site, start, end, weight):
    """From the nearer end, as PyTorch: a + (b - a) w for weights below a half, b + (b - a) (w - 1) from there on."""
    b, low, high, weight = site.b, site.wide(start), site.wide(end), site.wide(weight)
    apart = b.subtract(high, low)
    if not isinstance(weight, Value):
        weight = float32.numpy.type(weight)
        if abs(weight) < 0.5:
            return site.cast(b.add(low, b.multiply(apart, float(weight))))
        return site.cast(b.add(high, b.multiply(apart, float(weight - float32.numpy.type(1)))))
    near = b.compare(b.abs(weight), "LT", 0.5)
    share = b.multiply(apart, b.select(near, weight, b.subtract(weight, 1.0)))
    return site.cast(b.add(b.select(near, low, high), share))


# -- comparisons and logic ------------------------------------------------------------------------------------------


def _comparison(direction: str) -> Any:
    def compare(site, x, y):
        x, y = site.common(x, y)
        return site.b.compare(x, direction, y)

    return compare


for _aten, _name in _COMPARISONS.items():
    lowers(f"{_aten}.Tensor", f"{_aten}.Scalar")(_comparison(_name))


def truth(site: LoweringSite, x: Value) -> Value:
    """Whether each element differs from zero."""
    return x if x.dtype is bool_ else site.b.compare(x, "NE", 0)


@lowers("logical_and.default")
def logical_and(site, x, y):
    return site.b.and_(truth(site, x), truth(site, y))


@lowers("logical_or.default")
def logical_or(site, x, y):
    return site.b.or_(truth(site, x), truth(site, y))


@lowers("logical_xor.default")
def logical_xor(site, x, y):
    return site.b.xor(truth(site, x), truth(site, y))


@lowers("logical_not.default")
def logical_not(site, x):
    return site.b.not_(truth(site, x))


@lowers("bitwise_not.default")
def bitwise_not(site, x):
    return site.b.not_(x)


@lowers("bitwise_and.Tensor", "bitwise_and.Scalar")
def bitwise_and(site, x, y):
    return site.b.and_(*site.common(x, y))


@lowers("bitwise_or.Tensor", "bitwise_or.Scalar")
def bitwise_or(site, x, y):
    return site.b.or_(*site.common(x, y))


@lowers("bitwise_xor.Tensor", "bitwise_xor.Scalar")
def bitwise_xor(site, x, y):
    return site.b.xor(*site.common(x, y))


@lowers("isnan.default")
def isnan(site, x):
    return site.b.compare(x, "NE", x)


@lowers("isinf.default")
def isinf(site, x):
    return site.b.compare(site.b.abs(x), "EQ", inf)


@lowers("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(site, condition, x, y):
    return _select(site, truth(site, condition), x, y)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(site, x, mask, value):
    return _select(site, mask, value, x)


def _select(site: LoweringSite, condition: Value, x: Any, y: Any) -> Value:
    x, y = (site.cast(v) if isinstance(v, Value) else site.b.constant(v, site.dtype) for v in (x, y))
    return site.b.broadcast_to(site.b.select(condition, x, y), site.shape)


@lowers("clamp.default", "clamp.Tensor")
def clamp(site, x, low=None, high=None):
    x = site.cast(x)
    if low is not None:
        x = arithmetic(site, "maximum", x, low)
    return x if high is None else arithmetic(site, "minimum", x, high)


@lowers("clamp_min.default", "clamp_min.Tensor")
def clamp_min(site, x, low):
    return clamp(site, x, low)


@lowers("clamp_max.default", "clamp_max.Tensor")
def clamp_max(site, x, high):
    return clamp(site, x, None, high)


# -- casts and copies -----------------------------------------------------------------------------------------------


@lowers("_to_copy.default")
def to_copy(site, x, **where_to):
    return site.cast(x)


@lowers("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "lift_fresh.default")
def same(site, x, **layout):
    return x


@lowers("copy.default")
def copy(site, target, source, non_blocking=False):
    return site.b.broadcast_to(site.cast(source), site.shape)


@lowers("_assert_async.default", "_assert_async.msg")
def assert_async(site, condition, message="a condition of the program does not hold"):
    b = site.b
    site.watch.require(condition if condition.dtype is bool_ else b.compare(condition, "NE", 0), message)
    return None


# -- activations ----------------------------------------------------------------------------------------------------


@lowers("relu.default")
def relu(site, x):
    return arithmetic(site, "maximum", x, 0)


@lowers("threshold_backward.default")
def threshold_backward(site, grad, x, threshold):
    return site.b.select(site.b.compare(x, "LE", threshold), 0, grad)  # the gradient at NaN passes


@lowers("gelu.default")
def gelu(site, x, approximate="none"):
    return site.b.gelu(x, approximate)


@lowers("gelu_backward.default")
def gelu_backward(site, grad, x, approximate="none"):
    return site.cast(site.b.multiply(site.wide(grad), site.b.gelu_dx(site.wide(x), approximate)))


@lowers("silu.default")
def silu(site, x):
    return site.b.silu(x)


@lowers("silu_backward.default")
def silu_backward(site, grad, x):
    return site.cast(site.b.multiply(site.wide(grad), site.b.silu_dx(site.wide(x))))


@lowers("tanh_backward.default")
def tanh_backward(site, grad, y):
    y = site.wide(y)
    return site.cast(site.b.multiply(site.wide(grad), site.b.subtract(1.0, site.b.multiply(y, y))))


@lowers("sigmoid_backward.default")
def sigmoid_backward(site, grad, y):
    y = site.wide(y)
    return site.cast(site.b.multiply(site.wide(grad), site.b.multiply(y, site.b.subtract(1.0, y))))
