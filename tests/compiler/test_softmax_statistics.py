# SPDX-License-Identifier: Apache-2.0
"""The largest element of each row of a product and the sum of the exponentials: taken in the product's epilogue, for
every kind of number that a row may hold; and the gradient of a loss of such rows, read once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compiled import build, check_graph, error, execute_in_both_orders, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.rewriting.softmax import LEAST_ROW
from trnlab.graph.interpret import interpret

WIDE = LEAST_ROW + 905  # two columns of the last tile are alone
INF, NAN = np.inf, np.nan


def statistics(b, x):
    """As softmax spells them out."""
    top = b.reduce(x, (1,), "maximum", keepdims=True)
    return top, b.reduce(b.exponential(b.subtract(x, top)), (1,), keepdims=True)


def of_product(b, x, w, bias):
    return statistics(b, b.add(b.matmul(x, w), bias))


def guarded(b, x, w, bias):
    """As JAX's logsumexp does: distances are from zero where the largest element is not finite."""
    logits = b.add(b.matmul(x, w), bias)
    top = b.reduce(logits, (1,), "maximum", keepdims=True)
    near = b.select(b.op("is_finite", top), top, b.constant(0.0, "float32", top.shape))
    return near, b.reduce(b.exponential(b.subtract(logits, near)), (1,), keepdims=True)


def loss(b, x, w, ids, g):
    """The logarithm of a softmax, and the gradient of its negative at some places, as PyTorch's come in."""
    logits = b.matmul(x, w)
    top, total = statistics(b, logits)
    shifted = b.subtract(b.subtract(logits, top), b.log(total))
    rows, cols = logits.shape
    inside = b.and_(b.compare(ids, "GE", 0), b.compare(ids, "LT", cols))
    hit = b.compare(b.iota(logits.shape, "int32", 1), "EQ", b.broadcast_in_dim(ids, logits.shape, (0,)))
    spread = b.broadcast_in_dim(g, logits.shape, (0,))
    share = b.broadcast_in_dim(b.select(inside, g, b.constant(0.0, "float32", (rows,))), logits.shape, (0,))
    picked = b.select(hit, spread, b.constant(0.0, "float32", logits.shape))
    return b.subtract(picked, b.multiply(b.exponential(shifted), share)), top, total


def hostile_bias(kind):
    """[1, WIDE] that is added to all rows."""
    bias = random(1, WIDE, seed=5)
    where = {
        "a tile is -inf": (slice(0, 512), -INF),
        "the first tiles are -inf": (slice(0, 3000), -INF),
        "all but one are -inf": (slice(1, None), -INF),
        "all are -inf": (slice(None), -INF),
        "one is +inf": (slice(700, 701), INF),
        "one is NaN": (slice(2000, 2001), NAN),
        "the least float": (slice(0, 1024), np.finfo(np.float32).min),
        "a large one last": (slice(WIDE - 1, WIDE), 1e30),
        "large ones": (slice(600, 2000), 3e4),
        "ordinary": (slice(0, 0), 0.0),
    }
    at, number = where[kind]
    bias[:, at] = number
    return bias


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("spelling", [of_product, guarded])
@pytest.mark.parametrize(
    "kind",
    [
        "ordinary",
        "a tile is -inf",
        "the first tiles are -inf",
        "all but one are -inf",
        "all are -inf",
        "one is +inf",
        "one is NaN",
        "the least float",
        "a large one last",
        "large ones",
    ],
)
def test_rows_of_any_numbers(kind, spelling, chip):
    """Beside NumPy in float64, in both orders; 200 rows are a block and a part of one."""
    x, w, bias = random(200, 24), random(24, WIDE, seed=1), hostile_bias(kind)
    graph = build(spelling, x, w, bias)
    top, total = execute_in_both_orders(graph, [x, w, bias], chip=chip)
    with np.errstate(all="ignore"):
        logits = (x @ w + bias).astype(np.float64)
        largest = logits.max(1, keepdims=True)
        if spelling is guarded:
            largest = np.where(np.isfinite(largest), largest, 0.0)
        expected = np.exp(logits - largest).sum(1, keepdims=True)
    assert error(top, largest) < 1e-5
    assert error(total, expected) < 1e-5


def test_more_tiles_than_places():
    """Sums that are put together on the way: 70 tiles of one row, the largest in the middle or at the end."""
    x, w = random(3, 8), random(8, 70 * 512, seed=2)
    for at in (0, 17_000, 35_839):
        w[:, at] *= 40
        check_graph(build(lambda b, x, w: statistics(b, b.matmul(x, w)), x, w), [x, w], tolerance=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_epilogue_takes_them(precision):
    """And the loop over the logits, which makes the gradient, has no reduction."""
    x, w, ids, g = random(256, 32), random(32, WIDE), np.zeros(256, np.int32), random(256)
    program = compile(build(loss, x, w, ids, g), chips.get("trn1"), {"precision": precision})
    product = next(r for r in program.routines if r.name.startswith("dot"))
    assert "softmax_statistics" in product.name
    assert not any("reduce" in r.name for r in program.routines)


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
def test_gradients_of_a_loss(chip):
    """Rows whose target is outside get none. Beside the interpreter of the graph as it was written."""
    x, w, g = random(300, 24), random(24, WIDE, seed=1) * 3, random(300, seed=2)
    ids = np.random.default_rng(3).integers(0, WIDE, 300).astype(np.int32)
    ids[[0, 150, 299]] = -100, WIDE, WIDE - 1
    graph = build(loss, x, w, ids, g)
    want = interpret(graph, [x, w, ids, g])
    got = execute_in_both_orders(graph, [x, w, ids, g], chip=chip)
    for a, b in zip(got, want):
        assert error(a, b) < 1e-5
    assert not got[0][0].any()
    assert not got[0][150].any()


def test_nearly_certain_rows_keep_their_digits():
    """A target that has nearly all of the probability p: 1 - p is small, and exact but for p's own rounding."""
    x, w = np.zeros((128, 8), np.float32), np.zeros((8, WIDE), np.float32)
    x[:, 0], w[0, 7] = np.linspace(1, 20, 128, dtype=np.float32), 1.0
    ids, g = np.full(128, 7, np.int32), np.full(128, -1 / 128, np.float32)
    (got, *_) = execute_in_both_orders(build(loss, x, w, ids, g), [x, w, ids, g])
    logits = torch.tensor(x.astype(np.float64) @ w, requires_grad=True)
    (torch.nn.functional.nll_loss(logits.log_softmax(1), torch.tensor(ids).long(), reduction="sum") / 128).backward()
    assert logits.grad is not None
    np.testing.assert_allclose(got, logits.grad.numpy(), rtol=2e-6, atol=4 * 2**-24 / 128)


def test_other_sums_of_exponentials_stay():
    """Of distances from other numbers than the rows' largest elements, and along other dimensions."""

    def shifted(b, x, w):
        y = b.matmul(x, w)
        top = b.reduce(y, (1,), "maximum", keepdims=True)
        return b.reduce(b.exponential(b.subtract(y, b.multiply(top, 0.5))), (1,))

    def over_rows(b, x, w):
        y = b.matmul(x, w)
        return b.reduce(b.exponential(b.subtract(y, b.reduce(y, (0,), "maximum", keepdims=True))), (0,))

    x, w = random(130, 16), random(16, WIDE)
    for function in (shifted, over_rows):
        check_graph(build(function, x, w), [x, w], tolerance=1e-5)
