# SPDX-License-Identifier: Apache-2.0
"""Optimizers beside the plain ones: written by users with Python's arithmetic, fused, Adafactor; beside the host."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

import trnlab.frontends.torch as neuron
from trnlab.errors import TrnlabError
from trnlab.frontends.torch.decompositions import fused_optimizers

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def interpreter():
    with neuron.use(neuron.InterpreterEngine()):
        yield


class Lion(Optimizer):
    """As published: state made in the first step, sign of an interpolation."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - rate * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                update = state["exp_avg"].clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-rate)
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Lamb(Optimizer):
    """Its count of steps is a Python number, its trust ratio hangs on norms."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                state["m"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                m, v = state["m"] / (1 - beta1 ** state["step"]), state["v"] / (1 - beta2 ** state["step"])
                update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
                norms = p.norm(), update.norm()
                trust = torch.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)
                p.add_(update * trust, alpha=-group["lr"])


class WarmedUp(Lamb):
    """Decides by its count of steps, which no tensor can stand for; a group counts, too, and one rate is none."""

    def __init__(self, params):
        super().__init__(params)
        self.param_groups[0].update(seen=0)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["seen"] += 1
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                share = state["step"] / 3 if state["step"] < 3 else 1.0
                p.sub_(p.grad, alpha=0.1 * share / group["seen"])


class RelativeSteps(Optimizer):
    """As Adafactor of transformers: no learning rate, one made of the count and of the parameter's size."""

    def __init__(self, params):
        super().__init__(params, {"lr": None})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state.update(step=0, RMS=0, v=torch.zeros_like(p))
                state["step"] += 1
                state["RMS"] = p.norm(2) / p.numel() ** 0.5
                rate = max(1e-3, state["RMS"]) * min(1e-2, 1.0 / math.sqrt(state["step"]))
                state["v"].lerp_(p.grad.square(), 1.0 - (1 - math.pow(state["step"], -0.8)))
                p.add_(-p.grad * rate / state["v"].sqrt().clamp_(min=1e-3))


OPTIMIZERS = {
    "Lion": Lion,
    "LAMB": Lamb,
    "a warm-up in Python": WarmedUp,
    "relative steps": RelativeSteps,
    "Adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, 1e-2),
    "fused AdamW": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
}


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def batch(i):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(5, 6, generator=generator), torch.randint(0, 4, (5,), generator=generator)


def losses_on_host(make, steps):
    model = small()
    optimizer, losses = make(model.parameters()), []
    for i in range(steps):
        x, y = batch(i)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, optimizer


def losses_on_device(make, steps):
    model = small().to("neuron")
    optimizer = make(model.parameters())
    step = neuron.compile_step(model, optimizer, lambda m, x, y: F.cross_entropy(m(x), y))
    return [step(*(t.to("neuron") for t in batch(i))).item() for i in range(steps)], optimizer, step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_are_those_of_the_host(name, capsys):
    """Five steps; the last parameters' effect is in the last loss."""
    expected, on_host = losses_on_host(OPTIMIZERS[name], 5)
    found, on_device, _ = losses_on_device(OPTIMIZERS[name], 5)
    assert found == pytest.approx(expected, abs=3e-6)
    for mine, theirs in zip(on_device.state.values(), on_host.state.values()):
        assert mine.keys() == theirs.keys()
        assert float(mine.get("step", 5)) == float(theirs.get("step", 5)) == 5
        assert type(mine.get("step")) is type(theirs.get("step"))
    counted = [g.get("seen") for g in on_device.param_groups]
    assert counted == [g.get("seen") for g in on_host.param_groups]


@pytest.mark.parametrize("name", ["LAMB", "relative steps"])
def test_a_count_in_python_is_an_input_of_one_program(name, capsys):
    """One program for the first step, which makes the state, and one for all others."""
    *_, step = losses_on_device(OPTIMIZERS[name], 6)
    assert len(step._programs) == 2


