# SPDX-License-Identifier: Apache-2.0
"""Whole models: every gradient of a GPT, a Llama block and a BERT block against eager autograd, in fp32."""

import copy
from pathlib import Path

import models
import pytest
import torch
from helpers import TRN1, assert_same, gradients_through_graph
from torch import nn

pytestmark = pytest.mark.torch


def ids(*shape, high=60, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def squared(model, x):
    return model(x).square().mean()


class Framed(nn.Module):
    """A Llama block between an embedding and a head."""

    def __init__(self, **options):
        super().__init__()
        self.tokens, self.block, self.head = nn.Embedding(60, 32), models.LlamaBlock(**options), nn.Linear(32, 60)

    def forward(self, ids):
        return nn.functional.cross_entropy(self.head(self.block(self.tokens(ids))).flatten(0, 1), ids.flatten())


CASES = {
    "gpt": (lambda: models.GPT(), lambda: (ids(2, 16), ids(2, 16, seed=1))),
    "gpt_explicit_attention": (lambda: models.GPT(sdpa=False), lambda: (ids(2, 16), ids(2, 16, seed=1))),
    "gpt_odd_sizes": (
        lambda: models.GPT(vocab=61, width=36, heads=3, context=19, layers=1),
        lambda: (ids(3, 13), ids(3, 13, seed=1)),
    ),
    "llama": (lambda: Framed(), lambda: (ids(2, 16),)),
    "llama_torch_norm": (lambda: Framed(own_norm=False), lambda: (ids(2, 16),)),
    "llama_one_kv_head": (lambda: Framed(kv_heads=1), lambda: (ids(1, 7),)),
    "bert": (lambda: models.BERT(), lambda: (ids(2, 16), masked(ids(2, 16, seed=1)), ids(2, high=2))),
}


def masked(targets):
    targets[:, ::3] = -100
    return targets


@pytest.mark.parametrize("on", ["interpreter", TRN1])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name, on):
    torch.manual_seed(0)
    make, batch = CASES[name]
    model, batch = make(), batch()
    reference = copy.deepcopy(model)
    expected = reference(*batch)
    expected.backward()
    loss, gradients, _ = gradients_through_graph(model, batch, on=on)
    assert_same(loss, expected)
    assert set(gradients) == {n for n, p in reference.named_parameters()}
    for n, p in reference.named_parameters():
        assert_same(gradients[n], p.grad, rtol=1e-5, atol=1e-6)


def test_every_op_knows_the_users_line_and_the_frameworks_name():
    """Backward ops too: they carry the line whose derivative they compute."""
    batch = (ids(2, 16), ids(2, 16, seed=1))
    _, _, captured = gradients_through_graph(models.GPT(), batch)
    files = {op.name: {Path(op.loc.file).name} for op in captured.graph.ops if op.name != "constant"}
    assert set().union(*files.values()) == {"models.py"}
    assert all(op.origin.startswith(("aten.", "trnlab.")) for op in captured.graph.ops)
    attention = {op.name: op.loc for op in captured.graph.ops if op.name.startswith("trn.attention")}
    assert attention["trn.attention"].line == attention["trn.attention_backward"].line
    assert "scaled_dot_product_attention" in attention["trn.attention"].text


def test_repeated_layers_capture_alike():
    """Layer two's ops are layer one's, so that a compiler may share their programs."""
    batch = (ids(2, 16), ids(2, 16, seed=1))
    sizes = [len(gradients_through_graph(models.GPT(layers=n), batch)[2].graph.ops) for n in (1, 2, 3)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]
