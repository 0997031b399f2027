# SPDX-License-Identifier: Apache-2.0
"""`jax.checkpoint`: what is to be computed again is, and stays out of memory meanwhile."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from stablehlo_oracle import against_xla  # noqa: E402

from trnlab import chips, compiler  # noqa: E402
from trnlab.frontends.stablehlo import import_module  # noqa: E402
from trnlab.graph.flops import model_flops  # noqa: E402

ROWS, WIDTH, HIDDEN, LAYERS = 4096, 64, 256, 4


def block(x, weights):
    up, down = weights
    return x + jnp.tanh(x @ up) @ down


def step(around):
    """One of SGD, each layer within `around`."""

    def loss(weights, x):
        for each in weights:
            x = around(block)(x, each)
        return jnp.mean(x**2)

    def run(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, weights, gradients)

    return run


def weights_of(width, hidden):
    rng = np.random.default_rng(1)
    shapes = ((width, hidden), (hidden, width))
    return [tuple(rng.standard_normal(s, dtype=np.float32) / 8 for s in shapes) for _ in range(LAYERS)]


def program(around):
    arguments = weights_of(WIDTH, HIDDEN), np.zeros((ROWS, WIDTH), np.float32)
    text = jax.jit(step(around), donate_argnums=0).lower(*arguments).as_text()
    graph = import_module(text).graph
    assert graph is not None
    return graph, compiler.compile(graph, chips.get("trn1"), {"precision": "fp32"})


def test_a_checkpoint_saves_memory_in_the_program():
    """A layer's hidden activations are 4 MiB, too much to stay in SBUF, its input a quarter: those of three of four
    layers are not kept."""
    graph, whole = program(lambda f: f)
    again, less = program(jax.checkpoint)
    assert sum(op.name == "dot_general" for op in again.ops) == sum(op.name == "dot_general" for op in graph.ops) + 4
    assert less.hbm_bytes <= whole.hbm_bytes - 3 * ROWS * HIDDEN * 4 + ROWS * WIDTH * 4
    assert model_flops(again) == model_flops(graph)


def test_a_policy_says_what_is_kept():
    keeps = jax.checkpoint_policies.dots_saveable
    graph, _ = program(lambda f: jax.checkpoint(f, policy=keeps))
    assert sum(op.name == "dot_general" for op in graph.ops) == sum(
        op.name == "dot_general" for op in program(lambda f: f)[0].ops
    )


@pytest.mark.parametrize("around", [jax.checkpoint, lambda f: jax.checkpoint(f, prevent_cse=False)])
def test_values_are_those_of_xla(around):
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)
    against_xla(step(around), weights_of(4, 8), x)


def test_a_checkpoint_in_a_scan():
    """Rounds of a loop read through barriers, too."""
    stacked = jax.tree.map(lambda *each: np.stack(each), *weights_of(4, 8))
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)

    def loss(weights, x):
        return lax.scan(lambda c, w: (jax.checkpoint(block)(c, w), None), x, weights)[0].sum()

    against_xla(lambda w, x: jax.grad(loss)(w, x), stacked, x)


@pytest.mark.parametrize("keeps", [None, "dots_saveable"])
@pytest.mark.parametrize("inner", [lambda f: f, jax.jit])
@pytest.mark.parametrize(("rounds", "rolled"), [(40, True), (3, False)])
@pytest.mark.parametrize("around", ["layers", "the loop"])
def test_what_is_computed_again_for_a_loop_is_none_of_the_models_operations(keeps, inner, rounds, rolled, around):
    """Loops of both directions, as a graph's op and unrolled: 4 products a layer, each with two in the way back."""
    width, hidden, rows = 8, 16, 6
    weights = [np.ones((rounds, *shape), np.float32) for shape in ((width, hidden), (hidden, width))]
    again = partial(jax.checkpoint, policy=getattr(jax.checkpoint_policies, keeps) if keeps else None)

    def layer(x, weights):
        up, down = weights
        mixed = inner(lambda x: jnp.tanh(jnp.einsum("ri,ij->rj", x, up)))(x)
        return x + jnp.sin(jnp.tanh(mixed @ mixed.T @ mixed) @ down), None

    def flops(of_layer, of_loop):
        def loss(weights, x):
            return (of_loop(lambda x: lax.scan(of_layer(layer), x, weights)[0])(x) ** 2).sum()

        step = jax.jit(lambda weights, x: jax.value_and_grad(loss)(weights, x))
        graph = import_module(step.lower(weights, np.ones((rows, width), np.float32)).as_text(debug_info=True)).graph
        assert any(op.name == "loop" for op in graph.ops) == rolled
        return model_flops(graph)

    asked = flops(lambda f: f, lambda f: f)
    first = 0 if rolled else 2 * rows * width * hidden  # nobody reads the gradient of x
    assert asked == 3 * rounds * 2 * rows * (2 * width * hidden + 2 * rows * hidden) - first
    assert asked == (flops(again, lambda f: f) if around == "layers" else flops(lambda f: f, again))
