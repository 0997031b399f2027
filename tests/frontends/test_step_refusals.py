# SPDX-License-Identifier: Apache-2.0
"""What a captured step cannot do is refused with a code, the user's line and a way out, never from inside."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab.errors import TrnlabError

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def interpreter():
    with neuron.use(neuron.InterpreterEngine()):
        yield


def data():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator)
    return x.to("neuron"), y.to("neuron")


def classify(model, x, y):
    return F.cross_entropy(model(x), y)


def refused(loss, code, model=None, optimizer=None, batch=None):
    """The error that a step with this loss ends with."""
    model = (model or nn.Linear(4, 3)).to("neuron")
    step = neuron.compile_step(model, (optimizer or (lambda p: torch.optim.SGD(p, 0.1)))(model.parameters()), loss)
    before = [p.detach().cpu().clone() for p in model.parameters()]
    with pytest.raises(TrnlabError) as info:
        step(*(batch or data()))
    assert info.value.code == code
    assert "do " in str(info.value)
    assert all(torch.equal(p.cpu(), q) for p, q in zip(model.parameters(), before))
    return info.value


LOSSES = {
    "nothing": lambda m, x, y: None,
    "an empty tuple": lambda m, x, y: (),
    "a tuple in a tuple": lambda m, x, y: ((classify(m, x, y),),),
    "a dictionary": lambda m, x, y: {"loss": classify(m, x, y)},
    "a Python number": lambda m, x, y: 1.0,
    "several numbers": lambda m, x, y: m(x),
    "no gradient": lambda m, x, y: x.sum(),
    "an integer": lambda m, x, y: y.sum(),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_loss_must_be_one_number_with_a_gradient(what):
    refused(LOSSES[what], "TRN110")


VALUES = {
    "numpy": lambda m, x, y: classify(m, x, y) * m(x).detach().numpy().sum(),
    "numpy by way of the host": lambda m, x, y: classify(m, x, y) * float(m(x).detach().cpu().numpy().sum()),
    "asarray": lambda m, x, y: classify(m, x, y) * np.asarray(m(x).detach()).sum(),
    "item": lambda m, x, y: classify(m, x, y) * m(x).sum().item(),
    "tolist": lambda m, x, y: classify(m, x, y) * m(x).tolist()[0][0],
    "float": lambda m, x, y: classify(m, x, y) * float(m(x).sum()),
    "int": lambda m, x, y: classify(m, x, y) * int(y.sum()),
    "if": lambda m, x, y: classify(m, x, y) if m(x).sum() > 0 else 2 * classify(m, x, y),
    "index": lambda m, x, y: classify(m, x, y) * [1.0, 2.0, 3.0][y[0]],
    "mask": lambda m, x, y: m(x)[y > 0].sum(),
    "nonzero": lambda m, x, y: m(x)[torch.nonzero(y)].sum(),
}


def masked(m, x, y):
    logits = m(x).clone()
    logits[x[:, :3] > 0] = m(x).sum()
    return logits.sum()


VALUES["written where a mask is true"] = masked


@pytest.mark.parametrize("what", VALUES)
def test_values_are_not_known_while_a_step_is_captured(what):
    error = refused(VALUES[what], "TRN204")
    assert error.where.file == __file__


class Trusting(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad.norm() > 0:
                p.sub_(0.1 * p.grad / p.grad.norm())


def test_an_optimizer_that_asks_for_values_is_named():
    assert "Trusting asks" in str(refused(classify, "TRN204", optimizer=lambda p: Trusting(p, 0.1)))


class Closure(torch.optim.SGD):
    def step(self, closure):
        closure()
        return super().step()


def with_a_step_of_its_own(parameters):
    optimizer = torch.optim.SGD(parameters, 0.1)
    original = optimizer.step
    optimizer.step = lambda *args: original(*args)
    return optimizer


def test_optimizers_that_are_no_update_by_gradients():
    assert "LBFGS" in str(refused(classify, "TRN141", optimizer=torch.optim.LBFGS))
    error = refused(classify, "TRN141", optimizer=lambda p: Closure(p, 0.1))
    assert (error.where.file, error.where.function) == (__file__, "Closure.step")
    assert "its own" in str(refused(classify, "TRN141", optimizer=with_a_step_of_its_own))


def test_hooks_before_the_update_may_not_change_its_settings():
    def make(parameters):
        optimizer = torch.optim.SGD(parameters, 0.1)
        optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: optimizer.param_groups[0].update(lr=0.3))
        return optimizer

    error = refused(classify, "TRN144", optimizer=make)
    assert "'lr'" in str(error)
    assert error.where.file == __file__


def test_hooks_that_take_the_gradient_away():
    model = nn.Linear(4, 3).to("neuron")
    model.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    assert "'weight'" in str(refused(classify, "TRN144", model=model))


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b, (grad * a).sum(0)


def test_gradients_that_would_leave_the_step():
    leaf = torch.ones(3, device="neuron", requires_grad=True)
    computed = leaf * 2
    refused(lambda m, x, y: (m(x) * computed).sum(), "TRN142")
    refused(lambda m, x, y: Product.apply(m(x), leaf).sum(), "TRN142")
    x, y = data()
    refused(classify, "TRN142", batch=(x.requires_grad_() * 2, y))


def test_gradients_live_only_within_the_step():
    def backward(m, x, y):
        loss = classify(m, x, y)
        loss.backward(retain_graph=True)
        return loss

    refused(backward, "TRN143")
    model = nn.Linear(4, 3).to("neuron")
    model.weight.grad = torch.ones(3, 4, device="neuron")
    refused(lambda m, x, y: classify(m, x, y) + m.weight.grad.sum(), "TRN143", model=model)
    assert model.weight.grad.sum().item() == 12.0


def test_writing_where_another_input_looks():
    held = torch.zeros(6, 4, device="neuron")
    row = held[0]

    def through_a_view(m, x, y):
        held.add_(1.0)
        return classify(m, x, y) + row.sum() + held.sum()

    def to_the_batch(m, x, y):
        x.add_(1.0)
        return m(x).sum() + m(y).sum()

    refused(through_a_view, "TRN145")
    x, _ = data()
    refused(to_the_batch, "TRN145", batch=(x, x))
    refused(to_the_batch, "TRN145", batch=(x, x[:]))


def test_a_batch_that_was_left_on_the_host():
    x, y = data()
    error = refused(classify, "TRN111", batch=(x.cpu(), y))
    assert error.where.file == __file__
    refused(classify, "TRN111", batch=(x, y.cpu()))


@pytest.mark.filterwarnings("ignore:Sparse BSR")
def test_a_sparse_batch():
    """One of the host's is on another device; one in blocks has no form."""
    for batch, code in ((torch.eye(4).to_sparse(), "TRN111"), (torch.eye(4).to_sparse_bsr((2, 2)), "TRN203")):
        with pytest.raises(TrnlabError, match=code):
            neuron.capture_step(nn.Linear(4, 3).to("neuron"), None, lambda m, x: m(x).sum(), [batch])


