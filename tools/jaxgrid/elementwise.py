# SPDX-License-Identifier: Apache-2.0
"""Functions element by element, of one array and of two, and products."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax

from tools.jaxgrid.case import ANY, BOOL, FLOATS, POSITIVE, SHAPE, UNIT, WHOLE, Case, numbers, of, of_one, of_two

_NUMPY = [
    "abs",
    "exp",
    "exp2",
    "expm1",
    "cbrt",
    "sin",
    "cos",
    "tan",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "arcsinh",
    "floor",
    "ceil",
    "round",
    "trunc",
    "rint",
    "sign",
    "square",
    "reciprocal",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "deg2rad",
    "degrees",
    "negative",
    "positive",
    "nan_to_num",
    "sinc",
    "i0",
    "logical_not",
    "fix",
    "spacing",
    "isneginf",
    "isposinf",
    "real",
    "imag",
    "conj",
]
_LAX = ["erf", "erfc", "logistic", "is_finite", "bessel_i0e", "bessel_i1e", "tan", "asinh", "cbrt"]
_FLOAT_PAIRS = [
    "arctan2",
    "hypot",
    "logaddexp",
    "logaddexp2",
    "copysign",
    "nextafter",
    "heaviside",
    "fmax",
    "fmin",
    "isclose",
    "allclose",
    "true_divide",
    "divide",
]
_PAIRS = [
    "add",
    "subtract",
    "multiply",
    "floor_divide",
    "mod",
    "remainder",
    "fmod",
    "maximum",
    "minimum",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "divmod",
    "outer",
    "inner",
    "vdot",
    "kron",
    "array_equal",
    "append",
]
_WHOLE_PAIRS = ["gcd", "lcm", "bitwise_and", "bitwise_or", "bitwise_xor"]
_ACTIVATIONS = [
    "relu",
    "relu6",
    "sigmoid",
    "softplus",
    "soft_sign",
    "silu",
    "swish",
    "log_sigmoid",
    "leaky_relu",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "elu",
    "celu",
    "selu",
    "gelu",
    "glu",
    "softmax",
    "log_softmax",
    "logsumexp",
    "standardize",
    "squareplus",
    "mish",
    "sparse_plus",
]


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _of_one_array()
    yield from _of_two_arrays()
    yield from _products()
    yield from _activations()


def _of_one_array() -> Iterator[Case]:
    yield from of_one(of(jnp, *_NUMPY, prefix="jnp"), FLOATS)
    yield from of_one(of(jnp, "log", "log2", "log10", "log1p", "sqrt", prefix="jnp"), FLOATS, POSITIVE)
    yield from of_one(of(jnp, "arcsin", "arccos", "arctanh", prefix="jnp"), FLOATS, UNIT)
    yield from of_one(
        {"jnp.arccosh": lambda x: jnp.arccosh(x + 1), "lax.acosh": lambda x: lax.acosh(x + 1)}, FLOATS, POSITIVE
    )
    whole = ["abs", "sign", "square", "negative", "positive", "invert", "logical_not", "bitwise_count", "exp", "sin"]
    yield from of_one(of(jnp, *whole, prefix="jnp"), WHOLE)
    yield from of_one(of(jnp, "sqrt", prefix="jnp"), WHOLE, POSITIVE)
    yield from of_one(of(jnp, "logical_not", "invert", prefix="jnp"), BOOL)
    yield from of_one(of(lax, *_LAX, prefix="lax"), FLOATS)
    yield from of_one(of(lax, "erf_inv", "atanh", prefix="lax"), FLOATS, UNIT)
    yield from of_one(of(lax, "lgamma", "digamma", "rsqrt", prefix="lax"), FLOATS, POSITIVE)
    yield from of_one(of(lax, "population_count", "clz", prefix="lax"), WHOLE)


def _of_two_arrays() -> Iterator[Case]:
    yield from of_two(of(jnp, *_FLOAT_PAIRS, prefix="jnp"), FLOATS)
    yield from of_two(of(jnp, *_PAIRS, prefix="jnp"), (*FLOATS, *WHOLE))
    yield from of_two(of(jnp, *_WHOLE_PAIRS, prefix="jnp"), WHOLE)
    yield from of_two(of(jnp, "power", prefix="jnp"), (*FLOATS, *WHOLE), kinds=(POSITIVE, POSITIVE))
    yield from of_two(of(jnp, "float_power", prefix="jnp"), FLOATS, kinds=(POSITIVE, POSITIVE))
    shifts = {"jnp.left_shift": lambda x, y: x << y % 5, "jnp.right_shift": lambda x, y: x >> y % 5}
    yield from of_two(shifts, WHOLE)
    for dtype in FLOATS:
        yield Case("jnp.ldexp", dtype, jnp.ldexp, (numbers(SHAPE, dtype), numbers(SHAPE, "int32", seed=1)))
    rows = {
        "jnp.convolve": jnp.convolve,
        "jnp.correlate": jnp.correlate,
        "jnp.polyval": jnp.polyval,
        "jnp.interp": lambda x, y: jnp.interp(x, jnp.arange(4, dtype=x.dtype), y),
    }
    yield from of_two(rows, FLOATS, ((9,), (4,)), (ANY, ANY))
    places = {
        "jnp.searchsorted": lambda x, y: jnp.searchsorted(jnp.sort(x), y),
        "jnp.digitize": lambda x, y: jnp.digitize(x, jnp.sort(y)),
    }
    yield from of_two(places, (*FLOATS, *WHOLE), ((9,), (4,)), (ANY, ANY))


def _products() -> Iterator[Case]:
    products = {**of(jnp, "matmul", "dot", prefix="jnp"), "jnp.tensordot": lambda x, y: jnp.tensordot(x, y, 1)}
    yield from of_two(products, (*FLOATS, *WHOLE), (SHAPE, (7, 4)), (ANY, ANY))
    yield from of_two(of(jnp, "cross", prefix="jnp"), (*FLOATS, *WHOLE), ((5, 3), (5, 3)), (ANY, ANY))
    of_itself = {
        "jnp.einsum, two": lambda x: jnp.einsum("ij,kj->ik", x, x),
        "jnp.einsum, three": lambda x: jnp.einsum("ij,kj,il->kl", x, x, x),
        "vmap of jnp.dot": lambda x: jax.vmap(jnp.dot)(x, x),
    }
    yield from of_one(of_itself, FLOATS)


def _activations() -> Iterator[Case]:
    for name in _ACTIVATIONS:
        function = getattr(jax.nn, name)
        weighed = name in ("softmax", "log_softmax")

        def total(x, function=function, weighed=weighed):
            y = function(x)
            return (y * x if weighed else y).astype("float32").sum()

        yield from of_one({f"nn.{name}": function, f"grad of nn.{name}": jax.grad(total)}, FLOATS, shape=(5, 8))
