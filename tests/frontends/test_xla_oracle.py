# SPDX-License-Identifier: Apache-2.0
"""XLA on the CPU as the oracle of captured steps of PyTorch: the same losses, the same parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("jax")
import models

from tools.xla import XlaEngine
from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch import InterpreterEngine, compile_step, use
from trnlab.graph.builder import GraphBuilder

pytestmark = pytest.mark.torch


def ids(*shape, high=60, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


class Images(nn.Module):
    """Convolutions, batch norm, pooling, dropout off."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, stride=2), nn.Conv2d(6, 4, 3, groups=2, padding=1)
        self.norm, self.head = nn.BatchNorm2d(6), nn.Linear(4, 5)

    def forward(self, x, y):
        x = nn.functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return nn.functional.cross_entropy(self.head(self.second(x).mean((2, 3))), y)


class Recurrent(nn.Module):
    """A GRU, embedding bags and a sort."""

    def __init__(self):
        super().__init__()
        self.table, self.gru, self.head = nn.EmbeddingBag(60, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 60)

    def forward(self, x):
        out, _ = self.gru(self.table(x.flatten(0, 1).reshape(-1, 2)).reshape(2, -1, 8))
        return nn.functional.cross_entropy(
            self.head(out).flatten(0, 1), x.flatten()[: out.shape[1] * 2].sort().values
        )


CASES = {
    "gpt": (
        lambda: models.GPT(vocab=61, width=36, heads=3, context=19, layers=1),
        lambda i: (ids(2, 13, seed=i), ids(2, 13, seed=i + 9)),
    ),
    "images": (
        Images,
        lambda i: (torch.randn(3, 3, 13, 11, generator=torch.Generator().manual_seed(i)), ids(3, high=5)),
    ),
    "recurrent": (Recurrent, lambda i: (ids(2, 8, seed=i),)),
}


def trained(model, batch, engine):
    """Losses of two steps, and the parameters afterwards."""
    model = copy.deepcopy(model).to("neuron")
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), lambda m, *b: m(*b))
    with use(engine):
        losses = [step(*(x.to("neuron") for x in batch(i))).item() for i in range(2)]
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("name", CASES)
def test_xla_trains_what_was_captured(name):
    torch.manual_seed(0)
    make, batch = CASES[name]
    model, engine = make(), XlaEngine()
    ours, theirs = trained(model, batch, InterpreterEngine()), trained(model, batch, engine)
    assert engine.graphs
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    for mine, other in zip(ours[1], theirs[1]):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_xla_runs_no_kernels():
    class Callee:
        name, digest, operands, results = "k", "0" * 64, (), ()

    b = GraphBuilder("g")
    b.graph.ops.clear()
    b.append("custom_call", (), {"callee": Callee()})
    with pytest.raises(UnsupportedOpError) as caught:
        XlaEngine().compile(b.graph)
    assert caught.value.what == "XLA cannot run kernel 'k'"
