# SPDX-License-Identifier: Apache-2.0
"""When a step is captured again, and what is said about it: once per change, never without one."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnlab.frontends.torch as neuron

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def interpreter():
    with neuron.use(neuron.InterpreterEngine()):
        yield


def data(rows=6):
    return torch.ones(rows, 4, device="neuron"), torch.zeros(rows, dtype=torch.int64, device="neuron")


def made(model, loss=None):
    model = model.to("neuron")
    loss = loss or (lambda m, x, y: F.cross_entropy(m(x), y))
    return neuron.compile_step(model, torch.optim.AdamW(model.parameters(), 0.1), loss)


class Noted(nn.Module):
    """Much that changes between steps, and that the step does not read."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale, self.log, self.seen = nn.Linear(4, 3), 1.0, [], 0

    def forward(self, x):
        return self.linear(x) * self.scale


def test_what_the_step_does_not_read_may_change(capfd):
    step, teacher = made(Noted()), torch.ones(3, device="neuron")
    step.loss_fn = lambda m, x, y: F.cross_entropy(m(x) * teacher, y)
    for i in range(4):
        step(*data())
        step.model.log.append(i)
        step.model.seen += 1
        step.model.note = f"step {i}"
        teacher.mul_(0.9)
        step.optimizer.param_groups[0]["lr"] *= 0.5
        step.optimizer.zero_grad()
    assert len(step._programs) == 1
    assert "again" not in capfd.readouterr().err


def test_the_same_values_in_other_objects_are_no_change(capfd):
    step = made(Noted())
    for _ in range(3):
        step.model.scale = float("1.0")
        step.model.config = {"a": [1.0, (2, "x")], "b": nn.Identity}
        step.loss_fn = lambda m, x, y, config=step.model.config: F.cross_entropy(m(x), y) * config["a"][0]
        step(*data())
    assert len(step._programs) == 1
    assert "again" not in capfd.readouterr().err


def changes(capfd, step, *actions):
    """What is said about each of the changes."""
    step(*data())
    said = []
    for action in actions:
        capfd.readouterr()
        action()
        step(*data())
        lines = [line for line in capfd.readouterr().err.splitlines() if "captured again" in line]
        said.append(lines[0].partition("captured again: ")[2] if lines else None)
    return said


def test_the_change_is_named(capfd):
    step, gain, model = made(Noted()), [1.0], Noted()
    step = made(model, lambda m, x, y: F.cross_entropy(m(x), y) * gain[0])
    group = step.optimizer.param_groups[0]
    assert changes(
        capfd,
        step,
        lambda: setattr(model, "scale", 2.0),
        lambda: gain.__setitem__(0, 3.0),
        lambda: group.update(weight_decay=0.5),
        lambda: model.eval(),
        lambda: model.linear.weight.requires_grad_(False),
    ) == [
        "model.scale was 1.0, is 2.0",
        "gain in <lambda>[0] was 1.0, is 3.0",
        "optimizer.param_groups[0]['weight_decay'] was 0.01, is 0.5: an input from now on",
        None,  # nothing in this model asks whether it trains
        "parameter 'linear.weight' was float32[3, 4] on neuron, requires_grad=True, "
        "is float32[3, 4] on neuron, requires_grad=False",
    ]


def test_what_toggles_is_captured_once_each(capfd):
    step = made(Noted())
    for i in range(6):
        step.model.scale = [1.0, 2.0][i % 2]
        step(*data(rows=[6, 3][i // 3]))
    assert len(step._programs) == 4


def test_switches_of_pytorch(capfd):
    step = made(Noted())
    with_autocast = torch.autocast("neuron", torch.bfloat16)
    said = changes(capfd, step, with_autocast.__enter__, lambda: with_autocast.__exit__(None, None, None))
    assert said == ["autocast of 'neuron' was off, is torch.bfloat16", None]
    torch.set_default_dtype(torch.float16)
    try:
        assert changes(capfd, step, lambda: None) == [None]
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(step._programs) == 3


def test_the_environment(capfd, monkeypatch):
    monkeypatch.setenv("GAIN", "1.0")
    step = made(Noted(), lambda m, x, y: F.cross_entropy(m(x), y) * float(os.environ["GAIN"]))
    first = step(*data()).item()
    monkeypatch.setenv("GAIN", "0.0")
    assert step(*data()).item() == 0.0 != first


def test_a_change_that_comes_at_every_step_is_told_twice(capfd):
    class Counter(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    step = made(Counter(4, 3))
    for _ in range(5):
        step(*data())
    assert step.model.calls == 5
    lines = [line for line in capfd.readouterr().err.splitlines() if "captured again" in line]
    assert len(lines) == 2
    assert all("keep it in a tensor" in line for line in lines)


class Strange:
    """An object whose class answers for every name, as wrappers of foreign libraries do."""

    def __init__(self):
        object.__setattr__(self, "factor", 1.0)

    def __getattribute__(self, name):
        return object.__getattribute__(self, "factor") if name == "factor" else 7


def test_objects_that_answer_for_every_name():
    strange = Strange()
    step = made(Noted(), lambda m, x, y: F.cross_entropy(m(x), y) * strange.factor)
    first = step(*data()).item()
    object.__setattr__(strange, "factor", 0.0)
    assert step(*data()).item() == 0.0 != first
