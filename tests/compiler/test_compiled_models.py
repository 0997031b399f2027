# SPDX-License-Identifier: Apache-2.0
"""Whole models on the simulated chip: training in fp32, in bf16, with clipped gradients and with dropout, against
eager training. Their gradients one by one: tests/frontends/test_models.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from compiled import run
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "frontends"))
import models

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.ir import Graph

pytestmark = pytest.mark.torch


class ChipEngine:
    """Runs captured graphs through the compiler and the functional simulator."""

    def __init__(self, precision: str = "fp32") -> None:
        self.precision = precision

    def compile(self, graph: Graph):
        program = compile(graph, chips.get("trn1"), {"precision": self.precision})

        def execute(inputs):
            outputs = run(program, graph, inputs)
            for place, (output, value) in enumerate(zip(program.outputs, outputs)):
                if place in graph.aliases and output not in program.inputs:
                    inputs[graph.aliases[place]][...] = value
            return outputs

        return execute

    def step_done(self, loss: float, tokens: int) -> None:
        """Nobody is told."""


def ids(*shape, high=60, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def losses(precision, steps=6, *, max_norm=None, **options):
    torch.manual_seed(0)
    model = models.GPT(**options).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = neuron.compile_step(model, optimizer, max_norm=max_norm)
    x, y = ids(2, 16).to("neuron"), ids(2, 16, seed=1).to("neuron")
    with neuron.use(ChipEngine(precision)):
        return [step(x, y).item() for _ in range(steps)]


def eager_losses(steps=6, *, max_norm=None, **options):
    torch.manual_seed(0)
    model = models.GPT(**options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x, y, found = ids(2, 16), ids(2, 16, seed=1), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        found.append(loss.item())
    return found


def test_training_in_fp32_is_pytorchs():
    expected = eager_losses()
    assert expected[-1] < 0.95 * expected[0]
    assert np.allclose(losses("fp32"), expected, rtol=1e-4)


def test_training_with_clipped_gradients():
    assert np.allclose(losses("fp32", max_norm=0.1), eager_losses(max_norm=0.1), rtol=1e-4)


def test_training_in_bf16_follows_fp32():
    """Losses differ by what 2^-8 in the operands of products does to them: well below a percent."""
    assert np.allclose(losses("bf16"), eager_losses(), rtol=1e-2)


@pytest.mark.parametrize("sdpa", [False, True])
def test_dropout_trains(sdpa):
    """The loss falls about as it does in PyTorch, though other elements are dropped."""
    got, expected = losses("fp32", 12, dropout=0.1, sdpa=sdpa), eager_losses(12, dropout=0.1)
    assert len(set(got)) == len(got)
    assert abs(got[-1] - expected[-1]) < 0.15 * (expected[0] - expected[-1]) + 0.1
