# SPDX-License-Identifier: Apache-2.0
"""Rows that are swept more than once: what is kept on chip is loaded once; masks that lie in PSUM select the same."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compiled import build, error, execute, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.sim.timing import time_program


def timeline(graph, chip="trn1"):
    target = chips.get(chip)
    return time_program(compile(graph, target, {"precision": "fp32"}), target)


def bytes_read(graph):
    timed = timeline(graph)
    return sum(timed.ops[i].hbm_read for i in timed.op)


def without_mean(b, x):
    mean = b.multiply(b.reduce(x, (1,), "add", keepdims=True), 1.0 / x.shape[1])
    return b.subtract(x, mean)


@pytest.mark.parametrize(
    ("shape", "loaded"),
    [
        ((140, 9000), (1.0, 1.01)),  # two blocks of rows, each of which has room
        ((130, 30_000), (1.05, 1.9)),  # longer than there is room for: some pieces are loaded again
        ((3, 60_000), (1.0, 1.01)),  # few rows are cut into parts, which have room
    ],
)
def test_pieces_are_kept_from_sweep_to_sweep(shape, loaded):
    x = random(*shape) + 3
    graph = build(without_mean, x)
    (got,) = execute(graph, [x])
    assert error(got, x - x.mean(1, dtype=np.float64)[:, None]) < 1e-5
    assert loaded[0] <= bytes_read(graph) / x.nbytes <= loaded[1]


def masked_sums(b, x, dy, scale, shift):
    """As in the gradient of a ReLU behind a batch norm: both sums of the gradient, and what is left of it."""
    rows = [b.broadcast_in_dim(v, x.shape, (0,)) for v in (scale, shift)]
    wide = b.convert(x, "float32")
    hidden = b.compare(b.add(b.multiply(wide, rows[0]), rows[1]), "LE", 0.0)
    kept = b.convert(b.select(hidden, b.constant(0.0, dy.dtype, dy.shape), dy), "float32")
    total = b.reduce(kept, (1,), "add")
    product = b.reduce(b.multiply(b.subtract(wide, rows[1]), kept), (1,), "add")
    return total, product, b.subtract(kept, b.broadcast_in_dim(total, x.shape, (0,)))


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("shape", [(130, 700), (20, 12_000)])
def test_masks_in_psum_select_the_same(chip, shape):
    """Gradients that are not finite are hidden where the ReLU was closed, and seen where it was open."""
    x, dy = (random(*shape, seed=i).astype(ml_dtypes.bfloat16) for i in range(2))
    scale, shift = random(shape[0], seed=2), random(shape[0], seed=3)
    x[:, :2], scale[:2], shift[:2] = 1, (1, 1), (-2, 2)
    dy[0, 0], dy[0, 1] = np.inf, np.nan  # hidden
    dy[1, 0] = np.inf
    open_ = np.float32(x) * scale[:, None] + shift[:, None] > 0
    kept = np.where(open_, np.float64(dy), 0)
    with np.errstate(invalid="ignore"):
        wanted = kept.sum(1), ((np.float64(x) - shift[:, None]) * kept).sum(1), kept - kept.sum(1)[:, None]
    got = execute(build(masked_sums, x, dy, scale, shift), [x, dy, scale, shift], chip=chip)
    for result, expected in zip(got, wanted):
        with np.errstate(invalid="ignore"):
            assert error(result, expected) < 1e-5
    assert np.isfinite(got[0][0])
    assert np.isinf(got[0][1])


def test_a_mask_in_psum_halves_the_time_of_selecting():
    """One cycle of 1.12 GHz an element, and what an instruction takes besides; two from SBUF."""
    x, dy = (random(128, 8192, seed=i).astype(ml_dtypes.bfloat16) for i in range(2))
    graph = build(lambda b, *v: masked_sums(b, *v)[:2], x, dy, random(128, seed=2), random(128, seed=3))
    timed = timeline(graph)
    times = [timed.end[i] - timed.start[i] for i, op in enumerate(timed.op) if timed.ops[op].name == "select_reduce"]
    assert sum(times) / 1e12 < 1.3 * 8192 / 1.12e9
