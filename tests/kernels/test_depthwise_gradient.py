# SPDX-License-Identifier: Apache-2.0
"""Gradients of depthwise convolutions by their weights, from products of columns: beside PyTorch's, in both orders,
and through a training step."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trnlab import chips
from trnlab.errors import CapacityError
from trnlab.graph.builder import GraphBuilder
from trnlab.kernels.blocks import P
from trnlab.kernels.convolutions import gradient
from trnlab.kernels.convolutions.gradient_depthwise import DepthwiseGradient, depthwise_weight_gradient
from trnlab.kernels.view import full
from trnlab.kernels.windows import Taps
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder

sys.path.insert(0, str(Path(__file__).parents[1] / "compiler"))
sys.path.insert(0, str(Path(__file__).parents[1] / "frontends"))
from compiled import execute_in_both_orders
from helpers import check

CASES = {  # images, channels, results of each, image, window; strides, padding, dilation
    "three by three": (4, 20, 1, (9, 8), (3, 3), (1, 1), (1, 1), (1, 1)),
    "no padding": (3, 9, 1, (9, 8), (3, 2), (1, 1), (0, 0), (1, 1)),
    "seven by seven of as many": (5, 40, 1, (7, 7), (7, 7), (1, 1), (3, 3), (1, 1)),
    "window larger than the image": (4, 10, 1, (3, 4), (5, 5), (1, 1), (2, 2), (1, 1)),
    "strided": (4, 12, 1, (11, 12), (5, 5), (2, 2), (2, 2), (1, 1)),
    "strided along columns alone, some never met": (4, 12, 1, (7, 13), (3, 2), (1, 4), (1, 0), (1, 1)),
    "dilated": (4, 12, 1, (11, 12), (3, 3), (1, 1), (2, 3), (2, 3)),
    "strided and dilated": (2, 12, 1, (15, 16), (3, 3), (2, 3), (3, 2), (3, 2)),
    "several results": (4, 16, 3, (9, 8), (3, 3), (1, 1), (1, 1), (1, 1)),
    "more results than partitions": (4, 140, 2, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
    "more images than partitions": (260, 8, 1, (4, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    "a prime number of images": (131, 9, 1, (4, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    "bands of several rows, the last one short": (30, 10, 1, (11, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
    "rows of taps in several banks": (2, 8, 1, (12, 100), (9, 5), (1, 1), (4, 2), (1, 1)),
    "rows in parts": (2, 8, 1, (4, 301), (3, 3), (1, 1), (1, 1), (1, 1)),
    "rows in parts, strided": (1, 8, 1, (3, 700), (3, 3), (1, 2), (1, 1), (1, 1)),
    "a line": (4, 24, 1, (1, 200), (1, 31), (1, 1), (0, 15), (1, 1)),
    "far padding": (2, 8, 1, (4, 4), (3, 3), (1, 1), (4, 5), (1, 1)),
}


def problem(name):
    """Arrays x and dy, images first, and PyTorch's gradient in float64."""
    images, channels, each, space, window, strides, padding, dilation = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    x = torch.randn(images, channels, *space, generator=generator)
    w = torch.zeros(channels * each, 1, *window, dtype=torch.float64, requires_grad=True)
    y = F.conv2d(x.double(), w, None, strides, padding, dilation, channels)
    dy = torch.randn(y.shape, generator=generator)
    (expected,) = torch.autograd.grad(y, w, dy.double())
    return x, dy, expected


def graph_of(name, last=(False, False)):
    """last: whether the channels of x and of dy are their last dimension."""
    images, channels, each, space, window, strides, padding, dilation = CASES[name]
    places = problem(name)[1].shape[2:]
    b = GraphBuilder("gradient")
    shapes = (images, channels, *space), (images, channels * each, *places)
    given = [
        b.input(n, (shape[0], *shape[2:], shape[1]) if side else shape, float32)
        for n, shape, side in zip(("x", "dy"), shapes, last)
    ]
    after = [
        (k - 1) * d + (n - 1) * s + 1 - size - p
        for k, d, n, s, size, p in zip(window, dilation, places, strides, space, padding)
    ]
    swapped = (1, 0, 2, 3)
    operands = [b.transpose(v, (3, 0, 1, 2) if side else swapped) for v, side in zip(given, last)]
    around = padding, after
    made = b.convolution(*operands, strides=dilation, padding=around, dilation=strides, batch_groups=channels)
    b.output(b.transpose(made, swapped))
    return b.build()


@pytest.fixture
def columns(monkeypatch):
    """Whatever is faster: products of columns; and the plans that were chosen."""
    monkeypatch.setattr(gradient, "_are_columns_faster", lambda *given: True)
    plans, choose = [], DepthwiseGradient.choose

    def noted(*given):
        plans.append(choose(*given))
        return plans[-1]

    monkeypatch.setattr(DepthwiseGradient, "choose", noted)
    return plans


