# SPDX-License-Identifier: Apache-2.0
"""`torch.compile(backend="neuron")`: forward, backward and optimizer graphs compute what eager PyTorch computes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import Beside, worst_error
from models import GPT
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.runtime import session

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


@pytest.fixture(autouse=True)
def engine():
    """Every program is computed as the simulated chip does it, and as the graph's interpreter defines it."""
    torch.compiler.reset()
    neuron.reset_fallback_counts()
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")), neuron.use(Beside()):
        yield
    neuron.reset_fallback_counts()


def batch(rows=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 60, (rows, 16), generator=generator) for _ in range(2)]


def on_device(tensors):
    return [t.to("neuron") for t in tensors]


def pair():
    torch.manual_seed(0)
    reference = GPT(layers=1)
    return reference, copy.deepcopy(reference).to("neuron")


def test_backend_is_listed():
    assert "neuron" in torch.compiler.list_backends(exclude_tags=None)


def test_forward_and_backward():
    reference, model = pair()
    loss = torch.compile(model, backend="neuron")(*on_device(batch()))
    loss.backward()
    expected = reference(*batch())
    expected.backward()
    assert loss.device.type == "neuron"
    assert worst_error(loss, expected) <= 1e-6
    for p, q in zip(model.parameters(), reference.parameters()):
        assert worst_error(p.grad, q.grad) <= 1e-5
    assert set(neuron.fallback_counts()) <= {"aten::fill_"}  # the gradient of the loss by itself


def test_training_with_a_compiled_optimizer():
    """AdamW over lists of tensors, with the learning rate as a tensor; the scheduler needs no new graph."""
    reference, model = pair()
    theirs = torch.optim.AdamW(reference.parameters(), 1e-3)
    ours = torch.optim.AdamW(model.parameters(), torch.tensor(1e-3))
    compiled, update = torch.compile(model, backend="neuron"), torch.compile(ours.step, backend="neuron")
    for i in range(3):
        loss = compiled(*on_device(batch(seed=i)))
        loss.backward()
        update()
        ours.zero_grad()
        theirs.zero_grad()
        expected = reference(*batch(seed=i))
        expected.backward()
        theirs.step()
        for group in (*theirs.param_groups, *ours.param_groups):
            group["lr"] *= 0.5
        assert worst_error(loss, expected) <= 1e-5
    assert set(neuron.fallback_counts()) <= {"aten::fill_", "aten::zero_"}
    assert float(ours.state[model.tokens.weight]["step"]) == 3


def test_autocast_region():
    _, model = pair()

    @torch.compile(backend="neuron")
    def loss(ids, targets):
        with torch.autocast("neuron", dtype=torch.bfloat16):
            return model(ids, targets)

    value = loss(*on_device(batch()))
    value.backward()
    assert value.dtype == torch.float32
    assert abs(value.item() - model(*on_device(batch())).item()) < 0.05


def test_inference_returns_tensors_of_all_kinds():
    @torch.compile(backend="neuron")
    def several(x):
        return x + 1, x > 0, x.argmax(-1), x, 3, None

    x = torch.randn(3, 5)
    more, positive, place, same, number, nothing = several(x.to("neuron"))
    assert torch.equal(more.cpu(), x + 1)
    assert torch.equal(positive.cpu(), x > 0)
    assert torch.equal(place.cpu(), x.argmax(-1))
    assert place.dtype == torch.int64
    assert torch.equal(same.cpu(), x)
    assert (number, nothing) == (3, None)


def test_writes_to_inputs():
    @torch.compile(backend="neuron")
    def bump(x, y):
        x.add_(y)
        return x * 2

    x, y = torch.ones(4, device="neuron"), torch.arange(4.0).to("neuron")
    doubled = bump(x, y)
    assert x.cpu().tolist() == [1, 2, 3, 4]
    assert doubled.cpu().tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("dynamic", [None, False])
def test_new_shapes_compile_again(dynamic):
    model = nn.Linear(4, 3).to("neuron")
    compiled = torch.compile(lambda x: F.gelu(model(x)).sum(), backend="neuron", dynamic=dynamic)
    for rows in (2, 5, 1, 7):
        x = torch.randn(rows, 4).to("neuron")
        assert worst_error(compiled(x), F.gelu(model(x)).sum()) <= 1e-5


def test_unsupported_operators_are_listed_together():
    @torch.compile(backend="neuron")
    def bad(x):
        return torch.linalg.svd(x)[1].sum() + x.erfinv().sum()

    with pytest.raises(Exception, match=r"TRN201: 2 operators(.|\n)*_linalg_svd(.|\n)*aten\.erfinv"):
        bad(torch.randn(4, 4, device="neuron"))


def test_tensors_made_while_dynamo_traces_are_constants():
    @torch.compile(backend="neuron")
    def scaled(x):
        steps = torch.tensor([1.0, 2.0, 4.0], device=x.device)
        return x * steps + torch.arange(3, device=x.device), torch.tensor(2.5), torch.zeros(2, device=x.device)

    x = torch.randn(5, 3)
    got, number, zeros = scaled(x.to("neuron"))
    assert worst_error(got, x * torch.tensor([1.0, 2.0, 4.0]) + torch.arange(3)) <= 1e-6
    assert (number.item(), zeros.cpu().tolist()) == (2.5, [0.0, 0.0])


def test_a_number_of_python_that_changes_costs_one_more_program():
    """It is an input from its second value on, of the forward and of the backward pass."""
    scale = {"of the loss": 1.0}

    def loss(model, x):
        return (model(x) * (scale["of the loss"] * 2 + 1)).square().mean()

    torch.manual_seed(0)
    reference = nn.Linear(4, 3)
    model = copy.deepcopy(reference).to("neuron")
    x, step, programs = torch.linspace(-2, 2, 12).reshape(3, 4), torch.compile(loss, backend="neuron"), []
    for value in (1.0, 2.0, 3.0, 4.5, 0.1):
        scale["of the loss"] = value
        for net, f, given in ((reference, loss, x), (model, step, x.to("neuron"))):
            net.zero_grad()
            f(net, given).backward()
        programs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        assert worst_error(model.weight.grad.cpu(), reference.weight.grad) < 1e-5
        assert worst_error(model.bias.grad.cpu(), reference.bias.grad) < 1e-5
    assert programs[-1] - programs[0] == 1
