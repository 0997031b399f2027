# SPDX-License-Identifier: Apache-2.0
"""Convolutions of random geometry, layers with batch norm as they are trained, and values that are not finite."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import check, engine
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab.compiler.fusing import recompute


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def geometry(seed):
    """A convolution of one to three dimensions, transposed or not: function, shapes and arguments."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 1, 2, 4]))
    transposed = bool(rng.integers(2))
    window, stride, dilation, padding = (
        rng.integers(low, high, rank).tolist() for low, high in ((1, 4), (1, 4), (1, 3), (0, 3))
    )
    size = [int(d * (k - 1) + 1 + rng.integers(2, 7)) for k, d in zip(window, dilation)]
    padding = [min(p, d * (k - 1)) for p, k, d in zip(padding, window, dilation)]
    channels, out = groups * int(rng.choice([1, 3, 16])), groups * int(rng.choice([1, 2, 5]))
    x = (int(rng.integers(1, 4)), channels, *size)
    w = (channels, out // groups, *window) if transposed else (out, channels // groups, *window)
    function = getattr(F, f"conv{'_transpose' if transposed else ''}{rank}d")
    return function, x, w, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


@pytest.mark.parametrize("seed", range(14))
def test_random_geometry(seed):
    function, x, w, given = geometry(seed)
    inputs = [random(*x), random(*w, seed=1)]
    check(lambda a, b: function(a, b, **given), inputs, on=["trn1"], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("given", [{"padding": 1}, {"padding": 1, "stride": 2}, {"padding": 2, "dilation": 2}])
@pytest.mark.parametrize("channels", [3, 16])
def test_what_is_not_finite_stays_where_it_is(channels, given):
    """Infinity and NaN reach the places and elements of the window that see them, and no others."""
    x, w = random(2, channels, 9, 9), random(5, channels, 3, 3, seed=1)
    x[0, 1, 0, 8], x[1, 2, 4, 4], x[0, 0, 8, 3] = float("inf"), float("nan"), float("-inf")
    check(lambda a, b: F.conv2d(a, b, **given), [x, w], on=["trn1"], rtol=1e-5, atol=1e-4)


def layers(x, a, b, scale, shift):
    """Two normalised layers and a shortcut, in the format of x between them."""
    y = F.conv2d(x, a, padding=1)
    y = F.relu(F.batch_norm(y, None, None, scale, shift, training=True))
    y = F.batch_norm(F.conv2d(y, b), None, None, shift, scale, training=True)
    return F.relu(y + x)


@pytest.mark.parametrize("small", [1, recompute.SMALL])
def test_normalised_layers(small, monkeypatch):
    """Whether masks and normalised values are kept for the way back, or made again."""
    monkeypatch.setattr(recompute, "SMALL", small)
    inputs = [random(3, 16, 6, 5), random(16, 16, 3, 3, seed=1), random(16, 16, 1, 1, seed=2)]
    check(layers, [*inputs, random(16, seed=3), random(16, seed=4)], on=["trn1"], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("small", [1, recompute.SMALL])
def test_normalised_layers_in_bf16(small, monkeypatch):
    """Activations in bf16: within a few roundings of what fp32 gives."""
    monkeypatch.setattr(recompute, "SMALL", small)
    inputs = [random(3, 16, 6, 5), random(16, 16, 3, 3, seed=1), random(16, 16, 1, 1, seed=2)]
    inputs = [v.bfloat16().float() for v in (*inputs, random(16, seed=3).abs() + 0.5, random(16, seed=4))]
    weights = random(3, 16, 6, 5, seed=5)

    def gradients(narrow, values):
        leaves = [v.clone().requires_grad_() for v in values]
        (
            layers(*(narrow(v) for v in leaves[:3]), *leaves[3:]).float() * weights.to(leaves[0].device)
        ).sum().backward()
        return [v.grad.cpu() for v in leaves]

    expected = gradients(lambda v: v, inputs)
    model = Inputs(inputs).to("neuron")
    with engine("trn1"):
        step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), lr=1.0), narrowed)
        before = [p.detach().cpu().clone() for p in model.values]
        step(weights.to("neuron"))
        got = [a - p.detach().cpu() for a, p in zip(before, model.values)]
    for a, b in zip(got, expected, strict=True):
        assert (a - b).norm() < 0.02 * b.norm()


class Inputs(nn.Module):
    """Tensors whose gradients are asked for."""

    def __init__(self, values):
        super().__init__()
        self.values = nn.ParameterList(values)


def narrowed(model, weights):
    x, a, b, scale, shift = model.values
    return (layers(x.bfloat16(), a.bfloat16(), b.bfloat16(), scale, shift).float() * weights).sum()
