# SPDX-License-Identifier: Apache-2.0
"""A graph whose writes were replaced node by node is that of `torch.func.functionalize`, or is left to it."""

import operator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnlab.frontends.torch.capture import tracing
from trnlab.frontends.torch.capture.import_fx import decompositions
from trnlab.frontends.torch.capture.without_writes import without_writes
from trnlab.frontends.torch.pytorch.fakes import FakeTensorMode

pytestmark = pytest.mark.torch


def adam(p, g, m, v, t):
    """Two steps, as `torch.optim` writes them, on copies of what comes in."""
    p, m, v, t = (x.clone() for x in (p, m, v, t))
    for _ in range(2):
        t += 1
        m.lerp_(g, 0.1)
        v.mul_(0.9).addcmul_(g, g, value=0.1)
        p.addcdiv_(m, (v.sqrt() / (1 - 0.9**t).sqrt()).add_(1e-8), value=-0.01)
    return p, m, v, t


def sums(p, g, m, v, t):
    """Of lists, of a view that is made after the write, and of a tensor that is read before and after it."""
    total = torch.zeros_like(p)
    before = total + g
    total.add_(g.t().t()).add_(m, alpha=2)
    return before, total.t(), total[1:], torch.logsumexp(total, 0), total.expand(2, *total.shape)


def formats(p, g, m, v, t):
    """What is written has another format than what it is computed from."""
    narrow, whole = p.to(torch.bfloat16), torch.zeros(p.shape, dtype=torch.int64, device=p.device)
    narrow.add_(g)
    narrow.copy_(m)
    whole.add_(p > 0)
    return narrow, whole, p.clone().zero_(), p.clone().fill_(3)


def given_back(p, g, m, v, t):
    """The same tensor under the names of its writes."""
    x = p.clone()
    y = x.add_(g)
    z = y.mul_(m)
    return x + y, z, torch.nn.functional.gelu(z), torch.nn.functional.layer_norm(x, x.shape[-1:])


def through_a_view(p, g, m, v, t):
    x = p.clone()
    x[1:].add_(1)
    return x, x + g


def under_a_view(p, g, m, v, t):
    x = p.clone()
    row = x[0]
    x.mul_(2)
    return row, x


def with_more_memory(p, g, m, v, t):
    x = p.clone()[1]
    x.mul_(2)
    return [x.as_strided((4, 4), (4, 1), 0)]


def to_an_input(p, g, m, v, t):
    p.add_(g)
    return [p * 2]


def both(function):
    """The graph before, ours (None where there is none), PyTorch's, and how it is called."""
    mode = FakeTensorMode()
    with mode:
        fakes = [torch.empty(4, 4, device="neuron") for _ in range(4)] + [torch.empty((), device="neuron")]
        first = make_fx(function)(*fakes)

    def functional(f, like):
        return tracing.functional(f, [tracing.fake_like(mode, x) for x in like], mode)

    ours = without_writes(first, decompositions(), functional)
    if ours is not None:
        ours.graph.eliminate_dead_code()
    return ours, functional(fx.Interpreter(first).run, fakes)


def listed(module):
    """Operators with what they take and make, in the order in which results need them."""
    found, output = {}, next(n for n in module.graph.nodes if n.op == "output")
    places = {n: i for i, n in enumerate(n for n in module.graph.nodes if n.op == "placeholder")}

    def text(node):
        if node in places:
            return f"input {places[node]}"
        if node not in found:
            args = fx.map_arg((node.args, dict(node.kwargs)), text)
            value = node.meta["val"]
            found[node] = f"{node.target}{args} {getattr(value, 'shape', '')} {getattr(value, 'dtype', '')}"
        return found[node]

    return [text(node) for node in output.args[0]]


@pytest.mark.parametrize("function", [adam, sums, formats, given_back])
def test_it_is_that_of_pytorch(function):
    ours, theirs = both(function)
    assert ours is not None
    assert listed(ours) == listed(theirs)
    written = [
        str(n.target) for n in ours.graph.nodes if n.op == "call_function" and n.target is not operator.getitem
    ]
    assert not [name for name in written if name.split(".")[1].endswith("_")]


@pytest.mark.parametrize("function", [adam, sums, formats, given_back])
def test_it_computes_what_the_function_does(function):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand(4, 4, generator=generator) + 0.5 for _ in range(4)] + [torch.zeros(())]
    expected = function(*(x.clone() for x in inputs))
    graph = both(function)[0].graph
    for node in graph.nodes:  # what is made on the device is made here
        node.kwargs = {k: "cpu" if k == "device" else v for k, v in node.kwargs.items()}
    for got, wanted in zip(fx.Interpreter(fx.GraphModule({}, graph)).run(*inputs), expected, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("function", [through_a_view, under_a_view, with_more_memory, to_an_input])
def test_a_write_that_is_seen_through_another_tensor_is_left_to_pytorch(function):
    ours, theirs = both(function)
    assert ours is None
    assert listed(theirs)


def test_an_operator_is_run_once_for_each_form_of_what_it_takes():
    def many(p, g, m, v, t):
        x = [p.clone(), m.clone(), v[:2].clone()]
        return [y.addcmul_(z, z, value=0.1) for y, z in zip(x, (g, g, g[:2]))]

    asked = []
    mode = FakeTensorMode()
    with mode:
        first = make_fx(many)(*(torch.empty(4, 4, device="neuron") for _ in range(4)), torch.empty(()))

    def functional(f, like):
        asked.append(len(like))
        return tracing.functional(f, [tracing.fake_like(mode, x) for x in like], mode)

    assert without_writes(first, decompositions(), functional) is not None
    assert asked == [4]  # two forms of two tensors, at once
