# SPDX-License-Identifier: Apache-2.0
"""Functions under `torch.compile(backend="neuron")` keep PyTorch's contract: values, strides, aliases, gradients.

Each function runs on the CPU as it is and on the simulated chip compiled; both must give, and do to their inputs, the
same.
"""

from __future__ import annotations

import logging
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.runtime import session

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class On:
    """Makes tensors on a device, and compiles where it is the simulated one."""

    def __init__(self, device):
        self.device = device

    def compiled(self, function, **options):
        return torch.compile(function, backend="neuron", **options) if self.device == "neuron" else function

    def tensor(self, *shape, grad=False, kind=None):
        torch.manual_seed(sum(shape) + len(shape))
        x = torch.randn(*shape)
        return (x if kind is None else (5 * x).to(kind)).to(self.device).requires_grad_(grad)

    def module(self, make):
        torch.manual_seed(0)
        return make().to(self.device)


def same(got, expected):
    if isinstance(expected, torch.Tensor):
        for about in ("dtype", "shape", "requires_grad"):
            assert getattr(got, about) == getattr(expected, about)
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    elif isinstance(expected, (tuple, list)):
        for a, b in zip(got, expected, strict=True):
            same(a, b)
    elif isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            same(got[key], expected[key])
    else:
        assert got == expected


@pytest.fixture(autouse=True)
def chip():
    torch.compiler.reset()
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")) as now:
        yield now


@case
def strides_of_results(on):
    def f(x):
        return x.transpose(0, 2) + 1, x.permute(1, 2, 0), x[:, ::2] * 2, x.expand(2, 3, 4, 5) + 1, torch.relu(x.mT)

    return on.compiled(f)(on.tensor(3, 4, 5))


@case
def results_that_share_memory(on):
    def f(x):
        y = x * 2
        return y, y.view(-1), y[1:], y.t()

    y, flat, rest, turned = on.compiled(f)(on.tensor(3, 4))
    flat.add_(1)
    rest.mul_(3)
    return y, flat, rest, turned


@case
def results_that_are_inputs(on):
    x = on.tensor(3)
    y, z, again = on.compiled(lambda x: (x, x + 1, x))(x)
    assert y is x
    assert again is x
    return y, z


@case
def views_of_inputs(on):
    x = on.tensor(3, 4)
    flat, rest = on.compiled(lambda x: (x.view(12), x[1:]))(x)
    flat.mul_(2)
    return flat, rest, x


@case
def gradients_through_views_of_inputs(on):
    x = on.tensor(3, 4, grad=True)
    turned, same_one = on.compiled(lambda x: (x.t(), x))(x)
    (turned.sum() * 2 + same_one[0].sum()).backward()
    return x.grad


@case
def the_same_result_twice(on):
    return on.compiled(lambda x: (y := x * 2, y, y + 1))(on.tensor(3))


@case
def writes_to_an_input(on):
    x = on.tensor(3, 4)
    return on.compiled(lambda x: x.add_(1).mul(2))(x), x


@case
def writes_through_views_of_an_input(on):
    x = on.tensor(3, 4)

    def f(x):
        x[1].zero_()
        x[:, 0] += 5
        return x.sum()

    return on.compiled(f)(x), x


@case
def writes_to_an_input_that_is_a_view(on):
    x = on.tensor(6, 4)
    return on.compiled(lambda v: v.mul_(3) + 1)(x[1:4]), x


@case
def writes_to_a_transposed_input(on):
    x = on.tensor(6, 4).t()
    return on.compiled(lambda x: x.mul_(3) + 1)(x), x


@case
def inputs_without_gradient(on):
    x, z = on.tensor(3, grad=True), on.tensor(4, grad=True)
    y = on.compiled(lambda x, z: (x * 2, z.detach() * 3))(x, z)
    y[0].sum().backward()
    return x.grad, z.grad, y[1]


@case
def results_without_gradient(on):
    x = on.tensor(3, grad=True)
    on.compiled(lambda x: (x * 2, x * x))(x)[1].sum().backward()
    return x.grad


@case
def no_inputs(on):
    return on.compiled(lambda: torch.arange(4, device=on.device) * 2.0)()


@case
def results_of_all_kinds(on):
    def f(x):
        return (
            x + 1,
            torch.ones(2, device=on.device),
            torch.tensor([1, 2], device=on.device),
            3,
            "a",
            None,
            {"k": x * 2},
        )

    return on.compiled(f)(on.tensor(3)), on.compiled(lambda x: None)(on.tensor(3))


@case
def empty_batch(on):
    return on.compiled(lambda x: (x + 1, x.sum(), x.sum(0), torch.cat([x, x])))(on.tensor(0, 3))


@case
def training_on_an_empty_batch(on):
    model = on.module(lambda: nn.Linear(3, 2))
    y = on.compiled(model)(on.tensor(0, 3))
    y.sum().backward()
    return y, model.weight.grad


