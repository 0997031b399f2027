# SPDX-License-Identifier: Apache-2.0
"""Windows of JAX on the pooling kernels: the numbers of XLA on the CPU, whatever they are."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from stablehlo_oracle import against_xla  # noqa: E402

from trnlab import chips  # noqa: E402
from trnlab.frontends.common.engine import DeviceEngine  # noqa: E402
from trnlab.runtime import session  # noqa: E402

CASES = {  # shape, window, strides, padding, dilation
    "3 x 3": ((2, 9, 8, 3), (1, 3, 3, 1), (1, 2, 2, 1), "VALID", None),
    "overlapping by rows alone": ((2, 9, 8, 3), (1, 3, 2, 1), (1, 1, 2, 1), "VALID", None),
    "same": ((2, 7, 6, 3), (1, 3, 2, 1), (1, 2, 1, 1), "SAME", None),
    "uneven padding": ((1, 7, 6, 2), (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 2), (2, 0), (0, 0)), None),
    "gaps": ((1, 9, 9, 2), (1, 2, 2, 1), (1, 3, 3, 1), "VALID", None),
    "dilated": ((1, 9, 9, 2), (1, 2, 3, 1), (1, 1, 2, 1), "VALID", (1, 2, 2, 1)),
    "channels first": ((2, 3, 9, 8), (1, 1, 3, 3), (1, 1, 2, 2), "VALID", None),
    "over one dimension": ((2, 9, 4), (1, 3, 1), (1, 2, 1), "VALID", None),
    "over three dimensions": ((1, 5, 6, 4, 2), (1, 3, 2, 2, 1), (1, 2, 2, 1, 1), "VALID", None),
    "a window beyond the image": ((1, 3, 4, 2), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0), (3, 3), (0, 0), (0, 0)), None),
}
HOSTILE = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1.0, 2.0])


def values(shape, kind, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "normal":
        x = rng.standard_normal(shape)
    elif kind == "ties":
        x = np.round(rng.standard_normal(shape)) * np.where(rng.random(shape) < 0.5, 1, -1)
    else:
        x = rng.choice(HOSTILE, shape)
    return jnp.asarray(x.astype(np.float32), dtype)


def both(function, *args, **options):
    """By the meaning of the graph, and on the simulated chip."""
    against_xla(function, *args, **options)
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        against_xla(function, *args, runner=DeviceEngine().compile, **options)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["normal", "ties", "hostile"])
@pytest.mark.parametrize("name", CASES)
def test_largest_elements_and_their_gradient(name, kind, dtype):
    shape, window, strides, padding, dilation = CASES[name]

    def pooled(x):
        return lax.reduce_window(
            x, np.asarray(-np.inf, dtype), lax.max, window, strides, padding, window_dilation=dilation
        )

    x = values(shape, kind, dtype)
    places = jax.eval_shape(pooled, x).shape
    # of few bits, so that sums are exact in any order
    given = jnp.asarray(np.random.default_rng(1).integers(-4, 5, places), dtype)
    both(lambda x: jnp.where(pooled(x) == 0, 0, pooled(x)), x, exact=True)  # of zeros either is the largest
    if dilation is None:  # which JAX does not differentiate
        both(lambda x, given: jax.vjp(pooled, x)[1](given)[0], x, given, exact=True)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["ties", "hostile"])
@pytest.mark.parametrize("name", CASES)
def test_sums_and_their_gradient(name, kind, dtype):
    shape, window, strides, padding, dilation = CASES[name]

    def summed(x):
        none = np.asarray(0, dtype)
        return lax.reduce_window(x, none, lax.add, window, strides, padding, window_dilation=dilation)

    x = values(shape, kind, dtype)
    both(summed, x, exact=True)
    given = jnp.asarray(np.random.default_rng(1).integers(-4, 5, jax.eval_shape(summed, x).shape), dtype)
    both(lambda x, given: jax.vjp(summed, x)[1](given)[0], x, given, exact=True)


def test_gradients_that_are_not_finite_stay_where_they_are():
    x, given = values((1, 9, 9, 2), "ties", jnp.float32), values((1, 4, 4, 2), "hostile", jnp.float32, 3)

    def pooled(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")

    both(lambda x, given: jax.vjp(pooled, x)[1](given)[0], x, given, exact=True)


def test_rounding_is_that_of_the_same_order():
    x, given = values((1, 9, 9, 2), "normal", jnp.float32), values((1, 7, 7, 2), "normal", jnp.float32, 3)

    def pooled(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "VALID")

    both(lambda x, given: jax.vjp(pooled, x)[1](given)[0], x, given, exact=True)


@pytest.mark.parametrize("start", [0.5, 3e38])
def test_another_start_takes_part(start):
    x = values((1, 6, 6, 2), "normal", jnp.float32)
    both(lambda x: lax.reduce_window(x, start, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), x, exact=True)


def test_they_are_the_ops_that_have_kernels():
    def pooled(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")

    x = values((1, 9, 9, 2), "normal", jnp.float32)
    program = against_xla(lambda x: jax.vjp(pooled, x)[1](pooled(x))[0], x, tolerance=1e-6)
    names = {op.name for graph in program.graphs() for op in graph.ops}
    assert {"trn.max_pool", "trn.max_pool_backward"} <= names
