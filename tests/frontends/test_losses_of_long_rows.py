# SPDX-License-Identifier: Apache-2.0
"""Losses over vocabularies that do not stay on chip, whose softmax is taken in the product's epilogue: loss and every
gradient against eager autograd in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import TRN1, CapturedGradients
from torch import nn

from trnlab.compiler.rewriting.softmax import LEAST_ROW

pytestmark = pytest.mark.torch
VOCABULARY, WIDTH, ROWS = LEAST_ROW + 105, 24, 140


class Head(nn.Module):
    """Logits of rows, and a loss of them."""

    def __init__(self, loss, bias=False):
        super().__init__()
        self.loss, self.out = loss, nn.Linear(WIDTH, VOCABULARY, bias=bias)
        self.register_buffer("weights", torch.rand(VOCABULARY, generator=torch.Generator().manual_seed(5)) + 0.5)

    def forward(self, x, ids):
        return self.loss(self.out(x), ids, self.weights.to(x.dtype))


def with_penalty(logits, ids, weights):
    """A penalty on the logarithm of the sum, as mixtures of experts and large models have."""
    return F.cross_entropy(logits, ids) + 1e-2 * logits.logsumexp(1).square().mean()


LOSSES = {
    "mean": lambda logits, ids, weights: F.cross_entropy(logits, ids),
    "sum": lambda logits, ids, weights: F.cross_entropy(logits, ids, reduction="sum"),
    "each": lambda logits, ids, weights: F.cross_entropy(logits, ids, reduction="none") @ logits[:, 0].square(),
    "weighted": lambda logits, ids, weights: F.cross_entropy(logits, ids, weights),
    "smoothed": lambda logits, ids, weights: F.cross_entropy(logits, ids, label_smoothing=0.1),
    "of sequences": lambda logits, ids, weights: F.cross_entropy(
        logits.view(2, -1, VOCABULARY).flatten(0, 1), ids.view(2, -1).flatten()
    ),
    "log_softmax": lambda logits, ids, weights: F.nll_loss(F.log_softmax(logits, 1), ids),
    "softmax": lambda logits, ids, weights: -F.softmax(logits, 1).gather(1, ids.clamp(min=0)[:, None]).log().mean(),
    "all of softmax": lambda logits, ids, weights: (F.softmax(logits, 1) * weights).sum(),
    "capped": lambda logits, ids, weights: F.cross_entropy(30 * torch.tanh(logits / 30), ids),
    "cooled": lambda logits, ids, weights: F.cross_entropy(logits / 0.7, ids),
    "penalty": with_penalty,
}


def batch():
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, generator=chance) * 3
    ids = torch.randint(0, VOCABULARY, (ROWS,), generator=chance)
    ids[::7] = -100
    ids[1], ids[2] = 0, VOCABULARY - 1
    return x, ids


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name, bias):
    """As near to float64 as PyTorch's own float32 is, within a factor and the last digits."""
    torch.manual_seed(0)
    model, (x, ids) = Head(LOSSES[name], bias), batch()
    if name in ("softmax", "all of softmax"):
        ids = ids.clamp(min=0)
    exact = copy.deepcopy(model).double()
    wanted_loss = exact(x.double(), ids)
    wanted_loss.backward()
    loss, got = CapturedGradients(model, (x, ids)).run(TRN1)
    assert abs(loss.item() - wanted_loss.item()) <= 2e-6 * abs(wanted_loss.item())
    for key, parameter in exact.named_parameters():
        assert parameter.grad is not None
        wanted = parameter.grad
        assert (got[key].double() - wanted).abs().max() <= 1e-5 * wanted.abs().max(), key
