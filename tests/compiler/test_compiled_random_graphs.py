# SPDX-License-Identifier: Apache-2.0
"""Random graphs, compiled and executed, against the graph's interpreter: fusion in combinations nobody thought of."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import assert_same, execute
from random_graphs import Generator
from random_whole_graphs import WholeGenerator

from trnlab.graph.interpret import interpret

SEEDS = 240
ROUND_TRIP = 2.0**-7
"""A conversion to bfloat16 within the graph turns a difference in the last bit of fp32 into a step of bfloat16, 2^-8
of the value, where the value lies near a midpoint; a second one behind it as much again."""
EXACT = 3e-5  # a dozen ops, each off by an fp32 rounding or two of values near one
LOW = 0.2  # bf16 matmuls feed whatever comes behind them: this only shows that nothing is misplaced


def worst(got, expected):
    """Largest difference, of values whose magnitude is near one."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    return np.abs(got - expected).max() / max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_random_graphs(first):
    for seed in range(first, first + 20):
        made = Generator(seed, ops=8 + seed % 20)
        graph, inputs = made.graph(), made.inputs()
        rounded = any(op.name == "convert" for op in graph.ops)
        expected = interpret(graph, [x.copy() for x in inputs])
        results = execute(graph, [x.copy() for x in inputs], chip="trn2" if seed % 4 == 3 else "trn1")
        for i, (got, want) in enumerate(zip(results, expected)):
            assert worst(got, want) <= (ROUND_TRIP if rounded else EXACT), f"seed {seed}, output {i}"


@pytest.mark.parametrize("first", range(0, SEEDS // 2, 20))
def test_random_graphs_in_bfloat16(first):
    for seed in range(first, first + 20):
        made = Generator(seed, ops=8 + seed % 20)
        graph, inputs = made.graph(), made.inputs()
        expected = interpret(graph, [x.copy() for x in inputs])
        results = execute(graph, [x.copy() for x in inputs], precision="bf16")
        for i, (got, want) in enumerate(zip(results, expected)):
            assert worst(got, want) <= LOW, f"seed {seed}, output {i}"


@pytest.mark.parametrize("first", range(0, SEEDS // 2, 20))
def test_random_graphs_of_what_is_exact(first):
    """Integers of all widths, truth values, casts and choices among hostile floats, empty shapes: every bit."""
    for seed in range(first, first + 20):
        made = WholeGenerator(seed, ops=6 + seed % 14)
        assert_same(made.graph(), made.inputs(), chip=("trn1", "trn2", "trn3")[seed % 3])
