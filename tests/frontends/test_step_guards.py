# SPDX-License-Identifier: Apache-2.0
"""A captured step knows what it depended on: whatever changes between steps, it trains as eager PyTorch does.

Every case is trained twice, step by step: eagerly on the CPU, and with `compile_step`, on the graph's interpreter and
on the simulated chip. Losses, other results, parameters, buffers and all else that a case names must agree.
"""

import copy
import random
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import Beside, worst_error
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.runtime import session

pytestmark = pytest.mark.torch

CASES = {}
SCALE = 1.0
SETTINGS = SimpleNamespace(temperature=1.0, inner={"weights": [1.0, 2.0]})
GLOBAL_TENSOR = {}


@dataclass
class Setup:
    """What is trained. between(i) runs after step i; watched: further tensors (or functions that give one)."""

    model: nn.Module
    optimizer: Any
    loss: Any = None
    between: Any = lambda i: None
    watched: list = field(default_factory=list)
    batch: Any = None
    steps: int = 3
    max_norm: float | None = None
    scheduler: Any = None


def case(function):
    """`function(to)` makes a Setup whose tensors went through `to`."""
    CASES[function.__name__] = function
    return function


def data(i, to):
    generator = torch.Generator().manual_seed(i)
    return to(torch.randn(6, 4, generator=generator)), to(torch.randint(3, (6,), generator=generator))


def classify(model, x, y):
    return F.cross_entropy(model(x), y)


def classify_ids(model, ids):
    return F.cross_entropy(model(ids), ids.clamp(max=2))


def linear(to, *sizes):
    torch.manual_seed(3)
    return to(nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes))))


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.5, **options})


def eager(setup):
    """The reference; yields what each step gives."""

    def step(*batch):
        setup.optimizer.zero_grad()
        setup.model.zero_grad()
        result = setup.loss(setup.model, *batch)
        loss = result[0] if isinstance(result, tuple) else result
        loss.backward()
        if setup.max_norm is not None:
            nn.utils.clip_grad_norm_(setup.model.parameters(), setup.max_norm)
        setup.optimizer.step()
        return result

    return step


def captured(setup):
    return neuron.compile_step(setup.model, setup.optimizer, setup.loss, max_norm=setup.max_norm)


def trained(make, kind, to):
    """All tensors that can be seen after each step."""
    seen = []
    setup = make(to)
    step = kind(setup)
    for i in range(setup.steps):
        result = step(*(setup.batch or (lambda i: data(i, to)))(i))
        if setup.scheduler is not None:
            setup.scheduler.step()
        watched = [w() if callable(w) else w for w in setup.watched]
        tensors = torch.utils._pytree.tree_leaves(result) + watched
        tensors += [*setup.model.parameters(), *setup.model.buffers()]
        seen.append([t.detach().cpu().clone() if isinstance(t, torch.Tensor) else t for t in tensors])
        setup.between(i)
    return seen


@pytest.fixture(scope="module")
def chip():
    return session.Session(chips.target("trn1.2xlarge"), "fp32")


@pytest.fixture
def engine(chip):
    """The chip, with the graph's interpreter beside it."""
    with session.activate(chip), neuron.use(Beside()):
        yield


def agree(got, expected):
    assert len(got) == len(expected)
    for i, (now, then) in enumerate(zip(got, expected)):
        assert len(now) == len(then)
        for a, b in zip(now, then):
            if isinstance(b, torch.Tensor):
                assert a.dtype == b.dtype, f"step {i}"
                assert worst_error(a, b) <= 2e-5, f"step {i}"
            else:
                assert a == b, f"step {i}"


# -- requires_grad --------------------------------------------------------------------------------------------------
@case
def frozen_in_the_optimizer(to):
    model = linear(to, 4, 4, 3)
    model[0].requires_grad_(False)
    return Setup(model, sgd(model, weight_decay=0.1), classify)


@case
def frozen_ones_count_in_no_norm(to):
    model = linear(to, 4, 4, 3)
    model[0].requires_grad_(False)
    return Setup(model, sgd(model), classify, max_norm=0.01)


@case
def frozen_and_thawed(to):
    model = linear(to, 4, 4, 3)
    return Setup(
        model,
        torch.optim.AdamW(model.parameters(), 0.1),
        classify,
        lambda i: model[0].requires_grad_(i % 2 == 1),
        steps=4,
    )


