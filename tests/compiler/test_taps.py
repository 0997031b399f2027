# SPDX-License-Identifier: Apache-2.0
"""A tapped program computes the bits of the plain one, and what it shows are the graph's intermediate results."""

from __future__ import annotations

import numpy as np
import pytest
from random_graphs import Generator

from trnlab import chips, compiler
from trnlab.compiler.taps import compile_tapped, read
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import Graph
from trnlab.sim.functional import run_program

SEEDS = 40
OPTIONS = {"precision": "fp32"}


def run(program, inputs):
    """Memory by tensor after a run; inputs are not overwritten."""
    memory = {id: np.array(x).reshape(program.tensors[id].shape) for id, x in zip(program.inputs, inputs)}
    for tensor in program.tensors:
        if tensor.kind == "output" and tensor.id not in memory:
            memory[tensor.id] = np.empty(tensor.shape, tensor.dtype.numpy)
    run_program(program, memory, chips.get("trn1"))
    return {**program.constants, **memory}


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_outputs_have_the_same_bits_with_taps_and_without(first):
    shown = 0
    for seed in range(first, first + 10):
        made = Generator(seed, ops=8 + seed % 20)
        graph, inputs = made.graph(), made.inputs()
        values = [v for op in graph.ops for v in op.results]
        plain = compiler.compile(graph, chips.get("trn1"), OPTIONS)
        tapped = compile_tapped(graph, values, chips.get("trn1"), OPTIONS)
        before, after = run(plain, inputs), run(tapped.program, inputs)
        for a, b in zip(plain.outputs, tapped.program.outputs, strict=True):
            assert before[a].tobytes() == after[b].tobytes(), f"seed {seed}"
        assert len(tapped.program.calls) == len(plain.calls)
        shown += check(graph, values, tapped, after, inputs, seed)
    assert shown > 60


def check(graph, values, tapped, memory, inputs, seed):
    """Each tap is near the interpreter's value; returns how many there are."""
    every = Graph("every", graph.inputs, graph.ops, values)
    expected = interpret(every, [np.array(x) for x in inputs])
    given = dict(zip(tapped.program.inputs, inputs))
    for i, tap in tapped.taps.items():
        got = np.asarray(read(tap, (given if tap.given else memory)[tap.tensor]), np.float64)
        want = np.asarray(expected[i], np.float64)
        assert got.shape == want.shape
        error = np.abs(got - want).max(initial=0) / max(1.0, np.abs(want).max(initial=0))
        assert error <= 2.0**-7, f"seed {seed}, {values[i]}"
    return len(tapped.taps)
