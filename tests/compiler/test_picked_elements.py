# SPDX-License-Identifier: Apache-2.0
"""One element of each long row is read from memory, and what is computed of the row on its way is computed of it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import build, execute, integers, random

from trnlab.compiler.rewriting.canonical import canonicalize
from trnlab.compiler.rewriting.picks import LONG_ROW
from trnlab.graph.interpret import interpret
from trnlab.graph.passes import simplify
from trnlab.graph.verify import verify

ROWS, WIDE = 300, LONG_ROW + 904
HOSTILE = np.array([0, WIDE - 1, WIDE, -1, -100, 2**31 - 1, -(2**31)], np.int32)


def labels():
    """Columns, the first and the last among them, and numbers that are none."""
    ids = integers(ROWS, high=WIDE, seed=3)
    ids[: len(HOSTILE)] = HOSTILE
    return ids


def summed(b, x, ids, value):
    """The sum along rows of `value` in the column that is asked for, zero elsewhere."""
    place = b.iota(x.shape, "int32", len(x.shape) - 1)
    wanted = b.broadcast_in_dim(ids, x.shape, range(len(ids.shape)))
    kept = b.select(b.compare(place, "EQ", wanted), value, b.constant(0.0, value.dtype, x.shape))
    return b.reduce(kept, (len(x.shape) - 1,))


def losses(b, x, ids):
    """Log-probabilities of labels."""
    shifted = b.subtract(x, b.reduce(x, (1,), "maximum", keepdims=True))
    total = b.reduce(b.exponential(shifted), (1,), keepdims=True)
    return summed(b, x, ids, b.subtract(shifted, b.log(total)))


def names(graph):
    """Ops after canonical forms."""
    after = graph.copy()
    canonicalize(after)
    simplify(after)
    verify(after)
    return [op.name for op in after.ops]


def test_losses_of_long_rows_read_one_element():
    """As PyTorch has them, and zero where a label is no column."""
    x, ids = 8 * random(ROWS, WIDE), labels()
    graph = build(losses, x, ids)
    assert names(graph).count("gather") == 1
    (got,) = execute(graph, [x, ids])
    inside = (ids >= 0) & (ids < WIDE)
    logs = F.log_softmax(torch.from_numpy(x).double(), 1).numpy()
    expected = np.where(inside, logs[np.arange(ROWS), np.where(inside, ids, 0)], 0.0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_short_rows_are_gone_through():
    x, ids = random(ROWS, LONG_ROW - 8), integers(ROWS, high=LONG_ROW - 8)
    assert "gather" not in names(build(losses, x, ids))


@pytest.mark.parametrize("lead", [(ROWS,), (3, 50)], ids=str)
def test_casts_and_numbers_on_the_way(lead):
    """bfloat16 in memory, widened, scaled and cut off for the loss: bits are those of the graph."""
    x = (100 * random(*lead, WIDE)).astype(ml_dtypes.bfloat16)
    ids = labels()[: int(np.prod(lead))].reshape(lead)

    def function(b, x, ids):
        value = b.maximum(b.multiply(b.convert(x, "float32"), 0.37), -20.0)
        return summed(b, x, ids, value)

    graph = build(function, x, ids)
    assert names(graph).count("gather") == 1
    np.testing.assert_array_equal(execute(graph, [x, ids])[0], interpret(graph, [x, ids])[0])


def test_along_an_axis_indices_take_the_nearest():
    """`take_along_axis` of integers, whose sum would be rounded."""
    x, ids = integers(ROWS, WIDE, low=-(2**31), high=2**31 - 1), labels()
    graph = build(lambda b, x, ids: b.take_along(x, ids), x, ids)
    assert names(graph).count("gather") == 1
    expected = x[np.arange(ROWS), np.clip(ids, 0, WIDE - 1)]
    np.testing.assert_array_equal(execute(graph, [x, ids])[0], expected)


def varied(b, x, ids):
    """Of two matrices."""
    return summed(b, x, ids, b.add(x, b.multiply(b.iota(x.shape, "float32", 1), x)))


def cumulative(b, x, ids):
    """Of what is computed along the row."""
    lowest = b.broadcast_in_dim(b.reduce(x, (0,), "minimum"), x.shape, (1,))
    return summed(b, x, ids, b.subtract(x, lowest))


@pytest.mark.parametrize("function", [varied, cumulative])
def test_what_varies_along_rows_is_computed_there(function):
    """An operand that is not the same along rows, and is no matrix in memory."""
    x, ids = random(ROWS, WIDE), labels()
    graph = build(function, x, ids)
    assert "gather" not in names(graph)
    np.testing.assert_allclose(execute(graph, [x, ids])[0], interpret(graph, [x, ids])[0], rtol=1e-5)


def test_a_cross_entropy_and_its_gradient():
    """Ignored labels give no loss and no gradient, as in PyTorch, for products of which logits are made."""
    rng = np.random.default_rng(7)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in ((ROWS, 64), (64, WIDE))]
    ids = np.where(rng.random(ROWS) < 0.2, -100, integers(ROWS, high=WIDE)).astype(np.int32)

    def function(b, h, w, ids):
        x = b.matmul(h, w)
        return x, losses(b, x, ids)

    graph = build(function, *given, ids)
    x, got = execute(graph, [*given, ids])
    expected = F.cross_entropy(torch.from_numpy(x), torch.from_numpy(ids).long(), reduction="none")
    np.testing.assert_allclose(-got, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(ROWS,), (5, ROWS // 5)])
def test_of_a_product_with_a_bias(shape):
    """It lies in memory with its bias: of that, one element of each row is read, whatever the rows' shape."""

    def function(b, x, w, bias, ids):
        logits = b.reshape(b.matmul(x, w), (*shape, WIDE))
        logits = b.add(logits, b.broadcast_in_dim(bias, logits.shape, (len(shape),)))
        last = len(shape)
        shifted = b.subtract(logits, b.reduce(logits, (last,), "maximum", keepdims=True))
        return summed(b, logits, ids, shifted), b.take_along(shifted, ids)

    x, w, bias, ids = random(ROWS, 24), random(24, WIDE, seed=1), random(WIDE, seed=2), labels().reshape(shape)
    graph = build(function, x, w, bias, ids)
    assert names(graph).count("gather") == 1
    for got, want in zip(execute(graph, [x, w, bias, ids]), interpret(graph, [x, w, bias, ids])):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