@case
def whole_numbers_and_unused_parameters(to):
    model = linear(to, 4, 4, 3)
    model.register_parameter("table", nn.Parameter(to(torch.arange(4)), requires_grad=False))
    model.register_parameter("unused", nn.Parameter(to(torch.ones(3))))
    return Setup(model, sgd(model, weight_decay=0.1), lambda m, x, y: F.cross_entropy(m(x[:, m.table]), y))


@case
def an_optimizer_of_a_part(to):
    model = linear(to, 4, 4, 3)
    return Setup(model, sgd(model[1]), classify, max_norm=0.1)


@case
def two_groups(to):
    model = linear(to, 4, 4, 3)
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[1].parameters(), "weight_decay": 0.1}]
    return Setup(model, torch.optim.AdamW(groups, 0.05), classify)


@case
def parameters_that_only_the_optimizer_has(to):
    model, scale = linear(to, 4, 3), nn.Parameter(to(torch.tensor([1.5])))
    return Setup(
        model,
        torch.optim.AdamW([*model.parameters(), scale], 0.1),
        lambda m, x, y: F.cross_entropy(m(x) * scale, y),
        watched=[scale],
    )


class Registry(dict):
    """As in Hugging Face's models: its methods do not keep to those of a dictionary."""

    def get(self, key):
        return super().get(str(key)) or 1.0

    def __setitem__(self, key, value):
        super().__setitem__(str(key), value)


@case
def a_dictionary_with_methods_of_its_own(to):
    model, registry = linear(to, 4, 3), Registry()

    def between(i):
        registry[model.__class__] = 2.0 + i

    return Setup(model, sgd(model), lambda m, x, y: classify(m, x * registry.get(m.__class__), y), between)


@case
def tied_parameters(to):
    model = linear(to, 4, 4, 4)
    model[1].weight = model[0].weight
    return Setup(model, sgd(model), lambda m, x, y: classify(m, x, y))


@case
def a_parameter_replaced(to):
    model = linear(to, 4, 4, 3)
    optimizer = sgd(model)

    def between(i):
        model[0].weight = nn.Parameter(to(torch.full((4, 4), 0.1)))
        if i == 1:
            optimizer.param_groups[0]["params"][0] = model[0].weight

    return Setup(model, optimizer, classify, between, steps=4)


# -- Python state ---------------------------------------------------------------------------------------------------
class Scaled(nn.Module):
    """A model that reads a number of its own."""

    factor = 1.0

    def __init__(self):
        super().__init__()
        self.linear, self.scale, self.config = nn.Linear(4, 3), 1.0, SimpleNamespace(bias=0.0, mode="plain")

    def forward(self, x):
        y = self.linear(x) * self.scale * self.factor + self.config.bias
        return y.tanh() if self.config.mode == "tanh" else y


def scaled(to, between):
    torch.manual_seed(1)
    model = to(Scaled())
    return Setup(model, sgd(model), classify, lambda i: between(model, i), steps=4)


@case
def a_number_of_the_model(to):
    return scaled(to, lambda m, i: setattr(m, "scale", [2.0, 2, -0.0][i % 3]))


@case
def a_number_of_the_class(to):
    def between(m, i):
        Scaled.factor = 3.0 if i == 0 else 1.0

    return scaled(to, between)


@case
def a_number_that_hides_that_of_the_class(to):
    return scaled(to, lambda m, i: setattr(m, "factor", 2.0))


@case
def a_config_object(to):
    return scaled(to, lambda m, i: setattr(m.config, *[("bias", 2.0), ("mode", "tanh")][i % 2]))


