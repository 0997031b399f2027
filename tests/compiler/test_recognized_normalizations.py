# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm come to one form with one gradient, however a framework spells them out; what differs in
one number stays as written, and no number changes but for rounding."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import execute

from trnlab.compiler.rewriting.recognize import recognize_normalizations
from trnlab.compiler.rewriting.recognize.normalization import norm_of
from trnlab.frontends.stablehlo import import_module
from trnlab.graph.interpret import interpret
from trnlab.graph.passes import simplify
from trnlab.graph.verify import verify

EPS = 1e-5


def averages(x):
    mean = x.mean(-1, keepdims=True)
    return mean, jnp.square(x - mean).mean(-1, keepdims=True)


def two_passes(x, w, c):
    """JAX, as people write it."""
    mean, variance = averages(x)
    return (x - mean) * jax.lax.rsqrt(variance + EPS) * w + c


def weight_first(x, w, c):
    """Flax, with use_fast_variance=False."""
    mean, variance = averages(x)
    return (x - mean) * (jax.lax.rsqrt(variance + EPS) * w) + c


def shift_first(x, w, c):
    """Keras."""
    mean, variance = averages(x)
    scale = jax.lax.rsqrt(variance + EPS) * w
    return x * scale + (c - mean * scale)


def one_pass(x, w, c):
    """Flax: the variance is a difference of squares, not below zero."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.maximum(0.0, jnp.square(x).mean(-1, keepdims=True) - jnp.square(mean))
    return (x - mean) * (jax.lax.rsqrt(variance + EPS) * w) + c


def root_mean_square(x, w, c):
    """No mean."""
    return w * (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPS)) + c


def matrices(x, w, c):
    """Rows counted in one dimension, and numbered by two before and after."""
    return two_passes(x.reshape(-1, x.shape[-1]), w, c).reshape(x.shape)


LAYER_NORMS = {f.__name__: f for f in (two_passes, weight_first, shift_first, one_pass, matrices)}
NORMS = {**LAYER_NORMS, "root_mean_square": root_mean_square}


def _unbiased(x, w, c):
    mean, variance = averages(x)
    return (x - mean) * jax.lax.rsqrt(variance * (x.shape[-1] / (x.shape[-1] - 1)) + EPS) * w + c


def _of_columns(x, w, c):
    mean = x.mean(0, keepdims=True)
    variance = jnp.square(x - mean).mean(0, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + EPS) * w + c


def _another_mean(x, w, c):
    mean, variance = averages(x)
    return (x - 2 * mean) * jax.lax.rsqrt(variance + EPS) * w + c


def _fourth_power(x, w, c):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(jnp.square(jnp.square(x - mean)).mean(-1, keepdims=True) + EPS) * w + c


NEAR = {f.__name__[1:]: f for f in (_unbiased, _of_columns, _another_mean, _fourth_power)}


def graph_of(function, *arrays):
    graph = import_module(jax.jit(function).lower(*arrays).compiler_ir("stablehlo"), "test").graph
    simplify(graph)
    return graph


def step(norm):
    """The result, and the gradients of x, beside a residual, and of weight and bias."""

    def both(x, w, c, g, rest):
        out, back = jax.vjp(norm, x, w, c)
        dx, dw, dc = back(g)
        return out, rest + dx, dw, dc

    return both


def numbers(*shape, seed=0, mean=0.3):
    rng = np.random.default_rng(seed)
    w, c = (1 + rng.standard_normal(shape[-1:]) / 4, rng.standard_normal(shape[-1:]))
    x, g, rest = (rng.standard_normal(shape) + offset for offset in (mean, 0, 0))
    return [v.astype(np.float32) for v in (x, w, c, g, rest)]


def recognized(function, given):
    graph = graph_of(function, *given)
    after = graph.copy()
    found = recognize_normalizations(after)
    simplify(after)
    verify(after)
    return graph, after, found


@pytest.mark.parametrize("shape", [(4, 64), (2, 3, 48), (2, 2, 2, 5)], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_numbers_stay(name, shape):
    """In float64, where only what the recogniser takes for zero could differ."""
    given = numbers(*shape)
    graph, after, found = recognized(step(NORMS[name]), given)
    assert found
    for got, expected in zip(interpret(after, given, "float64"), interpret(graph, given, "float64"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)  # constants such as 1/48 are float32's


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_all_come_to_the_same_ops(name):
    """As many ops of each kind as the plainest form has; the difference of squares and its lower limit stay as
    written."""
    given = numbers(2, 3, 48)
    moves = ("reshape", "broadcast_in_dim", "constant", "transpose")
    own = Counter({"maximum": 1, "compare": 2, "select": 2, "divide": 1, "subtract": 1, "multiply": 2})
    counts = [Counter(op.name for op in recognized(step(f), given)[1].ops) for f in (NORMS[name], two_passes)]
    for count in counts:
        for op in moves:
            del count[op]
    assert counts[1] == Counter(reduce=6, subtract=3, multiply=8, divide=4, add=3, rsqrt=1)
    assert counts[0] == counts[1] + (own if name == "one_pass" else Counter())


def test_two_norms_one_after_the_other():
    """As in a post-norm block: each gradient is found through the other."""

    def post_norm(x, w, c):
        return two_passes(jnp.sin(x) + shift_first(x, w, c), w, c)

    given = numbers(3, 40)
    graph, after, _ = recognized(step(post_norm), given)
    assert sum(op.name == "reduce" for op in after.ops) < sum(op.name == "reduce" for op in graph.ops)
    for got, expected in zip(interpret(after, given, "float64"), interpret(graph, given, "float64"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NORMS)
def test_a_multiple_of_a_sum_is_computed_from_the_sum(name):
    """As dropout multiplies a norm's result, or its gradient beside a residual. To add multiples instead would leave
    the rounding of both where they nearly cancel, and compute the norm again."""

    def both(*given):
        out, dx, *_ = step(NORMS[name])(*given)
        return out, jnp.float32(1 / 0.9) * out, dx, dx / jnp.float32(0.7), dx + dx * jnp.float32(0.1)

    given = numbers(8, 48)
    _, after, found = recognized(both, given)
    assert found
    out, scaled, dx, divided, summed = interpret(after, given)
    np.testing.assert_array_equal(scaled, np.float32(1 / 0.9) * out)
    np.testing.assert_array_equal(divided, dx / np.float32(0.7))
    np.testing.assert_array_equal(summed, dx + dx * np.float32(0.1))


@pytest.mark.parametrize("name", NEAR)
def test_what_is_nearly_a_norm_keeps_its_numbers(name):
    given = numbers(6, 24)
    graph, after, _ = recognized(step(NEAR[name]), given)
    for got, expected in zip(interpret(after, given, "float64"), interpret(graph, given, "float64"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_an_unbiased_variance_is_none():
    graph = graph_of(NEAR["unbiased"], *numbers(6, 24)[:3])
    assert not any(norm_of(op) for op in graph.ops if op.name == "rsqrt")


def test_a_gradient_with_another_factor_stays():
    """r g - avg(r g) - 2 n avg(g n r) is nobody's gradient."""

    def function(x, g):
        mean, variance = averages(x)
        r = jax.lax.rsqrt(variance + EPS)
        n = (x - mean) * r
        return r * (g - g.mean(-1, keepdims=True) - 2 * n * (g * n).mean(-1, keepdims=True))

    given = [numbers(4, 24)[0], numbers(4, 24)[3]]
    graph, after, _ = recognized(function, given)
    (got,), (expected,) = interpret(after, given, "float64"), interpret(graph, given, "float64")
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("name", NORMS)
def test_what_is_not_finite_stays_in_its_row(name, value):
    """A number that is none makes its own row's results none, as written, and no other's."""
    given = numbers(4, 24)
    given[0][1, 3] = value
    graph, after, _ = recognized(step(NORMS[name]), given)
    with np.errstate(all="ignore"):
        results = [interpret(g, [v.copy() for v in given]) for g in (after, graph)]
    for got, expected in zip(results[0][:2], results[1][:2], strict=True):
        assert not np.isfinite(got[~np.isfinite(expected)]).any() or value == 1e30
        np.testing.assert_allclose(np.delete(got, 1, 0), np.delete(expected, 1, 0), rtol=1e-4, atol=1e-5)


def test_a_large_mean_costs_no_more_digits_than_before():
    """Keras' form takes a large number from a large one after scaling; the distance from the mean is exact first."""
    given = numbers(4, 64, mean=300.0)
    graph, after, _ = recognized(step(shift_first), given)
    exact = interpret(graph, given, "float64")
    errors = [
        max(np.abs(got - want).max() for got, want in zip(interpret(g, given)[:2], exact[:2])) for g in (after, graph)
    ]
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("name", NORMS)
def test_the_chip_computes_it(name):
    given = numbers(130, 48)
    graph = graph_of(step(NORMS[name]), *given)
    for got, expected in zip(execute(graph, given), interpret(graph, given, "float64"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
