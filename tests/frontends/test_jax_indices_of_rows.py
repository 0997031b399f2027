# SPDX-License-Identifier: Apache-2.0
"""Several elements of each row by `jnp.take_along_axis`, beside jax.jit on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import trnlab.frontends.jax as neuron  # noqa: E402
from trnlab import chips  # noqa: E402
from trnlab.runtime import session  # noqa: E402


@pytest.mark.parametrize("mode", ["fill", "clip"])
@pytest.mark.parametrize(("shape", "count", "axis"), [((6, 50, 64), 40, -1), ((3, 300, 20), 70, 1), ((9, 40), 2, -1)])
def test_elements_of_rows_and_their_gradient(shape, count, axis, mode):
    """Also indices out of range, which give NaN or the nearest element, and whose gradient goes nowhere, or there."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    wanted = list(shape)
    wanted[axis] = count
    ids = rng.integers(-shape[axis] - 3, shape[axis] + 3, wanted).astype(np.int32)
    weights = rng.standard_normal(wanted).astype(np.float32)

    def loss(x, ids, weights):
        taken = jnp.take_along_axis(x, ids, axis, mode=mode)
        return jnp.where(jnp.isnan(taken), 0.0, taken * weights).sum(), taken

    both = jax.value_and_grad(loss, has_aux=True)
    (_, expected), gradient = jax.jit(both)(x, ids, weights)
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        (_, taken), got = neuron.jit(both)(x, ids, weights)
    np.testing.assert_array_equal(np.asarray(taken), np.asarray(expected))
    np.testing.assert_allclose(np.asarray(got), np.asarray(gradient), rtol=1e-5, atol=1e-6)
