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
            optimizer.zero_grad()
            loss = net(x).square().mean() + net(x)[0, 0]
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert list(map(id, model.parameters())) == known
    assert model[0].weight.label == "mine"


def test_gradients_and_views_stay_where_they_are():
    p = nn.Parameter(torch.ones(3))
    p.grad, view = torch.full((3,), 2.0), p.view(3)
    p.data = torch.zeros(3, device="neuron")
    assert (p.device.type, p.grad.device.type, view.tolist()) == ("neuron", "cpu", [1, 1, 1])
    given = torch.ones(3, device="neuron")
    p.data = given
    given.mul_(4)
    assert p.tolist() == [4, 4, 4]  # the same memory


def test_a_graph_reaches_a_parameter_that_was_elsewhere_between_its_passes():
    p, x = nn.Parameter(torch.tensor([1.0, 2.0], device="neuron")), torch.tensor([3.0, 5.0], device="neuron")
    kept, view = p.data, p.view(2)
    loss = (view * x * x).sum()
    p.data = torch.zeros(2)
    assert p.tolist() == [0, 0]
    p.data = kept
    loss.backward()
    assert (p.grad.tolist(), p.grad.device.type) == ([9, 25], "neuron")
    loss = (p * x).sum()
    p.grad, p.data = None, torch.zeros(2)
    loss.backward()
    assert (p.device.type, p.grad.tolist(), p.grad.device.type) == ("cpu", [3, 5], "neuron")  # none is lost


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
    for other in (torch.ones(2, device="meta"), torch.ones(2, device="neuron").to_sparse()):
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            p.data = other
    compiled = torch.compile(lambda x: x.data * 2, backend="neuron")
    assert compiled(torch.ones(2, device="neuron")).tolist() == [2, 2]
