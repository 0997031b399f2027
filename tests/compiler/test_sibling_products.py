# SPDX-License-Identifier: Apache-2.0
"""Products of one operand by several others, computed in one call, against NumPy in float64.

Every element is held to the rounding of its own additions, relative to the sum of the magnitudes that went into it.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compiled import build, execute, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.numerics.dtypes import bfloat16, float32

FORMATS = [np.float32, ml_dtypes.bfloat16]


def calls(graph, chip="trn1") -> list[str]:
    """What the calls of the program are shown as."""
    return [call.label for call in compile(graph, chips.get(chip), {"precision": "fp32"}).calls]


def agree(got, x, y, dtype, more=0.0) -> None:
    """`got` is x y + more, rounded once."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    want, sizes = x @ y + more, np.abs(x) @ np.abs(y) + np.abs(more)
    rounding = 2.0**-8 if dtype is ml_dtypes.bfloat16 else 0.0
    bound = 2.0**-23 * (x.shape[1] + 3) * sizes + rounding * np.abs(want) + 2.0**-149
    assert got.shape == want.shape
    assert (np.abs(np.asarray(got).astype(np.float64) - want) <= bound).all()


def given(rows, k, widths, dtype, turned):
    """Rows of an operand, and weights [k, width], or [width, k] where they are `turned`."""
    shapes = [(rows, k), *((width, k) if turned else (k, width) for width in widths)]
    return [random(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)]


def products(b, x, *weights, turned=False, biases=()):
    dt = bfloat16 if x.dtype is bfloat16 else float32
    found = [b.dot_general(x, w, ((1,), (1 if turned else 0,)), dt=dt) for w in weights]
    return tuple(b.add(y, b.broadcast_in_dim(c, y.shape, (1,))) for y, c in zip(found, biases)) if biases else found


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("rows", "k", "widths"), [(512, 256, (128, 128, 128)), (600, 130, (256, 128)), (513, 384, (640, 128, 384))]
)
def test_each_result_is_its_own_product(rows, k, widths, turned, dtype, chip):
    """Tiles of 512 columns end within results, which have theirs where no tile ends."""
    values = given(rows, k, widths, dtype, turned)
    graph = build(lambda b, *v: tuple(products(b, *v, turned=turned)), *values)
    assert any(f"(x{len(widths)})" in label for label in calls(graph, chip))
    for got, weight in zip(execute(graph, values, chip=chip), values[1:], strict=True):
        agree(got, values[0], weight.T if turned else weight, dtype)


@pytest.mark.parametrize("rows", [512, 640])
def test_each_has_an_epilogue_of_its_own(rows):
    """A bias of each, and beyond that a long chain of one alone, whose tiles wait for each other."""
    widths = (512, 128, 384)
    values = given(rows, 256, widths, np.float32, True)
    biases = [random(width, seed=9 + i) for i, width in enumerate(widths)]

    def function(b, x, *rest):
        one, two, three = products(b, x, *rest[:3], turned=True, biases=rest[3:])
        for _ in range(7):
            two = b.tanh(two)
        return one, two, three

    graph = build(function, *values, *biases)
    assert any("(x3)" in label for label in calls(graph))
    one, two, three = execute(graph, [*values, *biases])
    for got, i in ((one, 0), (three, 2)):
        agree(got, values[0], values[1 + i].T, np.float32, biases[i].astype(np.float64))
    want = values[0].astype(np.float64) @ values[2].T + biases[1]
    for _ in range(7):
        want = np.tanh(want)
    assert np.allclose(two, want, rtol=1e-4, atol=1e-4)


def test_a_product_whose_epilogue_reads_another_one_comes_later():
    """x a, and x b times x a, as in gated networks: the second one waits, so they are two calls."""
    values = given(512, 256, (256, 256), np.float32, False)

    def function(b, x, u, v):
        first, second = products(b, x, u, v)
        return first, b.multiply(second, first)

    graph = build(function, *values)
    assert not any("(x2)" in label for label in calls(graph))
    x, u, v = (value.astype(np.float64) for value in values)
    first, second = execute(graph, values)
    agree(first, values[0], values[1], np.float32)
    assert np.allclose(second, (x @ v) * (x @ u), rtol=1e-4, atol=1e-3)


def test_rows_and_contraction_of_one_square_operand_are_not_the_same():
    """x a and x^T b of a square x, as of gradients of a weight and of what it was applied to."""
    values = given(256, 256, (256, 256), np.float32, False)
    graph = build(lambda b, x, u, v: (b.dot_general(x, u, ((1,), (0,))), b.dot_general(x, v, ((0,), (0,)))), *values)
    x, u, v = values
    one, two = execute(graph, values)
    agree(one, x, u, np.float32)
    agree(two, x.T, v, np.float32)


def test_what_is_computed_again_behind_a_barrier_is_another_operand():
    """A checkpoint's second computation is not done along with the first: its result would be kept in between."""
    values = given(512, 256, (256, 256), np.float32, False)
    joined = build(lambda b, x, u, v: tuple(products(b, x, u, v)), *values)
    assert any("(x2)" in label for label in calls(joined))

    def behind(b, x, u, v):
        again = b.append("optimization_barrier", (x,), {}).results[0]
        return products(b, x, u)[0], products(b, again, v)[0]

    apart = build(behind, *values)
    assert not any("(x2)" in label for label in calls(apart))
    for got, weight in zip(execute(apart, values), values[1:]):
        agree(got, values[0], weight, np.float32)


def test_an_operand_that_stays_in_sbuf_is_read_there_by_all():
    """Rows that a loop leaves in SBUF for three products, whose results stay there for a sum of all."""
    values = given(512, 256, (256, 256, 256), np.float32, True)

    def function(b, x, *weights):
        x = b.multiply(x, b.broadcast_in_dim(b.reduce(x, (1,)), x.shape, (0,)))
        one, two, three = products(b, x, *weights, turned=True)
        one, two, three = (
            b.divide(y, b.broadcast_in_dim(b.reduce(b.abs(y), (1,)), y.shape, (0,))) for y in (one, two, three)
        )
        return b.add(b.add(one, two), three)

    graph = build(function, *values)
    program = compile(graph, chips.get("trn1"), {"precision": "fp32"})
    (number,) = (call.routine for call in program.calls if "(x3)" in call.label)
    kinds = [buffer.kind for buffer in program.routines[number].buffers]
    assert kinds.count("resident") == 4  # the operand once, and three results
    x, *weights = (value.astype(np.float64) for value in values)
    found = [x * x.sum(1, keepdims=True) @ weight.T for weight in weights]
    want = sum(y / np.abs(y).sum(1, keepdims=True) for y in found)
    assert np.allclose(execute(graph, values)[0], want, rtol=1e-3, atol=1e-5)


def test_few_rows_stay_products_of_their_own():
    """Their weights take longer to come than to be multiplied."""
    graph = build(lambda b, *v: tuple(products(b, *v)), *given(384, 256, (256, 256), np.float32, False))
    assert not any("(x2)" in label for label in calls(graph))
