# SPDX-License-Identifier: Apache-2.0
"""Losses of pixels, whose classes are the channels of a convolution: loss and every gradient against eager autograd
in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import TRN1, CapturedGradients
from torch import nn

pytestmark = pytest.mark.torch


class Pixels(nn.Module):
    """Logits of pixels, or of places along a line, and a loss of them."""

    def __init__(self, loss, classes, line=False):
        super().__init__()
        kind = nn.Conv1d if line else nn.Conv2d
        self.loss, self.out, self.after = loss, kind(9, classes, 3, padding=1), kind(classes, classes, 1)
        self.register_buffer("weights", torch.rand(classes, generator=torch.Generator().manual_seed(5)) + 0.5)

    def forward(self, x, ids):
        return self.loss(self.out(x), ids, self.weights.to(x.dtype), self.after)


def overlap(logits, ids, weights, after):
    """One minus the share that classes and what is found have together, as dice losses are."""
    found, wanted = logits.softmax(1), F.one_hot(ids.clamp(min=0), logits.shape[1]).movedim(-1, 1).to(logits.dtype)
    dims = tuple(range(2, logits.dim()))
    return (1 - 2 * (found * wanted).sum(dims) / (found + wanted).sum(dims)).mean()


def focal(logits, ids, weights, after):
    lost = F.cross_entropy(logits, ids, reduction="none")
    return ((1 - (-lost).exp()) ** 2 * lost).mean()


def distilled(logits, ids, weights, after):
    return F.kl_div(F.log_softmax(logits, 1), F.softmax(after(logits), 1), reduction="batchmean")


LOSSES = {
    "mean": lambda logits, ids, weights, after: F.cross_entropy(logits, ids),
    "sum": lambda logits, ids, weights, after: F.cross_entropy(logits, ids, reduction="sum"),
    "each": lambda logits, ids, weights, after: (
        F.cross_entropy(logits, ids, reduction="none") * logits[:, 0].square()
    ).mean(),
    "weighted": lambda logits, ids, weights, after: F.cross_entropy(logits, ids, weights),
    "smoothed": lambda logits, ids, weights, after: F.cross_entropy(logits, ids, label_smoothing=0.1),
    "resized": lambda logits, ids, weights, after: F.cross_entropy(
        F.interpolate(logits, size=ids.shape[1:], mode="bilinear" if logits.dim() == 4 else "linear"), ids
    ),
    "gate": lambda logits, ids, weights, after: F.cross_entropy(after(logits.softmax(1) * logits) + logits, ids),
    "overlap": overlap,
    "focal": focal,
    "distilled": distilled,
}


def batch(classes, line):
    chance = torch.Generator().manual_seed(1)
    shape = (2, 300) if line else (2, 9, 37)
    x = torch.randn(2, 9, *shape[1:], generator=chance) * 3
    ids = torch.randint(0, classes, shape, generator=chance)
    ids[:, ::5] = -100
    return x, ids


@pytest.mark.parametrize("line", [False, True])
@pytest.mark.parametrize("classes", [2, 21, 150])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name, classes, line):
    torch.manual_seed(0)
    model, (x, ids) = Pixels(LOSSES[name], classes, line), batch(classes, line)
    exact = copy.deepcopy(model).double()
    wanted_loss = exact(x.double(), ids)
    wanted_loss.backward()
    loss, got = CapturedGradients(model, (x, ids)).run(TRN1)
    assert abs(loss.item() - wanted_loss.item()) <= 4e-6 * abs(wanted_loss.item())
    for key, parameter in exact.named_parameters():
        wanted = parameter.grad
        if wanted is None:
            assert key not in got
            continue
        assert (got[key].double() - wanted).abs().max() <= 2e-5 * wanted.abs().max(), key


@pytest.mark.parametrize("hostile", [float("inf"), float("nan"), -float("inf"), 3e38, -0.0])
def test_what_is_not_finite_stays_in_its_pixel(hostile):
    """Or in what is summed of pixels, as on the CPU; a class that is impossible is no loss where it is not wanted."""

    def loss(logits, ids, weights, after):
        marks = torch.arange(logits.shape[-1], device=logits.device) == 3
        return F.cross_entropy(torch.where(marks & (weights[:, None, None] > 1), hostile, logits), ids, weights)

    torch.manual_seed(0)
    model, (x, ids) = Pixels(loss, 21), batch(21, False)
    eager = copy.deepcopy(model)
    wanted_loss = eager(x, ids)
    wanted_loss.backward()
    found, got = CapturedGradients(model, (x, ids)).run(TRN1)
    torch.testing.assert_close(found, wanted_loss.detach(), rtol=1e-5, atol=0.0, equal_nan=True)
    wanted = eager.out.weight.grad
    torch.testing.assert_close(got["out.weight"], wanted, rtol=1e-4, atol=1e-6, equal_nan=True)
