# SPDX-License-Identifier: Apache-2.0
"""One element of each row, as JAX counts to it, and the gradient of that: no table of elements is left."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import build

from trnlab.compiler.rewriting.recognize import recognize_picks
from trnlab.frontends.stablehlo import import_module
from trnlab.graph.interpret import interpret
from trnlab.graph.passes import simplify
from trnlab.graph.verify import verify
from trnlab.numerics.dtypes import int32

ROWS, COLUMNS = 6, 5


def loss(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def test_a_cross_entropy_of_jax_and_its_gradient_have_no_index():
    """Labels out of range, too: NaN at the end, one from the other side when negative, as JAX has it."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 3, COLUMNS)).astype(np.float32)
    labels = np.array([[0, 4, 2], [-1, 7, -9]], np.int32)
    lowered = jax.jit(jax.value_and_grad(loss)).lower(logits, labels)
    graph = import_module(lowered.compiler_ir("stablehlo"), "test").graph
    simplify(graph)
    assert {op.name for op in graph.ops} >= {"gather", "scatter"}
    after = graph.copy()
    assert recognize_picks(after)
    verify(after)
    assert not any(op.name == "scatter" for op in after.ops)
    assert all(op.attrs["operand_batching_dims"] for op in after.ops if op.name == "gather")
    expected = jax.value_and_grad(loss)(jnp.array(logits), jnp.array(labels))
    for got, same, by_jax in zip(interpret(after, [logits, labels]), interpret(graph, [logits, labels]), expected):
        np.testing.assert_array_equal(got, same)
        np.testing.assert_allclose(got, by_jax, rtol=1e-5)


def elements(b, x, ids, first=None, step=COLUMNS, most=COLUMNS - 1):
    """x [ROWS, COLUMNS] at row * step + ids, the rows counted from `first`."""
    begins = b.multiply(b.iota((ROWS,), int32), step)
    if first is not None:
        begins = b.add(begins, first)
    flat = b.add(begins, b.clamp(0, ids, most))
    numbers = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,)}
    table = b.reshape(x, (ROWS * COLUMNS, 1))
    return b.op("gather", table, flat, index_vector_dim=1, slice_sizes=(1, 1), **numbers)


@pytest.mark.parametrize(
    ("options", "found"),
    [({}, True), ({"step": 4}, False), ({"first": 1}, False), ({"most": COLUMNS}, False), ({"most": 3}, True)],
    ids=str,
)
def test_only_columns_of_their_own_row_are_picked(options, found):
    """Other steps, another first row, or a column too many, and the index says something else."""
    x = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    ids = np.array([0, 4, 5, -3, 2, 1], np.int32)
    graph = build(lambda b, *values: elements(b, *values, **options), x, ids)
    after = graph.copy()
    assert recognize_picks(after) is found
    np.testing.assert_array_equal(interpret(after, [x, ids])[0], interpret(graph, [x, ids])[0])