@case
def a_config_object_replaced(to):
    return scaled(to, lambda m, i: setattr(m, "config", SimpleNamespace(bias=float(i // 2), mode="plain")))


@case
def a_method_replaced(to):
    return scaled(to, lambda m, i: setattr(m, "forward", lambda x: m.linear(x) * 0.1))


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


@case
def an_object_with_slots(to):
    settings = Slotted(1.0)
    model = linear(to, 4, 3)
    return Setup(
        model,
        sgd(model),
        lambda m, x, y: classify(m, x, y) * settings.scale,
        lambda i: setattr(settings, "scale", i + 2.0),
    )


@case
def a_number_in_a_closure(to):
    model, weight, listed = linear(to, 4, 3), 1.0, [1.0]

    def between(i):
        nonlocal weight
        weight, listed[0] = weight + i, listed[0] + 1

    return Setup(model, sgd(model), lambda m, x, y: classify(m, x, y) * weight * listed[0], between)


@case
def a_global_number(to):
    global SCALE
    SCALE = 1.0
    model = linear(to, 4, 3)

    def between(i):
        global SCALE
        SCALE = 3.0

    return Setup(model, sgd(model), lambda m, x, y: classify(m, x, y) * SCALE, between)


@case
def deep_in_a_global_object(to):
    SETTINGS.temperature, SETTINGS.inner = 1.0, {"weights": [1.0, 2.0]}
    model = linear(to, 4, 3)

    def loss(m, x, y):
        return F.cross_entropy(m(x) / SETTINGS.temperature, y) * SETTINGS.inner["weights"][1]

    def between(i):
        SETTINGS.inner["weights"][1] += 1.0
        SETTINGS.temperature += i

    return Setup(model, sgd(model), loss, between)


@case
def through_a_helper_function(to):
    model, options = linear(to, 4, 3), {"smooth": 0.0}

    def helper(logits, y, options=options, *, gain=[1.0]):  # noqa: B006  (the default is what is tested)
        return F.cross_entropy(logits, y, label_smoothing=options["smooth"]) * gain[0]

    def between(i):
        options["smooth"] += 0.1
        helper.__kwdefaults__["gain"][0] += 1.0

    return Setup(model, sgd(model), lambda m, x, y: helper(m(x), y), between)


@case
def dropout_turned_on_and_off(to):
    """Only the two extremes have a result that is not random."""
    torch.manual_seed(0)
    model = to(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)))
    return Setup(model, sgd(model), classify, lambda i: setattr(model[1], "p", 1.0 - model[1].p), steps=3)


@case
def epsilon_of_a_norm(to):
    torch.manual_seed(0)
    model = to(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)))
    return Setup(model, sgd(model), classify, lambda i: setattr(model[1], "eps", model[1].eps * 1e4))


@case
def evaluation_and_training(to):
    torch.manual_seed(0)
    model = to(nn.Sequential(nn.Linear(4, 3), nn.Dropout(1.0)))
    return Setup(model, sgd(model), classify, lambda i: model.train(i % 2 == 1), steps=4)


@case
def a_module_replaced(to):
    model = linear(to, 4, 4, 3)

    def between(i):
        model[0].add_module("unused", nn.Identity())
        model[1] = nn.Sequential(nn.Tanh(), model[1]) if i == 0 else model[1]

    return Setup(model, sgd(model), classify, between)


@case
def the_default_dtype(to):
    model = linear(to, 4, 3)

    def loss(m, x, y):
        return classify(m, x, y) * torch.tensor(1.0).to(torch.float32)

    return Setup(model, sgd(model), loss)


