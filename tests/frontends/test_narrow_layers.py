# SPDX-License-Identifier: Apache-2.0
"""Layers of one feature in or out, trained beside the host: a weight has as many elements as the bias, or one."""

import copy

import pytest
import torch
from torch import nn

from trnlab import chips
from trnlab.frontends.torch import compile_step
from trnlab.runtime import session

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def chip():
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        yield


@pytest.mark.parametrize("widths", [(1, 32, 1), (4, 1, 32), (1, 1, 1), (200, 1, 200)])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_layers_of_one_feature_learn_what_the_host_learns(widths, optimizer):
    torch.manual_seed(0)
    first, middle, last = widths
    host = nn.Sequential(nn.Linear(first, middle), nn.Tanh(), nn.Linear(middle, last))
    chip = copy.deepcopy(host).to("neuron")
    on_chip, on_host = optimizer(chip.parameters(), lr=1e-2), optimizer(host.parameters(), lr=1e-2)
    step = compile_step(chip, on_chip, lambda m, x, y: ((m(x) - y) ** 2).mean())
    for _ in range(3):
        x, y = torch.randn(16, first), torch.randn(16, last)
        loss = ((host(x) - y) ** 2).mean()
        on_host.zero_grad()
        loss.backward()
        on_host.step()
        assert step(x.to("neuron"), y.to("neuron")).item() == pytest.approx(loss.item(), rel=1e-5)
    for mine, theirs in zip(chip.parameters(), host.parameters()):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5)
