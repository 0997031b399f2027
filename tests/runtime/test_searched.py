# SPDX-License-Identifier: Apache-2.0
"""Lowerings that compete are timed: the best is taken, it computes the same, and the next best is kept beside it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trnlab import chips, compiler
from trnlab.compiler.choices import CHOICES, QUICK, RULES
from trnlab.errors import UsageError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.runtime import device
from trnlab.runtime.searched import GAIN, searched
from trnlab.runtime.session import Session
from trnlab.runtime.settings import Settings
from trnlab.sim.functional import run_program
from trnlab.sim.timing import outline_program
from trnlab.units import PS_PER_S

CHIP = chips.get("trn1")
BF16 = {"precision": "bf16"}


def network():
    """A convolution with its epilogue, a product of few rows, and a chain of products whose results can stay."""
    b = GraphBuilder("network")
    x, w = b.input("x", (1, 32, 20, 20), "float32"), b.input("w", (64, 32, 3, 3), "float32")
    shift, head = b.input("shift", (64,), "float32"), b.input("head", (256, 256), "float32")
    y = b.convolution(x, w, strides=(1, 1), padding=((1, 1), (1, 1)))
    y = b.maximum(b.add(y, b.broadcast_in_dim(shift, y.shape, (1,))), 0.0)
    rows = b.reshape(y, (100, 256))
    for _ in range(2):
        rows = b.tanh(b.dot_general(rows, head, ((1,), (0,))))
    b.output(b.dot_general(b.slice_dim(rows, 0, 0, 4), head, ((1,), (0,))))
    return b.build()


def inputs_of(graph):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(v.shape).astype(np.float32) * 0.1 for v in graph.inputs]


def executed(program, graph, inputs):
    out = np.zeros(graph.outputs[0].shape, np.float32)
    run_program(program, dict(zip(program.inputs, inputs)) | {program.outputs[0]: out}, CHIP)
    return out


@pytest.mark.parametrize("level", [2, 3])
def test_the_fastest_that_was_tried_is_taken(level):
    graph = network()
    best = searched(graph, CHIP, BF16, None, level)
    seconds = {name: s for name, s in best.tried.items() if name}
    assert best.seconds <= best.tried[""]
    assert best.seconds <= min(best.tried.values()) / (1 - GAIN)
    assert best.seconds == outline_program(best.program, CHIP).total / PS_PER_S
    assert len(seconds) >= len(CHOICES) - 1
    assert max(seconds.values()) > best.tried[""] * 1.01  # some choice matters here
    inputs = inputs_of(graph)
    expected = interpret(graph, inputs)[0]
    assert np.abs(executed(best.program, graph, inputs) - expected).max() <= 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
def test_every_value_computes_the_same(choice):
    graph, inputs = network(), inputs_of(network())
    expected = interpret(graph, inputs)[0]
    for value in choice.values:
        program = compiler.compile(graph, CHIP, {**BF16, choice.name: value})
        got = executed(program, graph, inputs)
        assert np.abs(got - expected).max() <= 0.02 * np.abs(expected).max(), value


def test_what_the_stack_says_of_a_choice_stays():
    best = searched(network(), CHIP, {**BF16, "few_rows": "turned"}, None, 2)
    assert not any("few_rows" in name for name in best.tried)


def test_the_record_names_the_next_best():
    record = searched(network(), CHIP, BF16, None, 2).record
    assert json.loads(json.dumps(record)) == record
    assert record["next_best_s"] > record["seconds"]
    assert record["rules_s"] >= record["seconds"]
    assert set(record["chosen"]) <= set(RULES)


def test_it_is_kept_with_the_program_and_its_key():
    graph, keys = network(), set()
    for level in (0, 1, 2):
        session = Session(chips.target("trn1.2xlarge"), optimize=level)
        found = device.compile_graph(graph, session)
        keys.add(found.key)
        assert ("choices" in found.metadata) == (level == 2)
        kept = any(buffer.kind == "resident" for r in found.program.routines for buffer in r.buffers)
        assert kept == (level > 0)
    assert len(keys) == 3
    assert set(QUICK) <= set(RULES)


def test_levels_are_0_to_3():
    assert Settings.resolved({"TRNLAB_OPTIMIZE": "3"}).optimize == 3
    for wrong in ("4", "-1", "fast", "1.5"):
        with pytest.raises(UsageError) as caught:
            Settings.resolved({"TRNLAB_OPTIMIZE": wrong})
        assert caught.value.code == "TRN269"