@pytest.mark.parametrize("name", CASES)
def test_gradient(name, columns):
    x, dy, expected = problem(name)
    (found,) = execute_in_both_orders(graph_of(name), [x.numpy(), dy.numpy()])
    assert columns, "made of products of columns"
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=4e-6 * expected.abs().max().item())


@pytest.mark.parametrize("last", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("name", ["three by three", "strided and dilated", "several results", "rows in parts"])
def test_channels_side_by_side(name, last, columns):
    """In memory, as normalisations of channels have them; and then on chip."""
    x, dy, expected = problem(name)
    given = [v.permute(0, 2, 3, 1).contiguous() if side else v for v, side in zip((x, dy), last)]
    (found,) = execute_in_both_orders(graph_of(name, last), [v.numpy() for v in given])
    assert columns
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=4e-6 * expected.abs().max().item())


@pytest.mark.parametrize("seed", range(12))
def test_any_plan(seed, columns, monkeypatch):
    """Of lanes, columns and channels: each product is made once."""
    rng = np.random.default_rng(seed)
    names = list(CASES)
    name = names[int(rng.integers(len(names)))]
    filled = DepthwiseGradient._filled

    def some(self, lanes, room):
        plan = filled(self, lanes, room)
        return plan and plan._replace(channels=int(rng.integers(1, plan.channels + 1)))

    monkeypatch.setattr(DepthwiseGradient, "_filled", some)
    monkeypatch.setattr(DepthwiseGradient, "seconds", lambda *given: float(rng.random()))
    x, dy, expected = problem(name)
    (found,) = execute_in_both_orders(graph_of(name), [x.numpy(), dy.numpy()])
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=4e-6 * expected.abs().max().item())


@pytest.mark.parametrize("kernel", [3, 5])
def test_through_a_layer(kernel, columns):
    generator = torch.Generator().manual_seed(kernel)
    x, w = torch.randn(4, 16, 8, 7, generator=generator), torch.randn(16, 1, kernel, kernel, generator=generator)
    check(lambda a, b: F.conv2d(a, b, stride=2, groups=16), [x, w], on=["trn1"], rtol=1e-5, atol=1e-4)
    assert columns


@pytest.mark.parametrize("name", ["three by three", "strided", "no padding", "rows in parts"])
def test_what_is_not_finite_stays_where_it_is(name, columns):
    """Within its channel, and the taps that meet it."""
    x, dy, _ = problem(name)
    x[0, 3, 1, 2], x[1, 5, 0, 0], x[-1, 7, -1, -1], x[0, 1] = float("inf"), float("nan"), -float("inf"), -0.0
    if CASES[name][6] == (0, 0):  # of what is added outside of the input zero times infinity would be NaN
        dy[0, 2, 0, 0], dy[1, 4, 2, 1] = float("inf"), float("nan")
    _, channels, _, _, window, *moves = CASES[name]
    w = torch.zeros(channels, 1, *window, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(F.conv2d(x.double(), w, None, *moves, channels), w, dy.double())
    (found,) = execute_in_both_orders(graph_of(name), [x.numpy(), dy.numpy()])
    assert columns
    assert not expected.isfinite().all()
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_plans_have_room(seed):
    """What a plan says of SBUF is no less than the kernel takes, where there is little and where there is much; what
    has no room is refused before anything is recorded."""
    rng = np.random.default_rng([3, seed])
    chip = chips.get(("trn1", "trn2")[seed % 2])
    channels, each, images = (int(rng.integers(*ends)) for ends in ((1, 200), (1, 4), (1, 40)))
    taps = tuple(Taps(*(int(rng.integers(1, n)) for n in (8, 3, 3)), int(rng.integers(0, 3))) for _ in range(2))
    places = [int(n) for n in rng.integers(1, 60, 2)]
    sizes = [max(t.reach(n) - t.low, 1) for t, n in zip(taps, places)]
    room = int(rng.integers(20 << 10, chip.sbuf.usable_bytes_per_partition)) // 64 * 64
    b = Builder("gradient", chip, sbuf_limit=room)
    shapes = (channels, images, *sizes), (channels * each, images, *places)
    window = 1, channels * each, taps[0].count, taps[1].count
    x, dy, out = (full(b.param(n, s, bfloat16)) for n, s in zip(("x", "dy", "out"), (*shapes, window)))
    depthwise = DepthwiseGradient(*shapes, taps, 2, 2)
    if not depthwise.fits(room):
        with pytest.raises(CapacityError):
            depthwise_weight_gradient(b, x, dy, out, taps)
        return
    depthwise_weight_gradient(b, x, dy, out, taps)
    plan = depthwise.choose(room, chip)
    assert b.build().sbuf_bytes <= depthwise.bytes(plan) <= room
    assert plan.lanes.images * plan.lanes.bands <= P
