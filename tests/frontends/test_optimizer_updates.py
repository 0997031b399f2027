# SPDX-License-Identifier: Apache-2.0
"""A step in which an optimizer's update of a parameter is one operator is the step in which PyTorch was traced."""

import copy
import itertools
import re
import sys

import pytest
import torch
from helpers import TRN1, Beside, engine, worst_error
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab.frontends.torch.capture import optimizer_updates, step_capture
from trnlab.graph.text import to_text

pytestmark = pytest.mark.torch


class Model(nn.Module):
    """Parameters of several forms, and some that a step passes over."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.up, self.down = nn.Embedding(6, 4), nn.Linear(4, 8), nn.Linear(8, 4)
        self.same, self.unused, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.across = nn.Parameter(torch.randn(4, 3).t())  # its elements do not lie in order
        self.wide = nn.Parameter(torch.randn(2, 4).expand(3, 2, 4)[0].clone().to(torch.bfloat16))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        """x [N] words to one number."""
        y = self.down(torch.tanh(self.up(self.words(x)))) + self.same(self.words(x))
        y = self.frozen(y) * self.scale + y @ self.across.t() @ self.across
        return (y.square().mean() + (y @ self.words.weight.t()).sum() / 100) + self.wide.float().sum()


def groups(model):
    """Matrices and others, with numbers of their own."""
    learning = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in learning if p.dim() > 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": [p for p in learning if p.dim() < 2], "lr": 0.02}]


WAYS = {
    torch.optim.SGD: ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"maximize": True}),
    torch.optim.Adam: ({}, {"amsgrad": True}, {"maximize": True}, {"eps": 1e-3, "betas": (0.5, 0.6)}),
    torch.optim.AdamW: ({}, {"amsgrad": True}, {"capturable": True}, {"foreach": True}),
    torch.optim.NAdam: ({}, {"decoupled_weight_decay": True}, {"maximize": True}),
    torch.optim.RAdam: ({}, {"decoupled_weight_decay": True}),
    torch.optim.Adamax: ({}, {"maximize": True}),
    torch.optim.RMSprop: ({}, {"momentum": 0.9}, {"centered": True, "momentum": 0.5}),
    torch.optim.Adadelta: ({}, {"maximize": True}),
    torch.optim.Adagrad: ({}, {"lr_decay": 0.1}, {"initial_accumulator_value": 0.5}),
}
CASES = [(kind, options) for kind, all_options in WAYS.items() for options in all_options]


def captured(kind, options, rate=0.01, **how):
    """The step's graph as text, with the user's lines, and how each input and output comes about."""
    model = Model().to("neuron")
    optimizer = kind(groups(model), lr=rate, **options)
    made = step_capture.capture_step(model, optimizer, None, [torch.tensor([1, 0, 5], device="neuron")], **how)
    text = re.sub(r"detach\w*", "detach", to_text(made.graph, locations=True))
    return text.splitlines(), made.inputs, made.outputs, made.strides, made.graph.bounds, made.graph.aliases


@pytest.fixture
def puts(monkeypatch):
    """The updates that were put in as operators."""
    found, put = [], optimizer_updates._Call.put

    def noted(call):
        found.append(call)
        put(call)

    monkeypatch.setattr(optimizer_updates._Call, "put", noted)
    return found


@pytest.mark.parametrize(("kind", "options"), CASES, ids=[f"{k.__name__} {o}" for k, o in CASES])
def test_the_graph_is_that_of_the_traced_optimizer(kind, options, puts, monkeypatch):
    # Adamax writes by `out=`: of a traced one PyTorch makes the whole graph again, with views that undo each other.
    ways = [{}] if kind is torch.optim.Adamax else [{}, {"max_norm": 1.0}]
    for how in ways:
        ours = captured(kind, options, **how)
        with monkeypatch.context() as patched:
            patched.setattr(step_capture, "put_updates", lambda *_: False)
            assert ours == captured(kind, options, **how)
    learning = [p for p in Model().parameters() if p.requires_grad]
    assert len(puts) == len(ways) * (len(learning) - 2)  # two have no gradient


@pytest.mark.parametrize("rate", [0.0, 1e-30, 1e9])
def test_so_it_is_for_rates_that_no_program_may_divide_by(rate, puts, monkeypatch):
    ours = captured(torch.optim.AdamW, {}, rate)
    monkeypatch.setattr(step_capture, "put_updates", lambda *_: False)
    assert ours == captured(torch.optim.AdamW, {}, rate)
    assert puts


def test_scheduled_numbers_are_inputs_of_the_updates(puts, monkeypatch):
    places = frozenset({(0, "weight_decay", None), (0, "betas", 0), (1, "betas", 1), (1, "weight_decay", None)})
    ours = captured(torch.optim.AdamW, {}, scheduled=places)
    assert {role.place for role in ours[1] if role.kind == "rate"} > places
    monkeypatch.setattr(step_capture, "put_updates", lambda *_: False)
    assert ours == captured(torch.optim.AdamW, {}, scheduled=places)
    assert puts


def test_what_others_keep_in_a_group_is_none_of_its_settings(puts, monkeypatch):
    """Schedulers note there where they began, as tensors too, and change numbers that no optimizer knows."""

    def found():
        model = Model().to("neuron")
        optimizer = torch.optim.AdamW(groups(model), lr=torch.tensor(0.01))
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5)
        optimizer.param_groups[0]["mine"] = 3.0
        made = step_capture.capture_step(
            model, optimizer, None, [torch.tensor([1], device="neuron")], scheduled=frozenset({(0, "mine", None)})
        )
        assert isinstance(optimizer.param_groups[0]["initial_lr"], torch.Tensor)
        return re.sub(r"detach\w*", "detach", to_text(made.graph, locations=True)).splitlines(), made.inputs

    ours = found()
    monkeypatch.setattr(step_capture, "put_updates", lambda *_: False)
    assert ours == found()
    assert puts


class Own(torch.optim.SGD):
    """A subclass may do anything."""


def other_numbers(parameters):
    return torch.optim.Adam(parameters, 0.01, betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Own(p, 0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),  # makes its state in the first step
        lambda p: torch.optim.Rprop(p, 0.1),
        other_numbers,
    ],
    ids=["a subclass", "no state yet", "of another kind", "numbers that are tensors"],
)
def test_other_optimizers_are_traced(make, puts):
    model = nn.Linear(4, 4).to("neuron")
    neuron.capture_step(model, make(model.parameters()), lambda m, x: m(x).sum(), [torch.ones(2, 4, device="neuron")])
    assert not puts


def test_sparse_gradients_are_traced(puts):
    model = nn.Embedding(5, 4, sparse=True).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    neuron.capture_step(model, optimizer, lambda m, x: m(x).sum(), [torch.tensor([1, 3], device="neuron")])
    assert not puts


def test_a_function_of_pytorchs_that_was_replaced_is_traced(puts, monkeypatch):
    """It may look at all parameters."""
    module = sys.modules["torch.optim.sgd"]
    theirs = module.sgd

    def normalised(parameters, gradients, *arguments, **options):
        norm = torch.stack([g.norm() for g in gradients]).norm()
        return theirs(parameters, [g / norm for g in gradients], *arguments, **options)

    monkeypatch.setattr(module, "sgd", normalised)
    model = nn.Linear(4, 4).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    neuron.capture_step(model, optimizer, lambda m, x: m(x).sum(), [torch.ones(2, 4, device="neuron")])
    assert not puts


def test_a_step_of_pytorchs_that_was_replaced_is_traced(puts, monkeypatch):
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, closure=None: None)
    model = nn.Linear(4, 4).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    made = neuron.capture_step(model, optimizer, lambda m, x: m(x).sum(), [torch.ones(2, 4, device="neuron")])
    assert not puts
    assert [role.kind for role in made.outputs] == ["loss"]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("seen", [lambda w: w[1:], lambda w: w.t(), lambda w: w, lambda w: w.detach().view(-1)])
def test_what_sees_a_parameters_memory_sees_its_update(kind, seen, puts):
    """As in eager PyTorch: the loss function returns a view, which has what the optimizer wrote."""
    reference = nn.Linear(4, 3)
    model = copy.deepcopy(reference).to("neuron")
    theirs, ours = (kind(m.parameters(), 0.5, weight_decay=0.1) for m in (reference, model))
    with engine(TRN1, Beside):
        step = neuron.compile_step(model, ours, lambda m, x: (m(x).square().mean(), seen(m.weight)))
        for i in range(2):
            x = torch.full((2, 4), 1.5 + i)
            _, found = step(x.to("neuron"))
            theirs.zero_grad()
            reference(x).square().mean().backward()
            theirs.step()
            assert worst_error(found, seen(reference.weight)) <= 1e-5
    assert puts


def test_one_parameter_in_two_groups_is_updated_by_each(puts):
    """PyTorch refuses it where groups are made, and takes it where somebody appends to a group."""
    reference = nn.Linear(3, 3, bias=False)
    model = copy.deepcopy(reference).to("neuron")
    theirs, ours = (torch.optim.SGD(m.parameters(), 0.1, weight_decay=0.5) for m in (reference, model))
    for optimizer in (theirs, ours):
        group = optimizer.param_groups[0]
        optimizer.param_groups.append({**group, "lr": 0.3})
    with engine(TRN1, Beside):
        neuron.compile_step(model, ours, lambda m, x: m(x).square().mean())(torch.ones(2, 3, device="neuron"))
    reference(torch.ones(2, 3)).square().mean().backward()
    theirs.step()
    assert worst_error(model.weight, reference.weight) <= 1e-6
    assert puts


def test_gradients_that_share_memory_are_read_by_each_update(puts):
    """What autograd gives for a sum is one element, expanded, for both parameters."""
    start = [nn.Parameter(torch.full((2, 3), v)) for v in (1.0, -2.0)]
    reference, model = nn.ParameterList(start), copy.deepcopy(nn.ParameterList(start)).to("neuron")
    theirs, ours = (torch.optim.AdamW(m.parameters(), 0.1) for m in (reference, model))
    loss = lambda m: (m[0] + m[1]).sum()  # noqa: E731
    with engine(TRN1, Beside):
        step = neuron.compile_step(model, ours, loss, max_norm=0.5)
        for _ in range(2):
            step()
            theirs.zero_grad()
            loss(reference).backward()
            nn.utils.clip_grad_norm_(reference.parameters(), 0.5, foreach=False)
            theirs.step()
    for p, q in itertools.zip_longest(model.parameters(), reference.parameters()):
        assert worst_error(p, q) <= 1e-5
    assert puts
