# SPDX-License-Identifier: Apache-2.0
"""Graphs in two, what hangs on frozen inputs alone and the rest: together they compute what the graph means."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import BF16, build, execute, random
from random_graphs import Generator
from random_whole_graphs import WholeGenerator

from trnlab import chips
from trnlab.compiler.prepared import prepare
from trnlab.fleet.costs.timed import TimedPrograms
from trnlab.fleet.models.configurations import model
from trnlab.graph.interpret import interpret
from trnlab.graph.verify import verify
from trnlab.runtime.session import Session
from trnlab.validation.inference import forward, weights_of

FP32 = {"precision": "fp32"}


def in_two(graph, frozen, inputs, run, options=FP32):
    """The outputs of both halves one after the other, or None where the graph has none to divide into."""
    halves = prepare(graph, frozen, options)
    if halves is None:
        return None
    for half in (halves.once, halves.each):
        verify(half)
    kept = run(halves.once, [inputs[i].copy() for i in halves.frozen])
    return run(halves.each, [inputs[i].copy() for i in halves.given] + [np.array(k, order="C") for k in kept])


def frozen_of(graph, seed):
    """About half of the inputs."""
    rng = np.random.default_rng(seed)
    return [i for i in range(len(graph.inputs)) if rng.random() < 0.6]


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_both_halves_mean_the_graph(first):
    divided = 0
    for seed in range(first, first + 50):
        made = Generator(seed, ops=8 + seed % 20)
        graph, inputs = made.graph(), made.inputs()
        expected = interpret(graph, [x.copy() for x in inputs])
        got = in_two(graph, frozen_of(graph, seed), inputs, interpret)
        divided += got is not None
        for want, value in zip(expected, got or expected, strict=True):
            np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}")
    assert divided > 10


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_what_is_exact_has_the_same_bits_on_the_chip(first):
    divided = 0
    for seed in range(first, first + 20):
        made = WholeGenerator(seed, ops=6 + seed % 14)
        graph, inputs = made.graph(), made.inputs()
        expected = execute(graph, [x.copy() for x in inputs])
        got = in_two(graph, frozen_of(graph, seed), inputs, execute)
        divided += got is not None
        for want, value in zip(expected, got or expected, strict=True):
            assert np.array_equal(value.astype(np.float64), want.astype(np.float64), equal_nan=True), f"seed {seed}"
    assert divided > 3


def layer(b, x, weight, bias, scale):
    """A linear layer as PyTorch has it: weights [out, in]; the scale is of rows of the weight."""
    scaled = b.multiply(weight, b.broadcast_in_dim(scale, weight.shape, (0,)))
    return b.add(
        b.dot_general(x, scaled, ((1,), (1,))), b.broadcast_in_dim(bias, (x.shape[0], weight.shape[0]), (1,))
    )


def test_weights_are_scaled_cast_and_turned_once():
    inputs = [random(100, 300), random(200, 300, seed=1), random(200, seed=2), random(200, seed=3)]
    graph = build(layer, *inputs)
    halves = prepare(graph, [1, 2, 3], {"precision": "bf16"})
    assert [op.name for op in halves.each.ops if op.name in ("transpose", "multiply")] == []
    (kept,) = halves.once.outputs
    assert (kept.shape, kept.dtype.name) == ((300, 200), "bfloat16")
    assert halves.given == (0, 2)  # the bias is read as it is: 128 copies of it would take more room
    expected = inputs[0] @ (inputs[1] * inputs[3][:, None]).T + inputs[2]
    (got,) = in_two(graph, [1, 2, 3], inputs, lambda g, x: execute(g, x, precision="bf16"), {"precision": "bf16"})
    assert np.abs(got - expected).max() <= 4 * BF16 * np.abs(expected).max()


def test_what_is_written_or_not_frozen_stays_whole():
    inputs = [random(100, 300), random(200, 300, seed=1), random(200, seed=2), random(200, seed=3)]
    assert prepare(build(layer, *inputs), [], FP32) is None
    assert prepare(build(layer, *inputs), [2], FP32) is None

    def updates(b, x, weight):
        b.output(b.subtract(weight, 1.0), alias_of=weight)
        return b.dot_general(x, weight, ((1,), (1,)))

    halves = prepare(build(updates, *inputs[:2]), [1], FP32)
    assert halves is None


@pytest.mark.parametrize(
    ("name", "batch", "places", "form"), [("bert-base", 1, 128, "bfloat16"), ("vit-base", 1, 197, "float32")]
)
def test_an_encoder_of_few_rows_gains_most(name, batch, places, form):
    programs = TimedPrograms(Session(chips.target("inf2.xlarge")))
    known = model(name)
    graph = forward(known, batch, places, form)
    whole = programs.executable(graph, "whole").total_ps
    each = programs.executable(graph, "each", frozen=weights_of(graph)).total_ps
    assert each < 0.75 * whole


def test_a_bias_of_attention_is_looked_up_once():
    """Though it takes more memory than its table; where instructions stay as recorded, each run looks it up."""
    inputs = [*(random(2, 4, 20, 16, seed=i) for i in range(3)), random(39, 4, seed=4)]
    places = np.arange(20)

    def function(b, q, k, v, table):
        rows = b.take_rows(table, b.constant((places[:, None] - places + 19).astype(np.int32)))
        return b.attention(q, k, v, b.reshape(b.transpose(rows, (2, 0, 1)), (1, 4, 20, 20)))[0]

    graph = build(function, *inputs)
    halves = prepare(graph, [3], FP32)
    assert not any(op.name == "gather" for op in halves.each.ops)
    (expected,) = interpret(graph, inputs)
    for run in (interpret, lambda g, x: execute(g, x, precision="fp32")):
        (got,) = in_two(graph, [3], inputs, run)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert prepare(graph, [3], {**FP32, "order": "recorded"}) is None
