# SPDX-License-Identifier: Apache-2.0
"""Activations that are written out, and their derivatives as autodiff makes them, become single ops that mean the
same; what differs from them in one number stays."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from compiled import execute

from trnlab.compiler.rewriting.recognize import recognize_activations
from trnlab.frontends.stablehlo import import_module
from trnlab.graph.interpret import interpret
from trnlab.graph.passes import simplify
from trnlab.graph.verify import verify

X = np.concatenate([np.linspace(-6, 6, 41), [1e-4, -1e-4, 0.0, 30.0, -30.0]]).astype(np.float32)
G = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)

FUNCTIONS = {
    "gelu by tanh": jax.nn.gelu,
    "gelu by tanh, powers": lambda x: (
        0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * jnp.power(x, 3))))
    ),
    "gelu by tanh, factored": lambda x: x / 2 * (1 + jnp.tanh(0.7978845608 * x * (1 + 0.044715 * x * x))),
    "gelu by erf": lambda x: x * (jax.lax.erf(x / math.sqrt(2)) + 1) * 0.5,
    "gelu by erf, halves": lambda x: 0.5 * x + 0.5 * x * jax.lax.erf(math.sqrt(0.5) * x),
    "silu": lambda x: x * jax.nn.sigmoid(x),
}
NEAR = {
    "another number": lambda x: 0.5 * x * (1 + jnp.tanh(0.79 * (x + 0.044715 * x**3))),
    "another square": lambda x: 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x))),
    "of something else": lambda x: 0.5 * (x + 1) * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "another sign": lambda x: 0.5 * x * (1 - jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "a third": lambda x: x * (jax.lax.erf(x / math.sqrt(2)) + 1) / 3,
    "a faster gate": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "only a gate": lambda x: jnp.tanh(x) * jax.nn.sigmoid(x),
}


def graph_of(function, *arrays):
    graph = import_module(jax.jit(function).lower(*arrays).compiler_ir("stablehlo"), "test").graph
    simplify(graph)
    return graph


def with_gradient(function):
    def both(x, g):
        out, back = jax.vjp(function, x)
        return out, back(g)[0]

    return both


def count(graph, *words):
    return sum(any(word in op.name for word in words) for op in graph.ops)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("gradient", [False, True])
def test_activations_are_found_and_mean_the_same(name, gradient):
    function, given = (with_gradient(FUNCTIONS[name]), [X, G]) if gradient else (FUNCTIONS[name], [X])
    graph = graph_of(function, *given)
    after = graph.copy()
    written = name == "silu" and gradient  # the table of its derivative has +0 where the formula has -0
    assert recognize_activations(after)
    verify(after)
    assert count(after, "trn.gelu", "trn.silu") == (0 if written else 1 + gradient)
    assert written or not count(after, "tanh", "erf", "logistic", "exponential")
    for got, expected in zip(interpret(after, given, "float64"), interpret(graph, given, "float64"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NEAR)
def test_what_is_nearly_an_activation_stays(name):
    graph = graph_of(with_gradient(NEAR[name]), X, G)
    after = graph.copy()
    recognize_activations(after)
    assert not count(after, "trn.gelu", "trn.silu")
    for got, expected in zip(interpret(after, [X, G]), interpret(graph, [X, G]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_a_function_that_is_read_elsewhere_stays():
    """The tanh is a result, too: it has to be computed anyhow."""

    def function(x):
        gate = jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        return 0.5 * x * (1 + gate), gate

    graph = graph_of(function, X)
    assert not recognize_activations(graph)
    graph.num_probes = 1
    assert recognize_activations(graph)


def test_the_gradient_keeps_what_it_is_multiplied_by():
    """Factors before and after, two losses, in bfloat16, too."""

    def function(x, g):
        return 3 * jax.vjp(jax.nn.gelu, x)[1](0.25 * g)[0] + jax.vjp(jax.nn.gelu, x)[1](g * g)[0]

    for kind, limit in ((np.float32, 1e-6), (ml_dtypes.bfloat16, 3e-2)):
        given = [X.astype(kind), G.astype(kind)]
        graph = graph_of(function, *given)
        after = graph.copy()
        assert recognize_activations(after)
        for got, expected in zip(
            interpret(after, given), interpret(graph, [a.astype(kind) for a in given]), strict=True
        ):
            expected = expected.astype(np.float32)
            np.testing.assert_allclose(
                got.astype(np.float32), expected, rtol=limit, atol=limit * np.abs(expected).max()
            )


def test_the_chip_computes_it():
    """Beside the graph as it was written."""
    given = [np.ascontiguousarray(np.tile(a, 4)) for a in (X, G)]
    graph = graph_of(with_gradient(jax.nn.gelu), *given)
    for got, expected in zip(execute(graph, given), interpret(graph, given), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
