# SPDX-License-Identifier: Apache-2.0
"""Sums of products added up in PSUM, and sums of columns computed beside a product, against NumPy in float64.

Every element is held to the rounding of its own additions, relative to the sum of the magnitudes that went into it.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compiled import build, execute, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.passes import PASSES, run_passes, with_chip
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import bfloat16, float32

FORMATS = [np.float32, ml_dtypes.bfloat16]
SIZES = [(1, 1), (1, 513), (127, 129), (129, 127), (513, 1)]
ROWS = {"lhs_contracting_dimensions": (0,), "rhs_contracting_dimensions": (0,)}
# Of a column: numbers that must not reach another column, and what makes sums of them infinite, NaN, or tiny.
HOSTILE = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-39, 3e-38, 1e30, -1e30, 1.0], np.float32)


def ops(graph, chip="trn1") -> list[str]:
    """What the graph is after the compiler's passes."""
    graph = graph.copy()
    run_passes(graph, with_chip({"precision": "fp32"}, chips.get(chip)), PASSES)
    return [op.name for op in graph.ops]


def agree(got, terms, count, dtype=float32) -> None:
    """`got` is the sum of `terms`, [(x, y)] of products x y over the first dimension, `count` additions for each."""
    with np.errstate(all="ignore"):
        pairs = [(x.astype(np.float64), y.astype(np.float64)) for x, y in terms]
        want = sum(np.einsum("km,kn->mn", x, y) for x, y in pairs)
        sizes = sum(np.einsum("km,kn->mn", *(np.nan_to_num(np.abs(v), posinf=0) for v in pair)) for pair in pairs)
        rounding = 2.0**-8 if dtype is bfloat16 else 0.0
        bound = 2.0**-23 * (count + 2) * sizes + rounding * np.abs(want) + (count + 1) * 2.0**-149
        got = np.asarray(got).astype(np.float64)
        finite = np.isfinite(want)
        assert got.shape == want.shape
        assert (np.abs(got - want)[finite] <= bound[finite]).all()
        assert np.array_equal(got[~finite], want[~finite], equal_nan=True)


def matrices(k, m, n, dtype, seed=0):
    return random(k, m, seed=seed).astype(dtype), random(k, n, seed=seed + 1).astype(dtype)


def sum_of_products(b, *values, rest=None):
    """x0^T y0 + x1^T y1 + ..., and `rest` before them."""
    total = rest
    for x, y in zip(values[::2], values[1::2]):
        product = b.dot_general(x, y, ((0,), (0,)))
        total = product if total is None else b.add(total, product)
    return total


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("sizes", SIZES)
def test_sums_of_products(sizes, dtype):
    """Two products of every odd size, their contractions whole blocks."""
    m, n = sizes
    given = [*matrices(256, m, n, dtype), *matrices(256, m, n, dtype, seed=2)]
    graph = build(sum_of_products, *given)
    assert "trn.dot_sum" in ops(graph)
    agree(execute(graph, given)[0], [given[:2], given[2:]], 512)


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_three_products_and_something_else(chip):
    """x + a b + c d + e f, as the gradient of what three layers read beside a residual, keeps every term."""
    given = [v for i in range(3) for v in matrices(128, 65, 129, np.float32, seed=2 * i)]
    rest = random(65, 129, seed=9)
    graph = build(lambda b, r, *v: sum_of_products(b, *v, rest=r), rest, *given)
    assert "trn.dot_sum" in ops(graph)
    got = execute(graph, [rest, *given], chip=chip)[0]
    agree(got, [(np.eye(65, dtype=np.float32), rest), *zip(given[::2], given[1::2])], 3 * 128 + 65)


def gradient_of_what_is_read(b, *values):
    """x0 y0 + x1 y1 + ..., gradients [rows, columns of a weight] by weights, in bfloat16 throughout."""
    total = None
    for x, y in zip(values[::2], values[1::2]):
        product = b.dot_general(x, y, ((1,), (0,)), dt=bfloat16)
        total = product if total is None else b.add(total, product)
    return total


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("lengths", [(128, 128), (256, 128, 128), (128, 384)])
def test_sums_of_products_in_bfloat16_are_rounded_once(lengths, chip):
    """Queries, keys and values of as many heads, or of fewer: contractions of any number of whole blocks."""
    given = []
    for i, k in enumerate(lengths):
        x, y = matrices(k, 129, 65, ml_dtypes.bfloat16, seed=2 * i)
        given += [np.ascontiguousarray(x.T), y]
    graph = build(gradient_of_what_is_read, *given)
    assert ops(graph, chip).count("trn.dot_sum") == 1
    assert "add" not in ops(graph, chip)
    pairs = [(x.T, y) for x, y in zip(given[::2], given[1::2])]
    agree(execute(graph, given, chip=chip)[0], pairs, sum(lengths), bfloat16)


def test_gradients_of_heads_are_added_up_whether_views_or_copies():
    """Of queries with two heads, which are copied to lie side by side, and of keys with one, which are not."""
    q, k = random(2, 128, 128, seed=1), random(1, 128, 128, seed=2)
    given = [v.astype(ml_dtypes.bfloat16) for v in (q, random(256, 65, seed=3), k, random(128, 65, seed=4))]

    def function(b, q, wq, k, wk):
        flat = [b.reshape(b.transpose(b.add(v, v), (1, 0, 2)), (128, v.shape[0] * 128)) for v in (q, k)]
        return gradient_of_what_is_read(b, flat[0], wq, flat[1], wk)

    graph = build(function, *given)
    assert ops(graph).count("trn.dot_sum") == 1
    pairs = [((2 * v.astype(np.float64)).transpose(1, 0, 2).reshape(128, -1).T, w) for v, w in (given[:2], given[2:])]
    agree(execute(graph, given)[0], pairs, 384, bfloat16)


