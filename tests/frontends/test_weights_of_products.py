# SPDX-License-Identifier: Apache-2.0
"""Weights whose gradient is a matrix product, seen by their update through reshapes and transposes.

Updates are computed with the product where its tiles are the weight in the order in memory."""

import copy

import pytest
import torch
from helpers import engine
from test_convolutions import CASES, random
from torch import nn

import trnlab.frontends.torch as neuron

PRODUCTS = {
    "experts": ((16, 8), (4, 8, 6), lambda x, w: torch.einsum("bd,edf->ebf", x, w)),
    "experts, weights by rows of the result": ((16, 8), (4, 6, 8), lambda x, w: torch.einsum("bd,efd->bef", x, w)),
    "experts that lie innermost": ((16, 8), (8, 6, 4), lambda x, w: torch.einsum("bd,dfe->ebf", x, w)),
    "heads": ((2, 10, 12), (12, 3, 4), lambda x, w: torch.einsum("btd,dhk->bhtk", x, w)),
    "heads that are folded": ((2, 10, 12), (12, 12), lambda x, w: (x @ w).view(2, 10, 3, 4).transpose(1, 2)),
    "a weight that is turned": ((16, 8), (8, 24), lambda x, w: x @ w.view(8, 4, 6).transpose(1, 2).reshape(8, 24)),
    "groups of a linear layer": ((16, 4, 3), (4, 3, 5), lambda x, w: torch.bmm(x.transpose(0, 1), w)),
}


class Layer(nn.Module):
    def __init__(self, function, shape):
        super().__init__()
        self.weight, self.function = nn.Parameter(random(*shape, seed=1)), function

    def forward(self, x):
        return self.function(x, self.weight)


def assert_trains_as_on_the_host(function, x, weight, make_optimizer):
    """Three steps; losses and the weight."""
    ours = Layer(function, weight)
    theirs = copy.deepcopy(ours)
    batches = [random(*x, seed=seed) for seed in range(3)]
    with engine("trn1"):
        ours.to("neuron")
        step = neuron.compile_step(ours, make_optimizer(ours.parameters()), lambda m, x: m(x).square().mean())
        got = [float(step(x.to("neuron"))) for x in batches]
    optimizer, expected = make_optimizer(theirs.parameters()), []
    for x in batches:
        optimizer.zero_grad()
        loss = theirs(x).square().mean()
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert got == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(ours.weight.detach().cpu(), theirs.weight.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_weights_of_convolutions_learn_what_the_host_learns(name):
    function, x, weight, given = CASES[name]
    assert_trains_as_on_the_host(
        lambda x, w: function(x, w, **given), x, weight, lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    )


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_weights_of_products_learn_what_the_host_learns(name, optimizer):
    x, weight, function = PRODUCTS[name]
    assert_trains_as_on_the_host(function, x, weight, lambda parameters: optimizer(parameters, lr=0.05))
