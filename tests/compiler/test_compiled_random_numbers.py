# SPDX-License-Identifier: Apache-2.0
"""Random numbers on the chip: distributed as they should be, the same for the same seed, the same in the backward
pass."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, execute, random

SEED = np.array(7, np.int32)


def draw(shape, *, seed=SEED, stream=0, function=None):
    graph = build(lambda b, s: (function or (lambda b, u: u))(b, b.rng_uniform(shape, s, stream)), seed)
    return execute(graph, [seed])[0]


@pytest.mark.parametrize("shape", [(1000,), (130, 33), (300, 700), (2, 3, 65, 65), (3, 20_000)])
def test_uniform(shape):
    """Mean, variance and quarters of [0, 1) within five standard errors; neighbours along either axis
    uncorrelated."""
    x = draw(shape).astype(np.float64)
    assert x.min() >= 0.0
    assert x.max() < 1.0
    error = 5 / np.sqrt(x.size)
    assert abs(x.mean() - 0.5) <= error * np.sqrt(1 / 12)
    assert abs(x.var() - 1 / 12) <= error * np.sqrt(1 / 180)
    shares = np.histogram(x, 4, (0.0, 1.0))[0] / x.size
    assert np.abs(shares - 0.25).max() <= error * np.sqrt(3 / 16)
    centred = x.reshape(-1, x.shape[-1]) - 0.5
    for a, c in ((centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1])):
        if a.size:
            assert abs((a * c).mean()) <= 5 / np.sqrt(a.size) / 12


def test_no_row_repeats_another():
    """Rows of all tiles and of several streams are streams of their own."""
    rows = np.concatenate([draw((300, 16), stream=s) for s in (0, 1, 2)])
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_the_seed_decides():
    assert np.array_equal(draw((130, 33)), draw((130, 33)))
    assert not np.array_equal(draw((130, 33)), draw((130, 33), seed=np.array(8, np.int32)))
    assert not np.array_equal(draw((130, 33)), draw((130, 33), stream=1))


def test_a_mask_is_the_same_wherever_it_is_used():
    """Dropout forward and backward: what one drops the other drops, though other loops read the mask."""
    x, g = random(300, 70), random(300, 70, seed=1)

    def function(b, x, g, w, s):
        keep = b.compare(b.rng_uniform(x.shape, s, 3), "GE", 0.25)
        y = b.multiply(b.select(keep, x, 0.0), 1 / 0.75)
        out = b.matmul(y, w)
        back = b.dot_general(g, w, ((1,), (0,)))
        return y, out, b.multiply(b.select(keep, back, 0.0), 1 / 0.75)

    inputs = [x, g, np.eye(70, dtype=np.float32), SEED]
    y, out, dx = execute(build(function, *inputs), inputs)
    kept = y != 0
    assert abs(kept.mean() - 0.75) <= 5 * np.sqrt(0.1875 / kept.size)
    assert np.allclose(y[kept], x[kept] / 0.75, rtol=1e-6)
    assert np.allclose(out, y, rtol=1e-6)
    assert np.array_equal(dx != 0, kept)
