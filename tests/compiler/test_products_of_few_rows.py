# SPDX-License-Identifier: Apache-2.0
"""Products of few rows, as decoding has them: contracted in an order of their own, turned nowhere."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compiled import BF16, FP32, build, execute, random

from trnlab import chips, isa
from trnlab.compiler import compile
from trnlab.graph.interpret import interpret
from trnlab.sim.timing import time_program
from trnlab.units import PS_PER_S

BFLOAT16 = ml_dtypes.bfloat16


def opcodes(graph, chip="trn1"):
    """How often each instruction comes."""
    names: dict[str, int] = {}
    for routine in compile(graph, chips.get(chip), {"precision": "fp32"}).routines:
        for code in routine.opcode:
            name = isa.BY_OPCODE[int(code)].name
            names[name] = names.get(name, 0) + 1
    return names


def product(b, x, w):
    return b.dot_general(x, w, ((1,), (0,)), dt=str(x.dtype))


def with_epilogue(b, x, w, bias, y):
    z = b.add(product(b, x, w), b.broadcast_in_dim(bias, y.shape, (1,)))
    return b.multiply(b.logistic(z), y)


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 17])
@pytest.mark.parametrize(("k", "n"), [(128, 100), (384, 1300), (1024, 513), (4096, 64), (200, 300)])
def test_rows_times_a_matrix(rows, k, n, chip):
    inputs = [random(rows, k), random(k, n, seed=1), random(n, seed=2), random(rows, n, seed=3)]
    (expected,) = interpret(graph := build(with_epilogue, *inputs), inputs)
    (got,) = execute(graph, inputs, chip=chip)
    assert np.abs(got - expected).max() <= FP32 * np.abs(expected).max()


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("n", [256, 5000])
def test_a_batch_of_them_in_bf16(rows, n):
    """Scores against a cache, and weights against another, of several sequences and heads."""
    q, keys = random(2, 3, rows, 128).astype(BFLOAT16), random(2, 3, 128, n, seed=1).astype(BFLOAT16)

    def scores(b, q, keys):
        return b.dot_general(q, keys, ((3,), (2,)), ((0, 1), (0, 1)))

    graph = build(scores, q, keys)
    (expected,), (got,) = interpret(graph, [q, keys]), execute(graph, [q, keys])
    assert np.abs(got - expected).max() <= FP32 * np.abs(expected).max()
    if n % 128:
        return
    weights, values = random(2, 3, rows, n).astype(BFLOAT16), random(2, 3, n, 128, seed=1).astype(BFLOAT16)

    def sums(b, weights, values):
        return b.dot_general(weights, values, ((3,), (2,)), ((0, 1), (0, 1)), dt="bfloat16")

    graph = build(sums, weights, values)
    (expected,), (got,) = interpret(graph, [weights, values]), execute(graph, [weights, values])
    difference = np.abs(got.astype(np.float32) - expected.astype(np.float32)).max()
    assert difference <= BF16 * np.abs(expected.astype(np.float32)).max()


def test_what_one_sequence_has_reaches_no_other():
    q, keys = random(4, 1, 128), random(4, 128, 640, seed=1)
    q[1], keys[2, :, ::7], keys[3, 5] = np.nan, np.inf, -0.0

    def scores(b, q, keys):
        return b.dot_general(q, keys, ((2,), (1,)), ((0,), (0,)))

    graph = build(scores, q, keys)
    (expected,), (got,) = interpret(graph, [q, keys]), execute(graph, [q, keys])
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-4, atol=1e-4)
    assert np.isnan(got[1]).all()


def test_nothing_is_turned_for_few_rows_and_many_are_turned():
    few, many = (build(product, random(rows, 1024), random(1024, 512, seed=1)) for rows in (8, 32))
    assert "nc_transpose" not in opcodes(few)
    assert opcodes(many)["nc_transpose"] > 0


def test_a_matrix_is_read_at_nearly_the_rate_of_the_transfers():
    """Twice 32 MiB of bf16 for 8 rows, one product after the other: within a quarter more than its bytes take."""
    matrix = np.zeros((4096, 4096), BFLOAT16)
    x = np.zeros((8, 4096), BFLOAT16)
    chip = chips.get("trn1")
    graph = build(lambda b, x, w, v: product(b, product(b, x, w), v), x, matrix, matrix)
    total = time_program(compile(graph, chip, {"precision": "bf16"}), chip).total
    assert total / PS_PER_S < 1.25 * 2 * matrix.nbytes / (chip.dma.engines.value * chip.dma.engine_bandwidth.value)
