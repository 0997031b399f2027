# SPDX-License-Identifier: Apache-2.0
"""State of Python's that a loss takes its numbers from: whatever moves on or is changed, the step follows it."""

import array
import collections
import contextvars
import datetime
import functools
import itertools
import os
import queue
import random
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import worst_error
from torch import nn

import trnlab.frontends.torch as neuron

pytestmark = pytest.mark.torch
NUMBERS = (1.0, 2.0, 3.0, 4.0)
CLOCK = SimpleNamespace(started=datetime.datetime.now())


class Kept:
    k = 1.0


def read(path):
    with open(path) as file:
        return float(file.read())


def full(value, to):
    return to(torch.full((3,), value))


# Each makes, in a folder and with `to`: a function that gives the loss a factor, and what changes after step i.
def taken():
    """What moves on by being taken from."""
    generator = (x for x in NUMBERS)
    return {
        "an iterator": functools.partial(next, iter(NUMBERS)),
        "a generator": lambda: next(generator),
        "a zip": functools.partial(lambda z: next(z)[0], zip(NUMBERS, NUMBERS, strict=True)),
        "a cycle": functools.partial(next, itertools.cycle(NUMBERS[:2])),
        "a count": functools.partial(next, itertools.count(1)),
        "a method of an iterator": iter(NUMBERS).__next__,
        "a deque": collections.deque(NUMBERS).popleft,
        "a queue": functools.partial(lambda q: q.get(), filled(queue.Queue())),
        "a queue of C's": functools.partial(lambda q: q.get(), filled(queue.SimpleQueue())),
        "a generator of numbers": random.Random(3).random,
        "one of NumPy": functools.partial(lambda r: r.random(), np.random.default_rng(3)),
    }


def filled(empty):
    for x in NUMBERS:
        empty.put(x)
    return empty


def changed(folder, to):
    """What is changed from outside: the factor, and the change."""
    numbers, local, table = array.array("d", NUMBERS), threading.local(), collections.UserDict(k=1.0)
    order, variable, kept = {"a": 1.0, "b": 2.0}, contextvars.ContextVar("kept"), Kept()
    one, hung, file = SimpleNamespace(), torch.ones(3), folder / "number"
    pair, local.k, hung.k = SimpleNamespace(a=one, b=one), 1.0, 1.0
    variable.set(kept)
    file.write_text("1")
    same = full(1.0, to)
    tensors = [same, same]
    ring = [full(x, to) for x in NUMBERS[:3]]
    weak = weakref.proxy(kept)
    distribution = torch.distributions.Normal(full(0.0, to), full(1.0, to))

    @functools.lru_cache
    def cached():
        return kept

    cached()

    def rotate(i):
        key = next(iter(order))
        order[key] = order.pop(key)

    return {
        "an array": (lambda: numbers[0], lambda i: numbers.__setitem__(0, i + 2.0)),
        "a view of memory": (
            functools.partial(lambda v: v[0], memoryview(numbers)),
            lambda i: numbers.__setitem__(0, i + 2.0),
        ),
        "a thread's own": (lambda: local.k, lambda i: setattr(local, "k", i + 2.0)),
        "a dictionary's order": (lambda: next(iter(order.values())), rotate),
        "a dictionary of Python's own": (lambda: table["k"], lambda i: table.__setitem__("k", i + 2.0)),
        "a context variable": (lambda: variable.get().k, lambda i: setattr(kept, "k", i + 2.0)),
        "a weak proxy": (lambda: weak.k, lambda i: setattr(kept, "k", i + 2.0)),
        "a cache": (lambda: cached().k, lambda i: setattr(kept, "k", i + 2.0)),
        "a file": (lambda: read(file), lambda i: file.write_text(str(i + 2))),
        "a path": (lambda: float(Path(file).read_text()), lambda i: file.write_text(str(i + 2))),
        "whether a file is there": (lambda: 1.0 + os.path.exists(file), lambda i: file.unlink(missing_ok=True)),
        "which objects are one": (
            lambda: 1.0 if pair.a is pair.b else 2.0,
            lambda i: setattr(pair, "b", SimpleNamespace() if i == 0 else pair.a),
        ),
        "which tensors are one": (
            lambda: 1.0 if tensors[0] is tensors[1] else 2.0,
            lambda i: tensors.__setitem__(1, full(1.0, to) if i == 0 else same),
        ),
        "what hangs on a tensor": (lambda: hung.k, lambda i: setattr(hung, "k", i + 2.0)),
        "tensors in turn": (lambda: ring[0] + 2 * ring[1] + 3 * ring[2], lambda i: ring.append(ring.pop(0))),
        "a distribution": (
            lambda: distribution.log_prob(full(1.0, to)),
            lambda i: setattr(distribution, "loc", full(i + 1.0, to)),
        ),
        "the clock": (
            lambda: 1.0 if (datetime.datetime.now() - CLOCK.started).days < 9 else 2.0,
            lambda i: setattr(CLOCK, "started", CLOCK.started - datetime.timedelta(10)),
        ),
    }


