# SPDX-License-Identifier: Apache-2.0
"""A module that a loss reaches and the step does not train, such as a teacher, is watched as the trained one.

Drawn: where the loss finds it, and what happens to it between the steps. Each is trained eagerly on the CPU, too.
"""

import copy
import functools
import random
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import worst_error
from torch import nn

import trnlab.frontends.torch as neuron

pytestmark = pytest.mark.torch
KEPT = {}


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.k, self.line, self.norm, self.drop = 1.0, nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.0)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        return self.drop(self.norm(self.line(x))) * self.k + self.shift


class Loss:
    def __init__(self, teacher):
        self.teacher = teacher

    def __call__(self, model, x, y):
        return F.mse_loss(model(x), self.teacher(x)) + y.mean()


class LossModule(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher

    def forward(self, model, x, y):
        return F.mse_loss(model(x), self.teacher(x)) + y.mean()


class Slotted:
    __slots__ = ("net",)


def holders(t):
    """By place: the loss, and how another module gets to this place (None where none can)."""
    cell, items, table, owner, slotted = (
        t,
        [t],
        {"a": {"b": t}},
        SimpleNamespace(inner=SimpleNamespace(net=t)),
        Slotted(),
    )
    slotted.net, KEPT["t"], loss, module = t, t, Loss(t), LossModule(t)
    reference, weak = weakref.ref(t), weakref.WeakValueDictionary(t=t)

    @functools.lru_cache
    def cached():
        return t

    cached()

    @property
    def net(self):
        return self._net

    described = type("Described", (), {"net": net})()
    described._net = t

    def rebind(new):
        nonlocal cell
        cell = new

    def inner(x):
        return cell(x)

    def loss_of(teacher):
        return lambda m, x, y: F.mse_loss(m(x), teacher()(x)) + y.mean()

    return {
        "a closure": (lambda m, x, y: F.mse_loss(m(x), cell(x)) + y.mean(), rebind),
        "a function within": (lambda m, x, y: F.mse_loss(m(x), inner(x)) + y.mean(), rebind),
        "a list": (loss_of(lambda: items[0]), lambda new: items.__setitem__(0, new)),
        "dictionaries": (loss_of(lambda: table["a"]["b"]), lambda new: table["a"].__setitem__("b", new)),
        "a namespace": (loss_of(lambda: owner.inner.net), lambda new: setattr(owner.inner, "net", new)),
        "a slot": (loss_of(lambda: slotted.net), lambda new: setattr(slotted, "net", new)),
        "a property": (loss_of(lambda: described.net), lambda new: setattr(described, "_net", new)),
        "a global": (loss_of(lambda: KEPT["t"]), lambda new: KEPT.__setitem__("t", new)),
        "a loss object": (loss, lambda new: setattr(loss, "teacher", new)),
        "a loss module": (module, lambda new: setattr(module, "teacher", new)),
        "a bound method": (lambda m, x, y, f=t.forward: F.mse_loss(m(x), f(x)) + y.mean(), None),
        "a default": (lambda m, x, y, t=t: F.mse_loss(m(x), t(x)) + y.mean(), None),
        "a partial": (functools.partial(lambda t, m, x, y: F.mse_loss(m(x), t(x)) + y.mean(), t), None),
        "a weak reference": (loss_of(lambda: reference()), None),
        "a weak dictionary": (loss_of(lambda: weak["t"]), lambda new: weak.__setitem__("t", new)),
        "a cache": (loss_of(cached), None),
    }


def filled(tensor, value):
    return nn.Parameter(torch.full_like(tensor, value), requires_grad=False)


def another(t, i):
    """A copy with other weights."""
    new = copy.deepcopy(t)
    with torch.no_grad():
        new.line.weight.fill_(0.1 * i + 0.3)
    return new


def assigned(t, i):
    state = {k: torch.full_like(v, i + 1) if v.is_floating_point() else v for k, v in t.state_dict().items()}
    t.load_state_dict(state, assign=True)
    t.requires_grad_(False)


CHANGES = {
    "nothing": lambda t, i: None,
    "train or eval": lambda t, i: t.train(i % 2 == 1),
    "a part in eval": lambda t, i: t.norm.train(i % 2 == 1),
    "a number": lambda t, i: setattr(t, "k", i + 2.0),
    "momentum": lambda t, i: setattr(t.norm, "momentum", 0.9 - 0.2 * i),
    "dropout": lambda t, i: setattr(t.drop, "p", float(i % 2 == 0)),
    "weights in place": lambda t, i: t.line.weight.data.mul_(1.5),
    "weights by .data": lambda t, i: setattr(t.line.weight, "data", torch.full_like(t.line.weight, i + 0.5)),
    "weights replaced": lambda t, i: setattr(t.line, "weight", filled(t.line.weight, 0.4 - i)),
    "weights tied": lambda t, i: setattr(t.norm, "weight", t.line.bias if i % 2 else filled(t.line.bias, 2.0)),
    "a state assigned": assigned,
    "a state loaded": lambda t, i: t.load_state_dict({k: v * 0 + 2 + i for k, v in t.state_dict().items()}),
    "a buffer in place": lambda t, i: t.norm.running_mean.fill_(2.0 - i),
    "a buffer replaced": lambda t, i: setattr(t, "shift", torch.full_like(t.shift, i + 2.0)),
    "a module replaced": lambda t, i: setattr(t, "drop", nn.Tanh() if i % 2 == 0 else nn.Identity()),
    "a hook": lambda t, i: t.register_forward_hook(lambda m, i, o: o * 2),
    "a hook before": lambda t, i: t.line.register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
    "the module": None,
}


def drawn():
    """Every place meets half of the changes, which a seed chooses, three of them in one training."""
    generator, found = random.Random(7), []
    for place in holders(Teacher()):
        names = list(CHANGES)
        generator.shuffle(names)
        found += [(place, tuple(names[i : i + 3])) for i in range(0, len(names) // 2, 3)]
    return found


def trained(place, changes, device):
    torch.manual_seed(0)
    model, teacher = nn.Linear(4, 3).to(device), Teacher().to(device).requires_grad_(False)
    KEPT["held"] = [teacher]
    loss, rebind = holders(teacher)[place]
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    step, seen = neuron.compile_step(model, optimizer, loss) if device == "neuron" else None, []
    for i in range(len(changes) + 1):
        generator = torch.Generator().manual_seed(i)
        batch = [torch.randn(6, n, generator=generator).to(device) for n in (4, 3)]
        if step is not None:
            result = step(*batch)
        else:
            optimizer.zero_grad()
            result = loss(model, *batch)
            result.backward()
            optimizer.step()
        seen += [t.detach().cpu().clone() for t in (result, *model.parameters(), *teacher.state_dict().values())]
        if i < len(changes):
            teacher = changed(teacher, changes[i], i, rebind)
    return seen


def changed(teacher, change, i, rebind):
    """Returns the module that is in this place afterwards."""
    if CHANGES[change] is not None:
        CHANGES[change](teacher, i)
    elif rebind is not None:
        teacher = another(teacher, i)
        KEPT["held"].append(teacher)
        rebind(teacher)
    return teacher


@pytest.mark.parametrize(("place", "changes"), drawn(), ids=lambda x: x if isinstance(x, str) else ", ".join(x))
def test_as_eager_training(place, changes):
    with neuron.use(neuron.InterpreterEngine()):
        got = trained(place, changes, "neuron")
    for i, (a, b) in enumerate(zip(got, trained(place, changes, "cpu"), strict=True)):
        assert a.dtype == b.dtype, i
        assert worst_error(a, b) <= 2e-5, i
