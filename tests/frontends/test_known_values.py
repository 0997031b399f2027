# SPDX-License-Identifier: Apache-2.0
"""Python may ask for values of tensors that depend on no input while a step is captured; for no others."""

import copy

import pytest
import torch
from helpers import engine
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab.errors import UnsupportedOpError

pytestmark = pytest.mark.torch


def captured(loss):
    model = nn.Linear(4, 4).to("neuron")
    return neuron.capture_step(model, None, loss, [torch.ones(4, 4, device="neuron")])


def test_conditions_on_constants_take_the_way_that_eager_takes():
    seen = []

    def loss(model, x):
        mask = torch.full((4, 4), float("-inf"), device=x.device).triu(1)
        row = mask[0]  # a view, that sees the write
        mask[0, 1:] = 2.0
        seen.extend([bool((row == 2.0).any()), (mask == 0).sum().item(), torch.arange(3, device=x.device).tolist()])
        return (model(x) * (2 if mask.isinf().any() else 3)).sum()

    captured(loss)
    assert seen == [True, 10, [0, 1, 2]]


def of_input(model, x):
    return x


def random(model, x):
    return torch.rand(4, 4, device=x.device)


def of_parameter(model, x):
    return model.weight


def written_with_an_input(model, x):
    known = torch.zeros(4, 4, device=x.device)
    view = known[1]
    view.copy_(x[0])
    return known


OUTSIDE = torch.ones(4, 4).to("neuron")


def written_from_outside(model, x):
    """A tensor from outside that the step has written is no longer what it was."""
    OUTSIDE.mul_(x)
    return OUTSIDE


@pytest.mark.parametrize("made", [of_input, random, of_parameter, written_with_an_input, written_from_outside])
def test_values_that_differ_from_step_to_step_are_refused(made):
    with pytest.raises(UnsupportedOpError, match="TRN204"):
        captured(lambda model, x: model(x).sum() * (2 if made(model, x).detach().sum() > 1 else 1))


def test_a_transformer_that_looks_at_its_mask_trains():
    def loss(net, x):
        mask = nn.Transformer.generate_square_subsequent_mask(3, device=x.device)
        return net(x, x, tgt_mask=mask).square().mean()

    torch.manual_seed(0)
    host = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    x, net = torch.randn(2, 3, 8), copy.deepcopy(host).to("neuron")
    with engine("trn1"):
        step = neuron.compile_step(net, torch.optim.SGD(net.parameters(), 0.1), loss)
        got = [step(x.to("neuron")).item() for _ in range(2)]
    expected, optimizer = [], torch.optim.SGD(host.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        value = loss(host, x)
        value.backward()
        optimizer.step()
        expected.append(value.item())
    assert got == pytest.approx(expected, rel=2e-5)
