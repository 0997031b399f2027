# SPDX-License-Identifier: Apache-2.0
"""`torch.compile` without a backend: graphs of `neuron` tensors are the chip's, all others inductor's."""

import pytest
import torch
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.runtime import session

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Counting(neuron.InterpreterEngine):
    """An engine that knows which graphs it was given."""

    def __init__(self):
        super().__init__()
        self.names = []

    def compile(self, graph, frozen=()):
        self.names.append(graph.name.split("_")[0])
        return super().compile(graph, frozen)


@pytest.fixture(autouse=True)
def engine():
    torch.compiler.reset()
    chosen = Counting()
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")), neuron.use(chosen):
        yield chosen
    torch.compiler.reset()


@pytest.fixture
def inductor(monkeypatch):
    """Graphs that reach inductor, which does not compile them here."""
    from torch._inductor import compile_fx

    given = []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda module, inputs, **kw: given.append(module) or module.forward)
    return given


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def compiled_in_place(model, **options):
    model.compile(**options)
    return model


WAYS = {
    "without arguments": lambda m: torch.compile(m.to("neuron")),
    "moved afterwards": lambda m: torch.compile(m).to("neuron"),
    "in place": lambda m: compiled_in_place(m.to("neuron")),
    "in place, moved afterwards": lambda m: compiled_in_place(m, mode="reduce-overhead").to("neuron"),
    "max-autotune": lambda m: torch.compile(m.to("neuron"), mode="max-autotune"),
    "whole": lambda m: torch.compile(m.to("neuron"), fullgraph=True, dynamic=False),
    "dynamic": lambda m: torch.compile(m.to("neuron"), dynamic=True),
    "options": lambda m: torch.compile(m.to("neuron"), options={"max_autotune": True, "epilogue_fusion": True}),
    "by name": lambda m: torch.compile(m.to("neuron"), backend="inductor"),
    "its method": lambda m: torch.compile(m.to("neuron").forward),
    "a decorator": lambda m: torch.compile(mode="default")(m.to("neuron").forward),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_chip_serves_every_way_of_asking(way, engine, inductor):
    reference, model = Model(), Model()
    expected = reference(X)
    expected.sum().backward()
    y = WAYS[way](model)(X.to("neuron"))
    y.sum().backward()
    assert torch.allclose(y.detach().cpu(), expected, atol=1e-6)
    assert torch.allclose(model.first.weight.grad.cpu(), reference.first.weight.grad, atol=1e-6)
    assert {"forward", "backward"} <= set(engine.names)
    assert inductor == []


def test_an_optimizers_step_and_tensors_that_the_function_makes(engine, inductor):
    model = Model().to("neuron")
    model(X.to("neuron")).sum().backward()
    before = model.first.weight.detach().cpu().clone()
    torch.compile(torch.optim.SGD(model.parameters(), 0.1).step)()
    moved = before - 0.1 * model.first.weight.grad.cpu()
    assert torch.allclose(model.first.weight.detach().cpu(), moved, atol=1e-6)
    made = torch.compile(lambda n: torch.ones(n, device="neuron") * 3)(4)
    assert made.tolist() == [3.0] * 4
    assert {n for n in engine.names if not n.startswith("add")} >= {"graph"}
    assert inductor == []


def test_one_function_for_both_devices(engine, inductor):
    f = torch.compile(lambda x: (x * 2).relu())
    assert torch.equal(f(X), (X * 2).relu())
    assert len(inductor) == 1
    assert engine.names == []
    assert torch.equal(f(X.to("neuron")).cpu(), (X * 2).relu())
    assert len(inductor) == 1
    assert engine.names == ["graph"]