@case
def numbers_as_arguments(on):
    f = on.compiled(lambda x, k: x * (k * 2 + 1) / (1 - k**2))
    return [f(on.tensor(3), k) for k in (2, 3, 4, 2.5, 3.5, 0.1)]


@case
def new_shapes(on):
    f = on.compiled(lambda x: (F.softmax(x, -1).sum(0), x.shape[0] * 3))
    return [f(on.tensor(n, 4)) for n in (2, 3, 5, 6)]


@case
def shapes_declared_dynamic(on):
    f = on.compiled(lambda x: ((x * x.shape[0]).sum() / x.numel(), x.numel()), dynamic=True)
    return [f(on.tensor(n, 4)) for n in (2, 3, 5)]


@case
def conditions_on_values(on):
    def f(x):
        y = x * 2
        if y.sum().item() > 0:
            y = y + 1
        return y * float((x**2).mean().item())

    g = on.compiled(f)
    return g(on.tensor(3, 4).abs()), g(-on.tensor(3, 4).abs())


@case
def a_break_in_the_middle(on):
    def f(x):
        y = x * 2
        torch._dynamo.graph_break()
        return (y.sin() + 1) * x

    x = on.tensor(3, 4, grad=True)
    y = on.compiled(f)(x)
    y.sum().backward()
    return y, x.grad


@case
def a_view_of_a_result_written_after_a_break(on):
    def f(x):
        y = (x * 2).transpose(0, 1)
        torch._dynamo.graph_break()
        y[0] = y[1] * 3
        return y.square()

    x = on.tensor(3, 4, grad=True)
    y = on.compiled(f)(x)
    y.sum().backward()
    return y, x.grad


@case
def recurrent_layers(on):
    found = []
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        model = on.module(lambda kind=kind: kind(4, 5))
        y, _ = on.compiled(model)(on.tensor(3, 2, 4))
        y.sum().backward()
        found += [y, *(p.grad for p in model.parameters())]
    return found


@case
def a_module_compiled_in_place(on):
    model = on.module(lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2)))
    if on.device == "neuron":
        model.compile(backend="neuron")
    y = model(on.tensor(3, 4))
    y.sum().backward()
    return y, model[0].weight.grad


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.total.add_(x.sum(0))
        self.calls += 1
        return x * self.total


@case
def buffers_that_are_written(on):
    model = on.module(Counting)
    f = on.compiled(model)
    return f(on.tensor(2, 3)), f(on.tensor(2, 3)), model.total, model.calls


@case
def evaluation_and_then_training(on):
    model = on.module(lambda: nn.Linear(4, 2))
    f = on.compiled(model)
    with torch.no_grad():
        first = f(on.tensor(3, 4))
    second = f(on.tensor(3, 4))
    second.sum().backward()
    with torch.inference_mode():
        third = f(on.tensor(3, 4)).clone()
    return first, second, third, model.weight.grad


@case
def backward_twice(on):
    x = on.tensor(3, grad=True)
    y = on.compiled(lambda x: (x**2).sum())(x)
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@case
def gradients_that_are_not_contiguous(on):
    x = on.tensor(3, 4, grad=True)
    on.compiled(lambda x: x * 2)(x).backward(torch.arange(12.0).reshape(4, 3).to(on.device).t())
    return x.grad


@pytest.mark.parametrize("name", CASES)
def test_contract(name):
    expected = CASES[name](On("cpu"))
    same(CASES[name](On("neuron")), expected)


@pytest.fixture(params=[logging.INFO, logging.ERROR])
def messages_of_dynamo(request):
    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(request.param)
    yield request.param
    logger.setLevel(before)


def test_forms_beyond_pytorchs_limit_run_operator_by_operator_and_that_is_said(messages_of_dynamo, capfd):
    """Said whatever PyTorch's own messages are set to, which it leaves as they are."""
    neuron.reset_fallback_counts()
    f = torch.compile(lambda x: x * 2 + 1, backend="neuron", dynamic=False)
    for n in range(2, 2 + torch._dynamo.config.recompile_limit + 2):
        x = torch.ones(n, 4).to("neuron")
        assert f(x).cpu().unique().tolist() == [3.0]
    assert re.search(r"compiled 8 times: in further forms its operators are programs", capfd.readouterr().err)
    shown = logging.getLogger("torch._dynamo.convert_frame").isEnabledFor(logging.INFO)
    assert shown == (messages_of_dynamo == logging.INFO)
    assert neuron.fallback_counts() == {}


def test_an_operator_without_lowering_is_refused_with_its_code_and_line():
    with pytest.raises(Exception, match=r"TRN201(.|\n)*_linalg_svd(.|\n)*test_compiled_functions.py"):
        torch.compile(lambda x: torch.linalg.svd(x)[1].sum(), backend="neuron")(torch.eye(3, device="neuron"))
