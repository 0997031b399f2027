# SPDX-License-Identifier: Apache-2.0
"""`p.data = ...` from one device to the other: the parameter stays the object that optimizers and modules know."""

import copy

import pytest
import torch
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.runtime import session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(autouse=True)
def engine():
    with (
        session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")),
        neuron.use(neuron.InterpreterEngine()),
    ):
        yield


def moved(module, device):
    for p in (*module.parameters(), *module.buffers()):
        p.data = p.data.to(device)
    return module


def test_an_optimizer_made_before_trains_what_was_moved_and_moved_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    reference = copy.deepcopy(model)
    model[0].weight.label, known = "mine", list(map(id, model.parameters()))
    losses = []
    for net, ways in ((model, ("neuron", "cpu", "neuron")), (reference, ("cpu",) * 3)):
        optimizer, found = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.0), []
        for way in ways:
            x = torch.linspace(-1, 1, 20).reshape(5, 4).to(moved(net, way)[0].weight.device)
            loss = net(x).square().mean() + net(x)[0, 0]
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert list(map(id, model.parameters())) == known
    assert model[0].weight.label == "mine"
    assert {p.grad.device.type for p in model.parameters()} == {
        "neuron"
    }  # gradients were moved with them, and added to


def test_in_compile_step():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    reference = copy.deepcopy(model)
    step = neuron.compile_step(
        moved(model, "neuron"), torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).sum()
    )
    step(torch.ones(2, 4, device="neuron"))
    reference(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(reference.parameters(), 0.1).step()
    assert torch.allclose(model.weight.detach().cpu(), reference.weight.detach(), atol=1e-6)


def test_elsewhere_data_is_pytorchs():
    p = nn.Parameter(torch.ones(3))
    shown = p.data
    p.data = torch.zeros(2)
    assert (shown.tolist(), p.tolist()) == ([1, 1, 1], [0, 0])
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        (p * 2).data = torch.ones(2, device="neuron")
    compiled = torch.compile(lambda x: x.data * 2, backend="neuron")
    assert compiled(torch.ones(2, device="neuron")).tolist() == [2, 2]
