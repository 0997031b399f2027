# SPDX-License-Identifier: Apache-2.0
"""Masks in recorded steps: what they choose is counted on the chip and computed there, with the values of the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.frontends.torch import recording
from trnlab.runtime import session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


class Counting(neuron.InterpreterEngine):
    """Counts the runs of programs."""

    runs = 0

    def compile(self, graph, frozen=()):
        program = super().compile(graph, frozen)

        def run(inputs):
            self.runs += 1
            return program(inputs)

        return run


@pytest.fixture
def engine():
    here = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(here), recording.using("steps"), neuron.use(Counting()) as counting:
        neuron.reset_fallback_counts()
        yield counting
        recording.flush()


def floats(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


MASK = floats(6, 5, seed=1) > -0.5
COUNT = int(MASK.sum())


def on_both(compute, *inputs):
    """Results and gradients on the CPU and on the device."""
    found = []
    for device in ("cpu", "neuron"):
        given = [x.detach().clone().to(device) for x in inputs]
        given = [x.requires_grad_() if x.is_floating_point() else x for x in given]
        result = compute(*given)
        if result.is_floating_point():
            (result * torch.linspace(1, 2, result.numel(), device=device).view(result.shape)).sum().backward()
        grads = [x.grad.cpu() for x in given if x.grad is not None]
        found.append((result.detach().cpu(), *grads))
    return found


CASES = {
    "index": lambda x, mask: x[mask],
    "index by rows": lambda x, mask: x[mask[:, 0]],
    "index beside a slice": lambda x, mask: x[:, mask[0]],
    "index beside an index": lambda x, mask: x[mask[:, 0], mask[:, 0].long().new_zeros(())],
    "masked_select": lambda x, mask: torch.masked_select(x, mask),
    "masked_select spreads": lambda x, mask: torch.masked_select(x, mask[0]),
    "nonzero": lambda x, mask: mask.nonzero(),
    "nonzero of floats": lambda x, mask: (x.detach() * mask).nonzero(),
    "where": lambda x, mask: torch.stack(torch.where(mask)),
    "bytes": lambda x, mask: x[mask.to(torch.uint8)],
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", CASES)
def test_what_a_mask_chooses(engine, name):
    expected, got = on_both(CASES[name], floats(6, 5), MASK)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert expected[0].stride() == got[0].stride()
    assert not neuron.fallback_counts("training")


def put(x, mask, values, accumulate=False):
    y = x.clone()
    y.index_put_((mask,), values, accumulate)
    return y


PUT = {
    "a number": lambda x, mask, values: put(x, mask, x.new_tensor(3.0)),
    "one value": lambda x, mask, values: put(x, mask, values[:1]),
    "one for each": put,
    "added": lambda x, mask, values: put(x, mask, values, True),
    "one added": lambda x, mask, values: put(x, mask, values[:1], True),
    "rows": lambda x, mask, values: put(x, mask[:, 0], values[:5]),
    "a row for each": lambda x, mask, values: put(x, mask[:, 0], values[: 5 * int(MASK[:, 0].sum())].view(-1, 5)),
    "beside an index": lambda x, mask, values: put_beside(x, mask, values),
    "masked_scatter": lambda x, mask, values: x.masked_scatter(mask, values),
    "masked_fill": lambda x, mask, values: x.masked_fill(mask, 2.0),
}


def put_beside(x, mask, values):
    y = x.clone()
    y[:, mask[0]] = values[: 6 * int(MASK[0].sum())].view(6, -1)
    return y


@pytest.mark.parametrize("name", PUT)
def test_what_is_put_where_a_mask_is(engine, name):
    values = floats(COUNT if name in ("one for each", "added") else 30, seed=2)
    expected, got = on_both(PUT[name], floats(6, 5), MASK, values)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, got, strict=True))
    assert not neuron.fallback_counts("training")


def test_one_value_for_all_places_waits_for_nothing(engine):
    x, mask = floats(6, 5).to("neuron"), MASK.to("neuron")
    x[mask] = 4.0
    y = x + 1
    y[mask] = torch.ones(1, device="neuron")
    assert engine.runs == 0
    assert torch.equal(y.cpu() == 1.0, MASK)
    assert engine.runs == 1


def test_a_wrong_number_of_values_is_refused_as_pytorch_does(engine):
    x, mask = floats(6, 5).to("neuron"), MASK.to("neuron")
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[mask] = torch.ones(COUNT - 1, device="neuron")
    with pytest.raises(IndexError, match="does not match"):
        x[mask[:3]]


def test_nothing_and_everything(engine):
    x = floats(6, 5)
    for mask in (torch.zeros(6, 5, dtype=torch.bool), torch.ones(6, 5, dtype=torch.bool)):
        expected, got = on_both(lambda x, mask: x[mask].sum() + x.sum(), x, mask)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, got, strict=True))


def train(device, steps=4):
    """A loss over the tokens that are not padding, of which each batch has another number."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    losses = []
    for step in range(steps):
        ids = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(step)).to(device)
        mask = ids != 3
        loss = F.cross_entropy(net(ids)[mask], ids[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_training_over_what_is_no_padding(engine):
    assert train("neuron") == pytest.approx(train("cpu"), rel=1e-5)
    assert not neuron.fallback_counts("training")
