# SPDX-License-Identifier: Apache-2.0
"""One GPT in PyTorch, JAX and Keras, attention as an operator, as a layer or by hand: the same losses, the same
routines, and nearly the same time."""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache

import numpy as np
import one_gpt
import pytest

from trnlab import chips
from trnlab.compiler import compile
from trnlab.frontends.common import engine
from trnlab.sim.timing import time_program

SIZES = one_gpt.Sizes(layers=1)
HERE = [name for name in one_gpt.MODELS if name != "keras" or sys.platform == "linux"]
# How much longer a step may take than PyTorch's own, and the differences that are left (ADR 45).
# As measured: sums over a batch by rows took 9.8 us off PyTorch's step, and 3.7 off Keras'. "jax" is PyTorch's
# mathematics, and only clamps its indices, as StableHLO's gather does.
SLOWER = {
    "torch_by_hand": 1.0,
    "jax": 1.015,
    "jax_by_hand": 1.04,
    "flax": 1.1,
    "keras": 1.1,
}  # as measured with one queue (ADR 120): 1.036, 1.094


class Recorder(engine.InterpreterEngine):
    """Runs graphs by the interpreter and keeps them."""

    def __init__(self):
        self.graphs = []

    def compile(self, graph, frozen=()):
        self.graphs.append(graph)
        return super().compile(graph, frozen)


@cache
def trained(name):
    """Losses of three steps, and the graph of one."""
    if name == "keras":
        pytest.importorskip("tensorflow")
    with engine.use(Recorder()) as recorder:
        step = one_gpt.MODELS[name](SIZES, one_gpt.weights_of(SIZES))
        losses = [step(*one_gpt.batch(SIZES)) for _ in range(3)]
    (graph,) = recorder.graphs
    return losses, graph


@cache
def timed(name):
    """Time of a step in picoseconds, and how often each kind of routine is called."""
    chip = chips.get("trn1")
    program = compile(trained(name)[1], chip, {"precision": "bf16"})
    timeline = time_program(program, chip)
    return timeline.total, Counter(call.label.split(":")[0] for call in timeline.calls)


@pytest.mark.parametrize("name", HERE[1:])
def test_all_train_alike(name):
    """In fp32, by the interpreter: the same model, whoever wrote it."""
    np.testing.assert_allclose(trained(name)[0], trained("torch")[0], rtol=2e-6)


@pytest.mark.parametrize("name", HERE[1:])
def test_all_become_the_same_program(name):
    """As many calls of each kind as PyTorch's, attention among them; nothing computes a matrix of all scores. The
    same calls altogether where the mathematics is the same."""
    time, kinds = timed(name)
    expected, same = timed("torch")
    assert kinds["attention"] == same["attention"] == 2 * SIZES.layers
    assert kinds["dot"] == same["dot"]
    assert kinds["scatter"] == same["scatter"]
    assert time <= SLOWER[name] * expected
    if name in ("torch_by_hand", "jax"):
        assert kinds == same
