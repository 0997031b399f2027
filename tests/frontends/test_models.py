# SPDX-License-Identifier: Apache-2.0
"""Whole models: every gradient of a GPT, a Llama block and a BERT block against eager autograd, in fp32, by the
interpreter and on the chip."""

import copy
from pathlib import Path

import models
import pytest
import torch
from helpers import TRN1, CapturedGradients, assert_same
from torch import nn

pytestmark = pytest.mark.torch
GRADIENT = 1e-5  # of each tensor's largest gradient


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
    "gpt_longer_than_a_tile": (
        lambda: models.GPT(vocab=61, width=36, heads=3, context=150, layers=1),
        lambda: (ids(3, 139), ids(3, 139, seed=1)),
    ),
    "llama": (lambda: Framed(), lambda: (ids(2, 16),)),
    "llama_torch_norm": (lambda: Framed(own_norm=False), lambda: (ids(2, 16),)),
    "llama_one_kv_head": (lambda: Framed(kv_heads=1), lambda: (ids(1, 7),)),
    "bert": (lambda: models.BERT(), lambda: (ids(2, 16), masked(ids(2, 16, seed=1)), ids(2, high=2))),
}


def masked(targets):
    targets[:, ::3] = -100
    return targets


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    """On both engines as near to PyTorch's as PyTorch's of two devices are; on the chip every gradient also within
    1e-5 of the largest of its tensor, of those in float64."""
    torch.manual_seed(0)
    make, batch = CASES[name]
    model, batch = make(), batch()
    expected, gradients = eager(model, batch)
    exact, exact_gradients = eager(copy.deepcopy(model).double(), batch)
    made = CapturedGradients(model, batch)
    for on in ("interpreter", TRN1):
        loss, got = made.run(on)
        assert_same(loss, expected)
        assert set(got) == set(gradients)
        for n, wanted in gradients.items():
            assert_same(got[n], wanted, rtol=1e-5, atol=1e-6)
    assert abs(loss.item() - exact.item()) <= 1e-6 * exact.item()
    for n, wanted in exact_gradients.items():
        assert (got[n].double() - wanted).abs().max() <= GRADIENT * wanted.abs().max(), n


def eager(model, batch):
    """Loss and gradients by name, as PyTorch computes them on the CPU."""
    reference = copy.deepcopy(model)
    loss = reference(*batch)
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in reference.named_parameters()}


def test_every_op_knows_the_users_line_and_the_frameworks_name():
    """Backward ops too: they carry the line whose derivative they compute."""
    batch = (ids(2, 16), ids(2, 16, seed=1))
    captured = CapturedGradients(models.GPT(), batch).captured
    files = {op.name: {Path(op.loc.file).name} for op in captured.graph.ops if op.name != "constant"}
    assert set().union(*files.values()) == {"models.py"}
    assert all(op.origin.startswith(("aten.", "trnlab.")) for op in captured.graph.ops)
    attention = {op.name: op.loc for op in captured.graph.ops if op.name.startswith("trn.attention")}
    assert attention["trn.attention"].line == attention["trn.attention_backward"].line
    assert "scaled_dot_product_attention" in attention["trn.attention"].text


def test_repeated_layers_capture_alike():
    """Layer two's ops are layer one's, so that a compiler may share their programs."""
    batch = (ids(2, 16), ids(2, 16, seed=1))
    sizes = [len(CapturedGradients(models.GPT(layers=n), batch).captured.graph.ops) for n in (1, 2, 3)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]
