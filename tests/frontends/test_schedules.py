# SPDX-License-Identifier: Apache-2.0
"""Schedules of more than the learning rate: what changes between steps becomes an input of the program."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trnlab import chips
from trnlab.frontends.torch import compile_step
from trnlab.frontends.torch import step as step_module
from trnlab.runtime import session

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def chip():
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        yield


@pytest.fixture
def captures(monkeypatch):
    """A list that grows with each capture."""
    made, capture = [], step_module.capture_step
    monkeypatch.setattr(step_module, "capture_step", lambda *a, **k: made.append(k["scheduled"]) or capture(*a, **k))
    return made


class Decay:
    """A schedule of weight decay, as SSL recipes have it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        for group in self.optimizer.param_groups:
            group["weight_decay"] = group["weight_decay"] * 1.5 + 0.01


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)


def cyclic(optimizer):
    return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.001, 0.01, step_size_up=3)


SCHEDULES = {
    "AdamW, one cycle": (lambda p: torch.optim.AdamW(p, lr=0.01), one_cycle),
    "Adam with amsgrad, one cycle": (lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True), one_cycle),
    "SGD, one cycle": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), one_cycle),
    "SGD with Nesterov, cyclic": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True), cyclic),
    "RMSprop, cyclic": (lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9), cyclic),
    "AdamW, weight decay": (lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), Decay),
    "SGD, weight decay": (lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1), Decay),
    "SGD, weight decay from nothing": (lambda p: torch.optim.SGD(p, lr=0.01), Decay),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))


def batches():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 8, generator=generator), torch.randint(3, (16,), generator=generator)) for _ in range(6)]


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_costs_one_more_capture_and_trains_as_on_the_host(name, captures):
    make_optimizer, make_schedule = SCHEDULES[name]
    theirs = network()
    ours = copy.deepcopy(theirs).to("neuron")
    optimizer, host = make_optimizer(ours.parameters()), make_optimizer(theirs.parameters())
    schedule, host_schedule = make_schedule(optimizer), make_schedule(host)
    step = compile_step(ours, optimizer, loss_of)
    for x, y in batches():
        host.zero_grad()
        loss = loss_of(theirs, x, y)
        loss.backward()
        host.step()
        assert step(x.to("neuron"), y.to("neuron")).item() == pytest.approx(loss.item(), rel=1e-5)
        schedule.step()
        host_schedule.step()
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(mine.detach().cpu(), other.detach(), rtol=1e-4, atol=1e-5)
    assert len(captures) == 2
    assert not captures[0]
    assert captures[1]


def test_an_optimizer_that_decides_by_such_a_number_gets_a_program_for_each(captures):
    class Warmed(torch.optim.SGD):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                factor = 0.1 if group["warmth"] < 0.5 else 1.0
                for p in group["params"]:
                    p.sub_(p.grad * (group["lr"] * factor))

    model = network().to("neuron")
    optimizer = Warmed(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["warmth"] = 0.25
    step = compile_step(model, optimizer, loss_of)
    x, y = (t.to("neuron") for t in batches()[0])
    first = [float(step(x, y))]
    optimizer.param_groups[0]["warmth"] = 0.75
    first += [float(step(x, y)), float(step(x, y))]
    host = network()
    optimizer = Warmed(host.parameters(), lr=0.1)
    expected = []
    for warmth in (0.25, 0.75, 0.75):
        optimizer.param_groups[0]["warmth"] = warmth
        optimizer.zero_grad()
        loss = loss_of(host, x.cpu(), y.cpu())
        loss.backward()
        expected.append(loss.item())
        optimizer.step()
    assert first == pytest.approx(expected, rel=1e-5)
    assert captures[-1] == frozenset()


@pytest.mark.parametrize("at", [1, 3])
def test_a_step_that_goes_on_computes_the_same_bits(at):
    """Its state says which numbers are inputs: as constants they would be rounded otherwise."""
    make_optimizer, make_schedule = SCHEDULES["AdamW, one cycle"]
    whole = network().to("neuron")
    optimizer = make_optimizer(whole.parameters())
    schedule, step = make_schedule(optimizer), compile_step(whole, optimizer, loss_of)
    for i, (x, y) in enumerate(batches()):
        if i == at:
            kept = copy.deepcopy(
                (whole.state_dict(), optimizer.state_dict(), schedule.state_dict(), step.state_dict())
            )
        step(x.to("neuron"), y.to("neuron"))
        schedule.step()
    again = network().to("neuron")
    optimizer = make_optimizer(again.parameters())
    schedule, step = make_schedule(optimizer), compile_step(again, optimizer, loss_of)
    for part, state in zip((again, optimizer, schedule, step), kept):
        part.load_state_dict(state)
    for x, y in batches()[at:]:
        step(x.to("neuron"), y.to("neuron"))
        schedule.step()
    for mine, other in zip(again.parameters(), whole.parameters()):
        assert torch.equal(mine.detach().cpu(), other.detach().cpu())
