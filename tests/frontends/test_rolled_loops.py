# SPDX-License-Identifier: Apache-2.0
"""Loops of JAX whose rounds are alike become one op of the graph, with the results that XLA has: through the graph's
meaning, through its StableHLO, and on the chip."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from stablehlo_oracle import against_xla  # noqa: E402

from tools.xla import XlaEngine  # noqa: E402
from trnlab import chips, compiler  # noqa: E402
from trnlab.frontends.common.engine import DeviceEngine  # noqa: E402
from trnlab.frontends.stablehlo.lowerings import control  # noqa: E402
from trnlab.program.verify import verify_program  # noqa: E402
from trnlab.runtime import session  # noqa: E402
from trnlab.sim.timing import time_program  # noqa: E402

TRN1 = chips.get("trn1")
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)


@pytest.fixture(autouse=True)
def nothing_is_unrolled(monkeypatch):
    monkeypatch.setattr(control, "SHORT", 0)


def everywhere(function, *args, tolerance=1e-5, loops=1):
    """Hold a function against jax.jit in all three ways; returns its graph, which has so many loops."""
    program = against_xla(function, *args, tolerance=tolerance)
    against_xla(function, *args, tolerance=tolerance, runner=XlaEngine().compile)
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        against_xla(function, *args, tolerance=max(tolerance, 1e-5), runner=DeviceEngine().compile)
    assert program.graph is not None
    assert sum(op.name == "loop" for op in program.graph.ops) == loops
    verify_program(compiler.compile(program.graph, TRN1, {"precision": "fp32"}), TRN1)
    return program.graph


def running(x):
    return lax.scan(lambda c, t: (c * 0.5 + t, c.sum()), jnp.zeros(4), x)


def gated(w, x):
    def cell(h, t):
        h = jnp.tanh(h @ w + t)
        return h, (h, h.sum())

    return lax.scan(cell, jnp.zeros((2, 4)), x)


def overwritten(x):
    return lax.fori_loop(1, 6, lambda i, x: x.at[i].set(x[i - 1] * 0.5 + x[i]), x)


def scaled_in_place(x):
    return lax.fori_loop(0, 6, lambda i, x: x.at[i].multiply(2), x)


def every_second(x):
    return lax.fori_loop(0, 3, lambda i, y: y.at[2 * i].set(x[i + 1] * i), x)


def columns(x):
    return lax.fori_loop(0, 4, lambda i, y: y.at[:, i].set(x[:, 3 - i]), jnp.zeros_like(x))


def swapped(x):
    return lax.fori_loop(0, 5, lambda i, s: (s[1], s[0] + s[1] * i), (x, x * 2))


def counted_with_data(x):
    def body(state):
        i, y, odd = state
        return i + 2, y + x[i % 6] * i, ~odd

    return lax.while_loop(lambda s: s[0] < 11, body, (1, jnp.zeros(4), jnp.array(False)))


def nested(x):
    def outer(c, t):
        inner, seen = lax.scan(lambda a, b: (a + b * t.sum(), a), c, x)
        return inner * 0.1, seen.sum(0)

    return lax.scan(outer, jnp.zeros(4), x[:5])


def random_steps(x):
    def body(key, t):
        key, now = jax.random.split(key)
        return key, t + jax.random.uniform(now, (4,))

    return lax.scan(body, jax.random.key(7), x)[1]


def of_integers(x):
    return lax.scan(lambda c, t: (c * 3 + t, c), jnp.int32(1), (x * 5).astype(jnp.int32)[:, 0])


def known_places(x):
    order = jnp.array([3, 1, 4, 1, 5, 0])
    return lax.scan(lambda c, i: (c + x[i], c), jnp.zeros(4), order)


def gradient(function, *parts):
    return lambda *args: jax.grad(
        lambda *args: sum((jnp.sin(y) ** 2).sum() for y in jax.tree.leaves(function(*args)))
    )(*args)


@pytest.mark.parametrize(
    "function",
    [
        running,
        overwritten,
        scaled_in_place,
        every_second,
        columns,
        swapped,
        counted_with_data,
        nested,
        of_integers,
        known_places,
        lambda x: lax.scan(lambda c, t: (c + t, c), jnp.zeros(4), x, reverse=True),
        lambda x: lax.map(lambda t: jnp.exp(t) @ x.T, x),
        lambda x: lax.fori_loop(0, 1, lambda i, c: c + x[i], x[2]),
        lambda x: lax.scan(lambda c, t: (c, t * 2), x[0], x),
        lambda x: lax.scan(lambda c, t: (c + 1, None), x[0], None, length=7)[0],
    ],
    ids=lambda f: f.__name__,
)
def test_a_loop_gives_what_xla_gives(function):
    everywhere(function, X)


def test_gradients_of_a_scan_are_a_loop_backwards():
    w, x = np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(4, 4), np.stack([X[:5, :], X[1:, :]], 1)
    everywhere(gated, w, x)
    everywhere(lambda w, x: gradient(gated)(w, x), w, x, loops=2)
    everywhere(gradient(running), X, loops=2)
    everywhere(gradient(overwritten), X, loops=2)


def test_what_counters_alone_decide_is_computed_before():
    graph = everywhere(random_steps, X)
    (loop,) = (op for op in graph.ops if op.name == "loop")
    assert not {"shift_left", "xor"} & {op.name for op in loop.attrs["body"].graph.ops}


def test_results_that_nobody_reads_and_what_rounds_share_are_not_computed_each_time():
    def f(w, x):
        (c, _), (seen, _) = lax.scan(
            lambda s, t: ((jnp.tanh(t @ (w * 2)) + s[0], s[1] + t), (s[0], s[1])), (jnp.zeros(4), jnp.zeros(4)), x
        )
        return c, seen

    w = np.eye(4, dtype=np.float32)
    graph = everywhere(f, w, X)
    program = compiler.compile(graph, TRN1, {"precision": "fp32"})
    lean = compiler.compile(
        everywhere(lambda w, x: lax.scan(lambda c, t: (jnp.tanh(t @ w) + c, c), jnp.zeros(4), x), w, X),
        TRN1,
        {"precision": "fp32"},
    )
    assert len(program.calls) == len(lean.calls)  # w * 2 comes along where the state begins


def test_rounds_share_their_routines_and_time_grows_with_them():
    def compiled(rounds):
        x = np.ones((rounds, 2, 4), np.float32)
        graph = against_xla(gated, np.eye(4, dtype=np.float32), x).graph
        return compiler.compile(graph, TRN1, {"precision": "fp32"})

    few, many = compiled(8), compiled(64)
    assert len(few.routines) == len(many.routines)
    assert len(many.calls) - len(few.calls) == 56 * ((len(many.calls) - len(few.calls)) // 56)
    short, long = (time_program(p, TRN1).total for p in (few, many))
    assert 5 < long / short < 8.2


def test_a_loop_with_a_loop_inside_that_data_ends_still_runs():
    def f(x):
        def body(i, c):
            return lax.while_loop(lambda s: s.sum() < 10 * (i + 1), lambda s: s * 2 + 1, c)

        return lax.fori_loop(0, 3, body, x)

    program = against_xla(f, np.ones(3, np.float32), exact=True)
    assert program.graph is None