def test_deciding_by_a_count_is_told(capsys):
    losses_on_device(WarmedUp, 3)
    said = capsys.readouterr().err
    assert "WarmedUp decides by its count of steps" in said
    assert "test_own_optimizers.py" in said


class Counting(neuron.InterpreterEngine):
    """Counts the graphs it is given."""

    def __init__(self):
        super().__init__()
        self.graphs = []

    def compile(self, graph, frozen=()):
        self.graphs.append(graph.name)
        return super().compile(graph, frozen)


def test_a_count_in_python_is_an_input_under_torch_compile():
    """The compiled update: one program that makes the state, one for the next step, one for all that follow."""
    expected, _ = losses_on_host(Lamb, 6)
    torch._dynamo.reset()
    model, engine = small().to("neuron"), Counting()
    optimizer, losses = Lamb(model.parameters()), []
    update = torch.compile(lambda: optimizer.step(), backend="neuron")
    for i in range(6):
        x, y = (t.to("neuron") for t in batch(i))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        with neuron.use(engine):
            update()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, abs=3e-6)
    assert len(engine.graphs) <= 3


class OwnRate(torch.optim.SGD):
    """A schedule inside of the optimizer."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = group["lr"] * 0.5
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)


def test_a_rate_that_the_optimizer_changes_is_refused():
    with pytest.raises(TrnlabError) as info:
        losses_on_device(lambda p: OwnRate(p, 0.1), 1)
    assert info.value.code == "TRN202"
    assert "'lr'" in str(info.value)


# -- fused updates --------------------------------------------------------------------------------------------------
def lists(*counts):
    generator = torch.Generator().manual_seed(3)
    shapes = ((3, 4), (5,))
    return [[torch.rand(s, generator=generator) + 0.1 for s in shapes] for _ in range(counts[0])]


ADAM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-6, "maximize": False}
SGD = {"weight_decay": 0.1, "lr": 0.1, "dampening": 0.1, "nesterov": True, "maximize": False}


@pytest.mark.parametrize(
    ("name", "count", "options"),
    [
        ("_fused_adamw_", 5, ADAM | {"amsgrad": True}),
        ("_fused_adamw_", 4, ADAM | {"amsgrad": False}),
        ("_fused_adam_", 4, ADAM | {"amsgrad": False, "maximize": True}),
        ("_fused_sgd_", 3, SGD | {"momentum": 0.9, "is_first_step": False, "nesterov": False}),
        ("_fused_sgd_", 3, SGD | {"momentum": 0.9, "is_first_step": True, "dampening": 0.0}),
        ("_fused_adagrad_", 3, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-6, "maximize": False}),
    ],
)
@pytest.mark.parametrize("scaled", [None, 0.0, 1.0], ids=["plain", "scaled", "infinite"])
def test_fused_updates_are_those_of_pytorch(name, count, options, scaled):
    """Parameters, averages and unscaled gradients, beside the kernel for the host's processor."""
    if name == "_fused_adagrad_" and scaled is not None:
        pytest.skip("PyTorch's kernel for the processor leaves the scale of gradients out")
    given = lists(count)
    steps = {"state_steps": [torch.tensor(3.0), torch.tensor(3.0)]} if "sgd" not in name else {}
    names = [a.name for a in getattr(torch.ops.aten, name).default._schema.arguments][:count]
    arguments = dict(zip(names, given)) | options | steps
    if name.startswith("_fused_adam") and count == 4:
        arguments["max_exp_avg_sqs"] = []
    if scaled is not None:
        arguments |= {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(scaled)}
    ours = pytree.tree_map_only(torch.Tensor, torch.clone, arguments)
    fused_optimizers.update(name.removesuffix("_"), ours)
    getattr(torch.ops.aten, name)(**arguments)
    for key in names:
        for expected, found in zip(arguments[key], ours[key]):
            torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-7)
