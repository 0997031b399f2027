# SPDX-License-Identifier: Apache-2.0
"""Norms of what products make, taken in their epilogues, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, execute_in_both_orders, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.numerics.dtypes import float32


def norm(b, x):
    """As PyTorch's clip_grad_norm_ asks for it."""
    return b.sqrt(b.reduce(b.multiply(x, x), tuple(range(len(x.shape)))))


def of_product(b, x, w):
    made = b.dot_general(x, w, ((0,), (0,)), dt=float32)
    return made, norm(b, made)


def in_epilogue(graph, chip="trn1"):
    """Whether no call but the product's reads its result."""
    program = compile(graph, chips.get(chip), {"precision": "fp32"})
    result = program.outputs[0]
    return sum(result in call.args for call in program.calls) == 1


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize(
    ("rows", "cols", "depth"), [(256, 512, 64), (300, 650, 130), (768, 3072, 256), (512, 128, 8)]
)
def test_norms_of_products(rows, cols, depth, chip):
    """Rows that are a block and a part of one; columns that end within a tile, and more tiles of a row than one."""
    x, w = random(depth, rows), random(depth, cols, seed=1)
    graph = build(of_product, x, w)
    assert in_epilogue(graph, chip)
    made, found = execute_in_both_orders(graph, [x, w], chip=chip)
    want = x.T.astype(np.float64) @ w
    assert np.allclose(made, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    expected = np.sqrt(np.square(made.astype(np.float64)).sum())
    assert abs(found - expected) <= 2e-6 * expected


def test_more_tiles_of_a_row_than_there_is_room_for():
    x, w = random(8, 130), random(8, 40 * 512, seed=2)
    made, found = execute_in_both_orders(build(of_product, x, w), [x, w])
    expected = np.sqrt(np.square(made.astype(np.float64)).sum())
    assert abs(found - expected) <= 2e-6 * expected


@pytest.mark.parametrize(
    ("number", "want"),
    [(np.inf, np.inf), (-np.inf, np.inf), (np.nan, np.nan), (1e25, np.inf), (1e-30, None), (0.0, None)],
)
def test_of_any_numbers(number, want):
    """Squares that no float32 holds are infinite, or nothing, as they are in PyTorch's norm in float32."""
    x, w = random(4, 256), random(4, 512, seed=3)
    x[:, 200] = 0
    x[0, 200] = number
    if number and abs(number) < 1:
        x *= np.float32(number)
    _, found = execute_in_both_orders(build(of_product, x, w), [x, w])
    if want is None:
        made = (x.T @ w).astype(np.float32)
        want = np.sqrt(np.square(made).astype(np.float64).sum())
        assert abs(found - want) <= 1e-5 * want + 1e-30
    else:
        assert np.array_equal(found, np.float32(want), equal_nan=True)


def test_of_what_is_added_to_a_product():
    """The gradient of an embedding that is also the head."""

    def function(b, x, w, more):
        made = b.add(b.dot_general(x, w, ((0,), (0,)), dt=float32), more)
        return made, norm(b, made)

    x, w, more = random(64, 384), random(64, 768, seed=4), random(384, 768, seed=5)
    graph = build(function, x, w, more)
    assert in_epilogue(graph)
    made, found = execute_in_both_orders(graph, [x, w, more])
    expected = np.sqrt(np.square(made.astype(np.float64)).sum())
    assert abs(found - expected) <= 2e-6 * expected


def test_beside_sums_of_an_operand():
    """The gradient of a bias, summed beside that of its weight."""

    def function(b, x, dy):
        made = b.dot_general(dy, x, ((0,), (0,)), dt=float32)
        return made, norm(b, made), b.reduce(dy, (0,))

    x, dy = random(256, 512), random(256, 384, seed=6)
    made, found, sums = execute_in_both_orders(build(function, x, dy), [x, dy])
    expected = np.sqrt(np.square(made.astype(np.float64)).sum())
    assert abs(found - expected) <= 2e-6 * expected
    assert np.allclose(sums, dy.sum(0), rtol=1e-4, atol=1e-4)


def test_the_sum_of_a_product_with_another_is_none():
    def function(b, x, w, y):
        made = b.dot_general(x, w, ((0,), (0,)), dt=float32)
        return made, b.reduce(b.multiply(made, y), (0, 1))

    x, w, y = random(64, 256), random(64, 512, seed=7), random(256, 512, seed=8)
    made, found = execute_in_both_orders(build(function, x, w, y), [x, w, y])
    expected = (made.astype(np.float64) * y).sum()
    assert abs(found - expected) <= 1e-5 * np.abs(made * y).sum()