def trained(make, device, steps=3, hang=None):
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to(device)
    factor, change = make(lambda t: t.to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def loss(m, x):
        return (m(x) * (factor() if hang is None else hang(m, x))).pow(2).mean()

    step = neuron.compile_step(model, optimizer, loss) if device == "neuron" else None
    seen = []
    for i in range(steps):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i)).to(device)
        if step is not None:
            result = step(x)
        else:
            optimizer.zero_grad()
            result = loss(model, x)
            result.backward()
            optimizer.step()
        seen += [t.detach().cpu().clone() for t in (result, *model.parameters(), *model.buffers())]
        change(i)
    return seen


def agree(make, **options):
    with neuron.use(neuron.InterpreterEngine()):
        got = trained(make, "neuron", **options)
    for i, (a, b) in enumerate(zip(got, trained(make, "cpu", **options), strict=True)):
        assert worst_error(a, b) <= 2e-5, i


@pytest.mark.parametrize("name", taken())
def test_what_moves_on_by_being_taken_from(name):
    agree(lambda to: (taken()[name], lambda i: None))


@pytest.mark.parametrize(
    "name",
    [
        "an array",
        "a view of memory",
        "a thread's own",
        "a dictionary's order",
        "a dictionary of Python's own",
        "a context variable",
        "a weak proxy",
        "a cache",
        "a file",
        "a path",
        "whether a file is there",
        "which objects are one",
        "which tensors are one",
        "what hangs on a tensor",
        "tensors in turn",
        "a distribution",
        "the clock",
    ],
)
def test_what_is_changed_between_steps(name, tmp_path, monkeypatch):
    def make(to):
        monkeypatch.setattr(CLOCK, "started", datetime.datetime.now())
        return changed(tmp_path, to)[name]

    agree(make)


def test_a_number_that_hangs_on_a_parameter():
    def hang(model, x):
        model.weight.count = getattr(model.weight, "count", 0) + 1
        return model.weight.count

    agree(lambda to: (None, lambda i: None), hang=hang)


def test_a_tensor_that_the_step_puts_elsewhere():
    """It sets one attribute to what another one holds, which is another tensor at each step."""

    def make(to):
        held = SimpleNamespace(now=full(1.0, to), before=full(0.5, to))

        def factor():
            found = held.before * held.now
            held.before = held.now
            return found

        return factor, lambda i: setattr(held, "now", full(i + 2.0, to))

    agree(make, steps=4)


def test_an_average_over_all_batches():
    def train(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        step = neuron.compile_step(model, optimizer, lambda m, x: m(x).pow(3).mean()) if device == "neuron" else None
        for i in range(3):
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i)).to(device)
            if step is None:
                optimizer.zero_grad()
                model(x).pow(3).mean().backward()
                optimizer.step()
            else:
                step(x)
        assert step is None or len(step._programs) == 1
        return [t.detach().cpu() for t in model.state_dict().values()]

    with neuron.use(neuron.InterpreterEngine()):
        got = train("neuron")
    for a, b in zip(got, train("cpu"), strict=True):
        assert worst_error(a, b) <= 2e-5


def test_arrays_of_numpy_need_one_program(capfd):
    """What a step makes of watched memory has no place outside of it, and is no reason to capture again."""
    array_ = np.full(3, 2.0, np.float32)
    agree(lambda to: (lambda: to(torch.from_numpy(array_)), lambda i: None))
    assert "captured" not in capfd.readouterr().err


def test_the_reason_is_told(capfd):
    agree(lambda to: (taken()["a generator"], lambda i: None))
    told = capfd.readouterr().err
    assert "takes from generator in <lambda>" in told
    assert "each step is captured by itself" in told
