# SPDX-License-Identifier: Apache-2.0
"""Captured graphs go to the chip of the current session, which counts what the host computed besides."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.frontends.torch import recording
from trnlab.graph.interpret import interpret
from trnlab.runtime import device, session

pytestmark = pytest.mark.torch


class Run:
    """Notes what a run is told."""

    def __init__(self):
        self.steps = []

    def step(self, loss, tokens):
        self.steps.append((loss, tokens))

    def updated(self):
        """An optimizer made a step."""


@pytest.fixture
def now(monkeypatch):
    """A session whose compiler is the graph's interpreter."""

    def compile_graph(graph, given):
        def run(inputs):
            outputs = interpret(graph, inputs)
            for i, j in graph.aliases.items():
                inputs[j][...] = outputs[i]
            return outputs

        return SimpleNamespace(run=run)

    monkeypatch.setattr(device, "compile_graph", compile_graph)
    monkeypatch.setattr(device, "Loaded", lambda executable, session: executable)
    neuron.reset_fallback_counts()
    made = session.Session(chips.target("trn1.2xlarge"))
    made.run = Run()
    with session.activate(made):
        yield made
    neuron.reset_fallback_counts()


def test_steps_report_to_the_session(now):
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 1)).to("neuron")
    step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, i: m(i).square().mean())
    ids = torch.tensor([[0, 1, 2], [3, 4, 0]], device="neuron")
    losses = [step(ids).item() for _ in range(2)]
    assert now.run.steps == [(losses[0], 6), (losses[1], 6)]
    assert now.counters.host.totals()["training"] == 0
    with recording.using("host"):
        _ = model[1].weight * 2
    assert now.counters.host.by_name()["training"] == {"aten::mul": 1}
