# SPDX-License-Identifier: Apache-2.0
"""Maths of neuronxcc.nki.language: functions of each element, reductions and matmul, all with dtype and mask.

`**options` of the functions steer the vendor's compiler only and change nothing.

Source: "Math operations" of nki.language in the 2.2x documentation of aws-neuron-sdk.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from math import prod as product
from typing import Any

from trnlab.lang import compose
from trnlab.lang import instructions as ins
from trnlab.lang.compose import FLOAT32
from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki import language as new
from trnlab.nki.neuronxcc import elementwise as each
from trnlab.nki.neuronxcc import isa
from trnlab.nki.neuronxcc.masked import boxed
from trnlab.nki.neuronxcc.zeros import settle


def _unary(name: str) -> Any:
    def function(x: Tensor, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
        return each.function(name, x, dtype, mask)

    function.__name__, function.__doc__ = name, f"{name} of each element."
    return function


def _binary(name: str, op: str) -> Any:
    def function(x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
        return each.binary(op, x, y, dtype, mask)

    function.__name__, function.__doc__ = name, f"{name}, element by element; inputs of one element repeat."
    return function


def _truth(name: str, op: str) -> Any:
    def function(x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
        return each.compared(op, x, y, dtype, mask)

    function.__name__, function.__doc__ = name, f"{name}, element by element: 1 or 0, in the format bool."
    return function


add, subtract, multiply = _binary("add", "add"), _binary("subtract", "subtract"), _binary("multiply", "multiply")
maximum, minimum, power = _binary("maximum", "max"), _binary("minimum", "min"), _binary("power", "power")
mod, fmod = _binary("mod", "mod"), _binary("fmod", "mod")
equal, not_equal = _truth("equal", "is_equal"), _truth("not_equal", "not_equal")
less, less_equal = _truth("less", "is_lt"), _truth("less_equal", "is_le")
greater, greater_equal = _truth("greater", "is_gt"), _truth("greater_equal", "is_ge")
logical_and, logical_or = _truth("logical_and", "logical_and"), _truth("logical_or", "logical_or")
logical_xor = _truth("logical_xor", "logical_xor")
bitwise_and, bitwise_or = _binary("bitwise_and", "bitwise_and"), _binary("bitwise_or", "bitwise_or")
bitwise_xor = _binary("bitwise_xor", "bitwise_xor")
left_shift, right_shift = _binary("left_shift", "left_shift"), _binary("right_shift", "right_shift")

abs, square, exp, log, sqrt = (_unary(n) for n in ("abs", "square", "exp", "log", "sqrt"))
tanh, sigmoid, relu, softplus, mish = (_unary(n) for n in ("tanh", "sigmoid", "relu", "softplus", "mish"))
gelu, gelu_dx, gelu_apprx_tanh = (_unary(n) for n in ("gelu", "gelu_dx", "gelu_apprx_tanh"))
gelu_apprx_sigmoid, gelu_apprx_sigmoid_dx = _unary("gelu_apprx_sigmoid"), _unary("gelu_apprx_sigmoid_dx")
silu, silu_dx, erf, erf_dx = (_unary(n) for n in ("silu", "silu_dx", "erf", "erf_dx"))
arctan, sign, rsqrt, reciprocal = (_unary(n) for n in ("arctan", "sign", "rsqrt", "reciprocal"))


def divide(x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """x / y, element by element; the quotient of integers is a float32."""
    return each.divided(x, y, dtype, mask)


def negative(x: Tensor, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """-x."""
    return each.binary("multiply", x, -1, dtype or x.format, mask)


def invert(x: Tensor, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """The bits of x, flipped."""
    return each.unary("invert", x, dtype, mask)


def logical_not(x: Tensor, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """1 where x is zero, in the format bool."""
    return each.unary("logical_not", x, dtype or each.BOOL, mask)


def _composed(name: str, compute: Callable[[Tensor, Any], Tensor], what: str) -> Any:
    """A function that is a few instructions: computed on what the mask leaves, then put into the result."""

    def function(x: Tensor, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
        def emit(out: Tensor, x: Tensor) -> None:
            made = compute(x, out.format)
            if not ins.redirect(made, out):
                compose.copy(made, dst=out)

        return each.computed(x.shape, dtype or x.format, mask, (x,), emit)

    function.__name__, function.__doc__ = name, what
    return function


sin = _composed("sin", new.sin, "The sine, of any angle.")
cos = _composed("cos", new.cos, "The cosine, of any angle.")
tan = _composed("tan", new.tan, "The tangent.")
floor = _composed("floor", lambda x, d: compose.rounded(x, math.floor, d), "The largest integer that is not larger.")
ceil = _composed("ceil", lambda x, d: compose.rounded(x, math.ceil, d), "The smallest integer that is not smaller.")
trunc = _composed("trunc", lambda x, d: compose.rounded(x, math.trunc, d), "The integer part.")


def where(condition: Any, x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """x where the condition is not zero, y elsewhere; inputs of one element repeat."""
    given = (x, y)
    tiles = [t for t in given if isinstance(t, Tensor)]
    shape = condition.shape
    for tile in tiles:
        shape = compose.broadcast_shape(shape, tile.shape)
    fmt = dtype or (each.promoted(x, y) if tiles else FLOAT32)

    def emit(out: Tensor, condition: Tensor, x: Any, y: Any) -> None:
        compose.where(condition, x, y, dst=out)

    return each.computed(shape, fmt, mask, (condition, x, y), emit)


# -- reductions ---------------------------------------------------------------------------------------------------
def _reduction(name: str, op: str, truth: bool = False) -> Any:
    def function(
        x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any
    ) -> Any:
        return isa.reduce(op, x, axis, dtype or (each.BOOL if truth else None), mask, keepdims)

    function.__name__, function.__doc__ = name, f"{name} along free dimensions."
    return function


sum, max, min = _reduction("sum", "add"), _reduction("max", "max"), _reduction("min", "min")
prod, all = _reduction("prod", "multiply"), _reduction("all", "logical_and", truth=True)


def _count(x: Tensor, axis: Any, mask: Any) -> int:
    """How many elements of what the mask leaves are folded into one."""
    axes = {a % x.ndim for a in ([axis] if isinstance(axis, int) else axis)}
    box = boxed(mask, x.shape)
    return product(box[a][1] - box[a][0] if a in box else x.shape[a] for a in axes)


def mean(x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Any:
    """Mean along free dimensions, summed in float32."""
    total = isa.reduce("add", x, axis, FLOAT32, mask, keepdims)
    return each.binary("multiply", total, 1.0 / builtins.max(_count(x, axis, mask), 1), dtype or x.format)


def var(x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """Variance along free dimensions (divided by n), which stay with one element."""
    centred = each.binary("subtract", x, mean(x, axis, dtype=FLOAT32, mask=mask, keepdims=True), FLOAT32, mask)
    squares = each.function("square", centred, FLOAT32, mask)
    return mean(squares, axis, dtype=dtype or x.format, mask=mask, keepdims=True)


def softmax(x: Tensor, axis: Any, *, dtype: Any = None, compute_dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """exp(x - max) / sum along free dimensions."""
    largest = isa.reduce("max", x, axis, FLOAT32, mask, True)
    powers = each.function("exp", each.binary("subtract", x, largest, FLOAT32, mask), FLOAT32, mask)
    total = isa.reciprocal(isa.reduce("add", powers, axis, FLOAT32, mask, True))
    return each.binary("multiply", powers, total, dtype or x.format, mask)


def rms_norm(
    x: Tensor,
    w: Tensor,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    *,
    dtype: Any = None,
    compute_dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Any:
    """x / sqrt(sum(x^2) / n + epsilon) * w."""
    squares = each.function("square", x, FLOAT32, mask)
    total = isa.reduce("add", squares, axis, FLOAT32, mask, True)
    shifted = isa.tensor_scalar(total, "multiply", 1.0 / n, op1="add", operand1=epsilon)
    scaled = each.binary("multiply", x, each.function("rsqrt", shifted), FLOAT32, mask)
    return each.binary("multiply", scaled, w, dtype or x.format, mask)


# -- random numbers -------------------------------------------------------------------------------------------------
def dropout(x: Tensor, rate: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """Zero each element with probability `rate`."""
    return isa.dropout(x, rate, dtype=dtype, mask=mask)


def rand(shape: Any, dtype: Any = "float32", **_: Any) -> Any:
    """Uniform numbers in [0, 1)."""
    return new.rand(shape, dtype)


def random_seed(seed: Any, *, mask: Any = None, **_: Any) -> None:
    """Seed the generator."""
    if mask is None or mask:
        new.random_seed(seed if isinstance(seed, Tensor) else compose.filled((1, 1), seed, "int32"))


# -- the PE array -------------------------------------------------------------------------------------------------
def matmul(x: Tensor, y: Tensor, *, transpose_x: bool = False, mask: Any = None, **_: Any) -> Any:
    """x @ y in PSUM, or x.T @ y when x is already transposed. A mask bounds the contraction."""
    if not transpose_x:
        x = compose.in_sbuf(isa.nc_transpose(x))
    settle(x)
    settle(y)
    if (x.format.itemsize == 4) != (y.format.itemsize == 4):
        x, y = (t if t.format.itemsize == 4 else each.copied(t, FLOAT32) for t in (x, y))
    return isa.nc_matmul(x, y, mask=mask)


def transpose(x: Tensor, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """Partition and free dimension swapped."""
    if x.ndim != 2:
        refuse(
            "only tiles of two dimensions are transposed", limit=2, got=list(x.shape), remedy="slice or reshape first"
        )
    return isa.nc_transpose(x, dtype=dtype, mask=mask)
