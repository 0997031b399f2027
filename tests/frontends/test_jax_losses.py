# SPDX-License-Identifier: Apache-2.0
"""Losses over vocabularies that do not stay on chip, as JAX's users write them, beside jax.jit on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import trnlab.frontends.jax as neuron  # noqa: E402
from trnlab import chips  # noqa: E402
from trnlab.compiler.rewriting.softmax import LEAST_ROW  # noqa: E402
from trnlab.runtime import session  # noqa: E402

VOCABULARY, WIDTH, ROWS = LEAST_ROW + 105, 24, 140


def picked(values, ids):
    return jnp.take_along_axis(values, ids[:, None], -1)[:, 0]


LOSSES = {
    "log_softmax": lambda logits, ids: -picked(jax.nn.log_softmax(logits), ids).mean(),
    "logsumexp": lambda logits, ids: (jax.nn.logsumexp(logits, -1) - picked(logits, ids)).mean(),
    "one_hot": lambda logits, ids: -(jax.nn.log_softmax(logits) * jax.nn.one_hot(ids, VOCABULARY)).sum(-1).mean(),
    "softmax": lambda logits, ids: -jnp.log(picked(jax.nn.softmax(logits), ids)).mean(),
    "penalty": lambda logits, ids: (
        jax.nn.logsumexp(logits, -1) - picked(logits, ids) + 1e-2 * jax.nn.logsumexp(logits, -1) ** 2
    ).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((WIDTH, VOCABULARY)).astype(np.float32)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    ids = rng.integers(0, VOCABULARY, ROWS).astype(np.int32)
    ids[:2] = 0, VOCABULARY - 1

    def loss(w, x, ids):
        return LOSSES[name](x @ w, ids)

    with jax.enable_x64(True):
        wide = [np.asarray(a, np.float64) for a in (w, x)]
        expected, wanted = jax.value_and_grad(loss, (0, 1))(*wide, ids)
        expected, wanted = float(expected), [np.asarray(each) for each in wanted]
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        got, gradients = neuron.jit(jax.value_and_grad(loss, (0, 1)))(w, x, ids)
    assert abs(float(got) - expected) <= 3e-6 * abs(expected)
    for each, want in zip(gradients, wanted):
        assert np.abs(np.asarray(each) - want).max() <= 1e-5 * np.abs(want).max()