def test_products_of_operands_that_lie_otherwise_stay_apart():
    """Of a matrix as it is and of one seen turned: neither the contraction nor the rows are innermost in both."""
    given = [random(*shape, seed=i) for i, shape in enumerate([(65, 128), (128, 33), (256, 65), (256, 33)])]

    def function(b, x, y, z, w):
        one = b.dot_general(x, y, ((1,), (0,)))
        return b.add(one, b.dot_general(b.transpose(z, (1, 0)), w, ((1,), (0,))))

    graph = build(function, *given)
    x, y, z, w = given
    agree(execute(graph, given)[0], [(x.T, y), (z, w)], 384)


@pytest.mark.parametrize("k", [1, 127, 129, 513])
def test_other_contractions_stay_as_written(k):
    """A contraction that ends within a block cannot be continued by the next."""
    given = [*matrices(k, 33, 65, np.float32), *matrices(k, 33, 65, np.float32, seed=2)]
    graph = build(sum_of_products, *given)
    assert "trn.dot_sum" not in ops(graph)
    agree(execute(graph, given)[0], [given[:2], given[2:]], 2 * k)


def product_and_sums(b, x, y, dtype=float32, of=0):
    product = b.dot_general(x, y, ((0,), (0,)), dt=dtype)
    summed = (x, y)[of]
    return product, b.reduce(b.convert(summed, float32) if summed.dtype is not float32 else summed, (0,))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("k", "m", "n"), [(2, 1, 1), (127, 513, 1), (129, 129, 127), (513, 127, 129), (300, 1, 513)])
@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("of", [0, 1])
def test_products_with_sums_beside(k, m, n, dtype, chip, of):
    """Of the left operand, as beside the gradient of a weight [out, in], or of the right one, as of [in, out]."""
    x, y = matrices(k, m, n, dtype)
    graph = build(lambda b, x, y: product_and_sums(b, x, y, of=of), x, y)
    assert "trn.dot_and_sums" in ops(graph, chip)
    assert "convert" not in ops(graph, chip)  # nothing is widened for a sum that is made beside
    product, sums = execute(graph, [x, y], chip=chip)
    agree(product, [(x, y)], k)
    agree(sums[:, None], [((x, y)[of], np.ones((k, 1)))], k)


def test_room_for_sums_is_set_aside_before_blocks_are_chosen():
    """A layer 8192 wide on eight ranks: the sums of its product took SBUF that the blocks had been given (TRN501)."""
    b = GraphBuilder("wide")
    x, y = (b.input(name, (2048, width), bfloat16) for name, width in (("rows", 1024), ("columns", 8192)))
    old = b.input("sum", (1024, 8192), float32)
    product, sums = product_and_sums(b, x, y)
    b.output(b.add(old, product), alias_of=old)
    b.output(sums)
    program = compile(b.build(), chips.get("trn1"), {"precision": "bf16"})
    assert any("dot_and_sums" in routine.name for routine in program.routines)


def test_both_operands_have_their_sums_beside_a_product_each():
    """Two products of the same rows: no sum is left for a loop of its own."""
    x, y = matrices(129, 65, 130, np.float32)
    z = random(129, 33, seed=5)

    def function(b, x, y, z):
        return (
            b.dot_general(x, y, ((0,), (0,))),
            b.reduce(y, (0,)),
            b.dot_general(x, z, ((0,), (0,))),
            b.reduce(x, (0,)),
        )

    graph = build(function, x, y, z)
    assert ops(graph).count("trn.dot_and_sums") == 2
    assert "reduce" not in ops(graph)
    for got, want in zip(execute(graph, [x, y, z]), ((x, y), (y, np.ones((129, 1))), (x, z), (x, np.ones((129, 1))))):
        agree(got if got.ndim == 2 else got[:, None], [want], 129)


def test_the_sums_of_a_product_in_bfloat16_are_in_float32():
    x, y = matrices(257, 129, 65, ml_dtypes.bfloat16)
    graph = build(lambda b, x, y: product_and_sums(b, x, y, bfloat16), x, y)
    assert "trn.dot_and_sums" in ops(graph)
    product, sums = execute(graph, [x, y])
    assert (product.dtype, sums.dtype) == (ml_dtypes.bfloat16, np.float32)
    agree(product, [(x, y)], 257, bfloat16)
    agree(sums[:, None], [(x, np.ones((257, 1)))], 257)


@pytest.mark.parametrize("dtype", FORMATS)
def test_hostile_numbers_stay_in_their_columns(dtype):
    """One hostile number in each column of the left operand: what is not finite is where NumPy has it."""
    k, m, n = 256, 2 * len(HOSTILE), 65
    given = [*matrices(k, m, n, dtype), *matrices(k, m, n, dtype, seed=2)]
    x = given[0]
    x[:, : len(HOSTILE)] = 0
    for column, number in enumerate((*HOSTILE, *HOSTILE)):
        x[(column * 37) % k, column] = number
    joined = build(sum_of_products, *given)
    assert "trn.dot_sum" in ops(joined)
    agree(execute(joined, given)[0], [given[:2], given[2:]], 2 * k)
    beside = build(product_and_sums, *given[:2])
    product, sums = execute(beside, given[:2])
    agree(product, [given[:2]], k)
    agree(sums[:, None], [(x, np.ones((k, 1)))], k)
