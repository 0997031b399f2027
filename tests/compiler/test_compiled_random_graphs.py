# SPDX-License-Identifier: Apache-2.0
"""Random graphs, compiled and executed, against the graph's interpreter: fusion in combinations nobody thought of."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import assert_same, execute
from float_bounds import faults
from random_float_graphs import FloatGenerator
from random_graphs import Generator
from random_whole_graphs import WholeGenerator

from trnlab import chips
from trnlab.compiler.probes import compile_probed, read
from trnlab.graph.interpret import interpret
from trnlab.program import Program
from trnlab.sim.functional import run_program

SEEDS, FEW = 240, 80  # of each kind; the others are for the long run


def blocks(seeds, few=FEW):
    """Twenty seeds a test, those after the first few in the long run alone."""
    return [pytest.param(first, marks=[pytest.mark.slow] * (first >= few)) for first in range(0, seeds, 20)]


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


@pytest.mark.parametrize("first", blocks(SEEDS))
def test_random_graphs(first):
    for seed in range(first, first + 20):
        made = Generator(seed, ops=8 + seed % 20)
        graph, inputs = made.graph(), made.inputs()
        rounded = any(op.name == "convert" for op in graph.ops)
        expected = interpret(graph, [x.copy() for x in inputs])
        results = execute(graph, [x.copy() for x in inputs], chip="trn2" if seed % 4 == 3 else "trn1")
        for i, (got, want) in enumerate(zip(results, expected)):
            assert worst(got, want) <= (ROUND_TRIP if rounded else EXACT), f"seed {seed}, output {i}"


@pytest.mark.parametrize("first", blocks(SEEDS // 2, FEW // 2))
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


@pytest.mark.parametrize("first", blocks(SEEDS))
def test_random_graphs_of_hostile_floats(first):
    """fp32, bf16 and fp16 with NaN, infinities, signed zeros, subnormals, 1e-45 to 3e38: every element of every value
    that a program computes, against what the op means for the chip's own operands."""
    judged = 0
    for seed in range(first, first + 20):
        made = FloatGenerator(seed, ops=6 + seed % 14)
        graph, inputs = made.graph(), made.inputs()
        chip = chips.get(("trn1", "trn2", "trn3")[seed % 3])
        values = list(graph.values())
        tapped = compile_probed(graph, values, chip, {"precision": "fp32"})
        memory, given = memory_after(tapped.program, inputs, chip), dict(zip(tapped.program.inputs, inputs))
        have = {values[i]: read(t, (given if t.given else memory)[t.tensor]) for i, t in tapped.probes.items()}
        for op in graph.ops:
            if op.name == "constant":
                number = np.asarray(op.attrs["value"]).astype(op.result.dtype.numpy)
                have[op.result] = np.broadcast_to(number, op.result.shape)
            elif op.result in have and all(v in have for v in op.operands):
                judged += 1
                fault = faults(op, [have[v] for v in op.operands], have[op.result])
                assert fault is None, f"seed {seed}: {fault}"
    assert judged > 150


def memory_after(program: Program, inputs: list[np.ndarray], chip: chips.Chip) -> dict[int, np.ndarray]:
    """Memory by tensor after a run; inputs are not overwritten."""
    memory = {id: np.array(x).reshape(program.tensors[id].shape) for id, x in zip(program.inputs, inputs)}
    for tensor in program.tensors:
        if tensor.kind == "output" and tensor.id not in memory:
            memory[tensor.id] = np.empty(tensor.shape, tensor.dtype.numpy)
    run_program(program, memory, chip)
    return {**program.constants, **memory}