def test_nothing_of_the_tracing_stays_behind():
    """A capture that ends early leaves the model as it was, though its forward had kept a tensor by then."""

    class Keeping(nn.Linear):
        kept = None

        def forward(self, x):
            self.kept = super().forward(x)
            return self.kept

    model = Keeping(4, 3)
    refused(lambda m, x, y: classify(m, x, y) * m.kept.sum().item(), "TRN204", model=model)
    assert model.kept is None


def test_a_model_in_float64_is_refused_with_every_tensor_that_is():
    model = nn.Linear(4, 3).double().to("neuron")
    step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), classify)
    with pytest.raises(TrnlabError, match=r"input weight\(float64\[3, 4\]\)") as caught:
        step(data()[0].double(), data()[1])
    assert "x.float()" in str(caught.value)


def test_filling_at_indices_with_a_value_that_learns_is_refused():
    """Its derivative looks for repeated indices from within autograd, where an exception would end the process."""
    x, _ = data()
    value = nn.Parameter(torch.ones(()).to("neuron"))
    model = nn.Linear(4, 3).to("neuron")
    step = neuron.compile_step(
        model,
        torch.optim.SGD([*model.parameters(), value], lr=0.1),
        lambda model, x, i: model(x.index_fill(1, i, value)).sum(),
    )
    with pytest.raises(TrnlabError, match="at indices needs the indices' values") as caught:
        step(x, torch.tensor([1, 2]).to("neuron"))
    assert caught.value.code == "TRN204"
