# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in captured steps: what they run again is computed again, and stays out of memory meanwhile."""

import pytest
import torch
import torch.nn.functional as F
from helpers import TRN1, engine
from torch import nn
from torch.utils.checkpoint import checkpoint

from trnlab import chips
from trnlab.compiler import compile
from trnlab.frontends.torch import capture_step, compile_step


class Stack(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.first = how, nn.Linear(64, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)
        )

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + (block(x) if self.how is None else checkpoint(block, x, use_reentrant=self.how == "reentrant"))
        return x.square().mean()


def program(how):
    torch.manual_seed(0)
    model = Stack(how).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.zeros(1024, 64).to("neuron")
    captured = capture_step(model, optimizer, None, (x,))
    compiled = compile(captured.graph, chips.get("trn1"), {"precision": "fp32"})
    return compiled, sum(op.name == "dot_general" for op in captured.graph.ops)


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_checkpoints_save_memory_in_the_program(how):
    """A layer's hidden activations are 1 MiB, its input a quarter: three of four layers' are not kept."""
    whole, products = program(None)
    again, more = program(how)
    assert more >= products + 4
    assert again.hbm_bytes <= whole.hbm_bytes - 2 * 2**20


class Gated(nn.Module):
    """What makes loops meet that are to run at different times: norms of what is kept, a table that every block
    reads, and token numbers that the first operator and the last one compare."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(128), nn.Linear(128, 384), nn.Linear(384, 128)

    def forward(self, x, table):
        hidden = self.up(self.norm(x))
        return x + self.down(F.silu(hidden) * table)


class Words(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words, self.head = nn.Embedding(256, 128), nn.Linear(128, 256, bias=False)
        self.blocks = nn.ModuleList(Gated() for _ in range(layers))

    def forward(self, tokens, table):
        x = self.words(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, table, use_reentrant=False)
        return self.head(x)


def words_on(device, layers):
    torch.manual_seed(0)
    model = Words(layers).to(device)
    generator = torch.Generator().manual_seed(1)
    batch = torch.randint(256, (1024,), generator=generator), torch.rand(1024, 384, generator=generator)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), tuple(x.to(device) for x in batch)


def loss_of(model, tokens, table):
    return F.cross_entropy(model(tokens, table), tokens)


def test_each_checkpoint_more_keeps_its_input_alone():
    """A block's input is 0.5 MiB, and its hidden activations are 1.5 MiB each: loops of the forward pass do not
    compute along what only the second time needs, nor those of one block what another does, and nothing is computed
    again before the loss is known."""
    sizes = []
    for layers in (2, 6):
        model, optimizer, batch = words_on("neuron", layers)
        graph = capture_step(model, optimizer, loss_of, batch).graph
        sizes.append(compile(graph, chips.get("trn1"), {"precision": "fp32"}).hbm_bytes)
    vectors = 4096  # gradients of a block's norm and biases
    assert sizes[1] - sizes[0] <= 4 * (2**19 + vectors)


def test_what_is_computed_again_is_the_same():
    """Two steps on the chip against the host's, in fp32: losses and weights."""
    expected, optimizer, batch = words_on("cpu", 2)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = loss_of(expected, *batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model, optimizer, batch = words_on("neuron", 2)
    step = compile_step(model, optimizer, loss_of)
    with engine(TRN1):
        assert [step(*batch).item() for _ in range(2)] == pytest.approx(losses, rel=1e-6)
    for got, wanted in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=1e-6)