@case
def optimizer_settings(to):
    model = linear(to, 4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    settings = [{"weight_decay": 1.0}, {"betas": (0.5, 0.6)}, {"eps": 0.1}, {"maximize": True}]
    return Setup(model, optimizer, classify, lambda i: optimizer.param_groups[0].update(settings[i % 4]), steps=5)


@case
def a_cycle_of_rate_and_momentum(to):
    model = linear(to, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=8)
    return Setup(model, optimizer, classify, scheduler=schedule, steps=3)


@case
def a_schedule(to):
    model = linear(to, 4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    return Setup(model, optimizer, classify, scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))


@case
def a_warm_up_that_starts_at_nothing(to):
    """With a rate of 0 and moments of 0 (an unused parameter that decays) nothing may become NaN."""
    torch.manual_seed(0)
    model = to(nn.Embedding(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: i / 3)
    return Setup(model, optimizer, classify_ids, scheduler=schedule, batch=lambda i: [to(torch.tensor([i, 1, 1]))])


@case
def an_optimizers_state_loaded(to):
    model = linear(to, 4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def between(i):
        state = optimizer.state_dict()
        for entry in state["state"].values():
            entry["exp_avg"] = entry["exp_avg"] * 2
            entry["step"] = entry["step"] + 3
        optimizer.load_state_dict(state)

    return Setup(model, optimizer, classify, between)


# -- tensors from elsewhere -----------------------------------------------------------------------------------------
@case
def a_tensor_in_a_closure(to):
    model, weights = linear(to, 4, 3), to(torch.tensor([1.0, 2.0, 3.0]))
    return Setup(model, sgd(model), lambda m, x, y: (m(x) * weights).square().mean(), lambda i: weights.mul_(2.0))


@case
def a_tensor_in_a_closure_rebound(to):
    model, held = linear(to, 4, 3), {"weights": to(torch.ones(3))}

    def between(i):
        held["weights"] = to(torch.full((3,), i + 2.0))

    return Setup(model, sgd(model), lambda m, x, y: (m(x) * held["weights"]).square().mean(), between)


@case
def a_teacher_that_follows(to):
    """The exponential moving average of the model, as self-distillation has it."""
    model, teacher = linear(to, 4, 4, 3), linear(to, 4, 4, 3).requires_grad_(False)

    @torch.no_grad()
    def between(i):
        for p, q in zip(model.parameters(), teacher.parameters()):
            q.mul_(0.5).add_(p, alpha=0.5)

    def loss(m, x, y):
        with torch.no_grad():
            target = teacher(x)
        return classify(m, x, y) + F.mse_loss(m(x), target)

    return Setup(model, sgd(model), loss, between)


@case
def a_teacher_that_follows_within_the_step(to):
    model, teacher = linear(to, 4, 3), linear(to, 4, 3).requires_grad_(False)

    def loss(m, x, y):
        with torch.no_grad():
            for p, q in zip(m.parameters(), teacher.parameters()):
                q.mul_(0.5).add_(p, alpha=0.5)
        return classify(m, x, y) + F.mse_loss(m(x), teacher(x))

    return Setup(model, sgd(model), loss, watched=[*teacher.parameters()])


@case
def a_number_read_from_a_tensor_outside(to):
    model, factor = linear(to, 4, 3), to(torch.tensor(2.0))
    return Setup(model, sgd(model), lambda m, x, y: classify(m, x, y) * factor.item(), lambda i: factor.add_(1.0))


@case
def a_list_of_the_models_own_parameters(to):
    model = linear(to, 4, 3)
    model.listed = [p for p in model.parameters() if p.dim() > 1]
    return Setup(
        model, sgd(model), lambda m, x, y: classify(m, x, y) + 0.1 * sum(p.square().sum() for p in m.listed), steps=3
    )


@case
def a_numpy_array(to):
    model, weights = linear(to, 4, 3), np.array([1.0, 2.0, 3.0], np.float32)

    def loss(m, x, y):
        return (m(x) * torch.tensor(weights.tolist(), device=x.device)).square().mean()

    def between(i):
        weights[1] += 1.0

    return Setup(model, sgd(model), loss, between)


class Average(nn.Module):
    """A buffer that is assigned, not written."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("late", None)

    def forward(self, x):
        y = self.linear(x)
        self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
        self.late = self.average * 2 if self.late is None else self.late + 1
        return y + self.average


@case
def buffers_assigned(to):
    torch.manual_seed(0)
    model = to(Average())
    return Setup(model, sgd(model), classify)


# -- what the step does to Python -----------------------------------------------------------------------------------
class Remembering(nn.Module):
    """Keeps what it computed on itself: a loss for the trainer to add, a state for the next step, all in a list."""

    def __init__(self):
        super().__init__()
        self.linear, self.state, self.extra, self.cache = nn.Linear(4, 4), None, None, {}

    def forward(self, x):
        y = self.linear(x)
        if self.state is not None:
            y = y + 0.1 * self.state
        if "ramp" not in self.cache:
            self.cache["ramp"] = torch.arange(4, device=x.device) * 0.1
        self.state, self.extra = y.detach().mean(0), y.square().mean()
        return y + self.cache["ramp"]


@case
def tensors_kept_on_the_model(to):
    torch.manual_seed(0)
    model = to(Remembering())

    def loss(m, x, y):
        return F.cross_entropy(m(x), y) + m.extra

    return Setup(
        model,
        sgd(model),
        loss,
        watched=[lambda: model.state, lambda: model.extra, lambda: model.cache["ramp"]],
        steps=4,
    )


@case
def results_appended_to_a_list(to):
    model, history = linear(to, 4, 3), []

    def loss(m, x, y):
        loss = classify(m, x, y)
        history.append(loss.detach())
        return loss

    return Setup(model, sgd(model), loss, watched=[lambda: torch.stack([h.cpu() for h in history]).sum()])


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


@case
def a_counter_in_forward(to):
    torch.manual_seed(0)
    model = to(Counter())
    return Setup(model, sgd(model), classify, watched=[lambda: model.calls])


@case
def numbers_drawn_in_python(to):
    model = linear(to, 4, 3)
    random.seed(5)
    np.random.seed(5)

    def loss(m, x, y):
        return classify(m, x, y) * random.random() + float(np.random.rand())

    return Setup(model, sgd(model), loss)


@case
def a_generator_of_numbers_in_python(to):
    model, source = linear(to, 4, 3), random.Random(5)
    return Setup(model, sgd(model), lambda m, x, y: classify(m, x, y) * source.random())


# -- hooks ----------------------------------------------------------------------------------------------------------
@case
def hooks_on_modules(to):
    model, gain = linear(to, 4, 4, 3), [2.0]
    model[0].register_forward_hook(lambda module, args, out: out * gain[0])
    model[1].register_forward_pre_hook(lambda module, args: (args[0].tanh(),))
    model[1].register_full_backward_hook(lambda module, grads, outs: tuple(g * gain[0] for g in grads))

    def between(i):
        gain[0] += 1.0
        if i == 1:
            model[0].register_forward_hook(lambda module, args, out: out + 1.0)

    return Setup(model, sgd(model), classify, between, steps=4)


@case
def hooks_on_gradients(to):
    model = linear(to, 4, 4, 3)
    model[0].weight.register_hook(lambda g: g * 0.5)

    def doubled(p):
        p.grad.mul_(2.0)

    model[1].weight.register_post_accumulate_grad_hook(doubled)

    def loss(m, x, y):
        hidden = m[0](x)
        hidden.register_hook(lambda g: g * 3.0)
        return F.cross_entropy(m[1](hidden), y)

    def between(i):
        model[1].bias.register_hook(lambda g: g * 0.0)

    return Setup(model, sgd(model), loss, between)


@case
def hooks_of_the_optimizer(to):
    model, seen = linear(to, 4, 3), []
    optimizer = sgd(model)

    def before(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.clamp_(-0.01, 0.01)

    def after(optimizer, args, kwargs):
        seen.append(1)
        with torch.no_grad():
            model[0].weight.clamp_(-0.2, 0.2)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return Setup(model, optimizer, classify, watched=[lambda: len(seen)])


# -- batches and results --------------------------------------------------------------------------------------------
@case
def writes_to_the_batch(to):
    model, batch = linear(to, 4, 3), data(0, to)

    def loss(m, x, y):
        x.mul_(0.5)
        return classify(m, x, y)

    return Setup(model, sgd(model), loss, batch=lambda i: batch, watched=[batch[0]])


@case
def several_results(to):
    model = linear(to, 4, 3)

    def loss(m, x, y):
        logits = m(x)
        return F.cross_entropy(logits, y), {"logits": logits.detach().t(), "rows": len(x)}, [x], None

    return Setup(model, sgd(model), loss)


@case
def a_loss_of_one_element(to):
    model = linear(to, 4, 3)
    return Setup(model, sgd(model), lambda m, x, y: classify(m, x, y).reshape(1))


@case
def the_gradient_of_a_gradient(to):
    model = linear(to, 4, 4, 3)

    def loss(m, x, y):
        loss = m(x).tanh().square().mean()
        (grad,) = torch.autograd.grad(loss, m[0].weight, create_graph=True)
        return loss + grad.square().sum()

    return Setup(model, sgd(model), loss)


@dataclass
class Samples:
    x: torch.Tensor
    y: torch.Tensor
    weight: float = 1.0


@case
def an_object_as_batch(to):
    model = linear(to, 4, 3)

    def loss(m, samples):
        return classify(m, samples.x, samples.y) * samples.weight

    return Setup(model, sgd(model), loss, batch=lambda i: [Samples(*data(i, to), weight=1.0 + i // 2)], steps=4)


# -- optimizers -----------------------------------------------------------------------------------------------------
@case
def adagrad(to):
    model = linear(to, 4, 3)
    return Setup(model, torch.optim.Adagrad(model.parameters(), 0.1, lr_decay=0.1, weight_decay=0.01), classify)


# -- modules that other devices have fused operators for ----------------------------------------------------------
class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.linear = kind(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(self.cell(x[None])[0][0])


@case
def gru(to):
    torch.manual_seed(0)
    model = to(Recurrent(nn.GRU))
    return Setup(model, sgd(model), classify, steps=2)


@case
def lstm(to):
    torch.manual_seed(0)
    model = to(Recurrent(nn.LSTM))
    return Setup(model, sgd(model), classify, steps=2)


@pytest.mark.parametrize("name", CASES)
def test_as_eager_training(name, engine):
    expected = trained(CASES[name], eager, lambda x: x)
    agree(trained(CASES[name], captured, lambda x: x.to("neuron")), expected)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_recurrent_layer_is_captured_once(kind, capfd):
    """It holds its weights a second time, in a list; afterwards that has the real ones, and copies of it train."""
    model = Recurrent(kind).to("neuron")
    with session.activate(session.Session(chips.target("trn1"), "fp32")):
        step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), 0.1), classify)
        for i in range(2):
            step(*data(i, lambda t: t.to("neuron")))
        assert model.cell._flat_weights == list(model.cell.parameters())
        other = copy.deepcopy(model)
        step = neuron.compile_step(other, torch.optim.SGD(other.parameters(), 0.1), classify)
        step(*data(2, lambda t: t.to("neuron")))
    assert "captured again" not in capfd.readouterr().err


def test_what_libraries_do_by_themselves_is_no_change(tmp_path, monkeypatch, capfd):
    """A thread of tqdm writes down when it last looked, modules of transformers make attributes when they are asked
    for; a step that could read any attribute (getattr with a computed name) sees both."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "progress.py").write_text(
        "import threading\nclass Monitor(threading.Thread):\n    woken = 0.0\n"
        "monitor = Monitor()\nmonitor.woken = 1.0\n"
    )
    (site / "lazy.py").write_text(
        "def __getattr__(name):\n    if name != 'SCALE':\n        raise AttributeError(name)\n"
        "    globals()[name] = 2.0\n    return 2.0\n"
    )
    monkeypatch.syspath_prepend(str(site))
    import lazy
    import progress

    model, name = nn.Linear(4, 3).to("neuron"), "bias"

    def loss(net, x, y):
        known = (progress.monitor, lazy, getattr(net, name))
        return F.cross_entropy(net(x), y) * len(known)

    with session.activate(session.Session(chips.target("trn1"), "fp32")):
        step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
        for i in range(3):
            step(*data(i, lambda t: t.to("neuron")))
            progress.monitor.woken += 1.0
            assert lazy.SCALE == 2.0
    assert "captured again" not in capfd.readouterr().err


torch.fx.wrap("doubled")


def doubled(x):
    return 2 * x


def test_a_function_that_fx_would_wrap_is_no_change(capfd):
    """torchvision names its window attention so; FX replaces such functions while it traces."""
    model = nn.Linear(4, 3).to("neuron")
    with session.activate(session.Session(chips.target("trn1"), "fp32")):
        step = neuron.compile_step(
            model, torch.optim.SGD(model.parameters(), 0.1), lambda net, x, y: F.cross_entropy(doubled(net(x)), y)
        )
        for i in range(2):
            step(*data(i, lambda t: t.to("neuron")))
    assert "captured again" not in capfd.readouterr().err
    assert torch.fx._symbolic_trace._wrapped_fns_to_patch, "FX knows it afterwards"


def test_a_module_that_is_imported_meanwhile_is_no_change(tmp_path, monkeypatch, capfd):
    """Libraries import others when they are first used: what that makes and changes is not the step's doing."""
    (tmp_path / "late_module.py").write_text("TABLE = {}\nfor i in range(3):\n    TABLE[i] = [i]\nSCALE = 2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    model = nn.Linear(4, 3).to("neuron")

    def loss(net, x, y):
        import late_module

        return F.cross_entropy(net(x) * late_module.SCALE, y)

    with session.activate(session.Session(chips.target("trn1"), "fp32")):
        step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
        for i in range(2):
            step(*data(i, lambda t: t.to("neuron")))
    assert "captured again" not in capfd.readouterr().err
