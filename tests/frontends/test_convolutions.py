# SPDX-License-Identifier: Apache-2.0
"""Convolutions, pooling, resizing and batch statistics against PyTorch, forward and backward."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers import check, engine
from torch import nn

import trnlab.frontends.torch as neuron

GRID = [
    (size, window, stride, padding, dilation)
    for size, window, stride, padding, dilation in itertools.product((7, 12), (1, 2, 3), (1, 2, 3), (0, 1, 2), (1, 2))
    if size + 2 * padding >= dilation * (window - 1) + 1
]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("size", "window", "stride", "padding", "dilation"), GRID)
def test_grid_of_one_dimension(size, window, stride, padding, dilation):
    """Also as the transposed convolution with the same numbers, whose padding may crop."""
    given = {"stride": stride, "padding": padding, "dilation": dilation}
    check(lambda x, w: F.conv1d(x, w, **given), [random(2, 3, size), random(4, 3, window)], on=["interpreter"])
    if (size - 1) * stride - 2 * padding + dilation * (window - 1) + 1 > 0:
        weight = random(3, 2, window)
        check(lambda x, w: F.conv_transpose1d(x, w, **given), [random(2, 3, size), weight], on=["interpreter"])


CASES = {
    "stem of a ResNet": (F.conv2d, (2, 3, 17, 15), (8, 3, 7, 7), {"stride": 2, "padding": 3}),
    "three by three": (F.conv2d, (2, 8, 9, 9), (16, 8, 3, 3), {"padding": 1}),
    "one by one": (F.conv2d, (2, 8, 5, 6), (4, 8, 1, 1), {}),
    "one by one, strided": (F.conv2d, (2, 8, 5, 6), (4, 8, 1, 1), {"stride": 2}),
    "patches": (F.conv2d, (2, 3, 16, 16), (32, 3, 4, 4), {"stride": 4}),
    "patches that leave a rest": (F.conv2d, (2, 3, 18, 19), (32, 3, 4, 4), {"stride": 4}),
    "patches of many images": (F.conv2d, (17, 3, 48, 32), (8, 3, 16, 16), {"stride": 16}),
    "depthwise": (F.conv2d, (2, 6, 9, 8), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    "depthwise, multiplied": (F.conv2d, (1, 4, 9, 8), (8, 1, 5, 5), {"padding": 2, "stride": 2, "groups": 4}),
    "grouped": (F.conv2d, (2, 8, 7, 7), (12, 2, 3, 3), {"groups": 4}),
    "dilated": (F.conv2d, (1, 3, 12, 12), (4, 3, 3, 3), {"padding": 2, "dilation": 2}),
    "sides differ": (F.conv2d, (1, 3, 9, 12), (4, 3, 1, 5), {"padding": (0, 2), "stride": (1, 3)}),
    "no batch": (F.conv2d, (3, 9, 9), (4, 3, 3, 3), {}),
    "speech": (F.conv1d, (1, 1, 100), (6, 1, 10), {"stride": 5}),
    "positional, even window": (F.conv1d, (1, 8, 20), (8, 2, 6), {"padding": 3, "groups": 4}),
    "volumes": (F.conv3d, (1, 2, 5, 6, 7), (3, 2, 3, 3, 3), {"padding": 1, "stride": (1, 2, 2)}),
    "transposed": (F.conv_transpose2d, (2, 6, 5, 4), (6, 3, 4, 4), {"stride": 2, "padding": 1}),
    "transposed, output padding": (
        F.conv_transpose2d,
        (1, 4, 5, 5),
        (4, 2, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
    ),
    "transposed, gaps": (F.conv_transpose1d, (1, 3, 5), (3, 2, 2), {"stride": 3}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bias", [False, True])
def test_convolution(name, bias):
    function, x, w, given = CASES[name]
    inputs = [random(*x), random(*w, seed=1)]
    if bias:
        out = w[1] * given.get("groups", 1) if "transposed" in name else w[0]
        check(lambda x, w, b: function(x, w, b, **given), [*inputs, random(out, seed=2)], rtol=1e-5, atol=5e-5)
    else:
        check(lambda x, w: function(x, w, **given), inputs, rtol=1e-5, atol=5e-5)


def test_circular_padding_and_modules():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding="same", padding_mode="circular"), nn.ReLU(), nn.Conv2d(4, 2, 1))
    check(module, [random(2, 3, 6, 6)], on=["trn1"], rtol=1e-5, atol=5e-5)


# -- pooling, resizing, batch statistics ----------------------------------------------------------------------------

HOSTILE = torch.tensor([1.0, float("inf"), -float("inf"), float("nan"), -0.0, 3e38, -3e38, 1e-40, 2.0])


def hostile(*shape):
    count = torch.Size(shape).numel()
    picked = torch.randint(0, len(HOSTILE), (count,), generator=torch.Generator().manual_seed(7))
    return torch.where(torch.arange(count) % 3 == 0, HOSTILE[picked], random(count)).reshape(shape)


POOLS = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max, overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max, dilated": lambda x: F.max_pool2d(x, (2, 3), 1, (0, 1), 2),
    "max, ceil": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "max of a line": lambda x: F.max_pool1d(x.flatten(2), 3, 2),
    "average": lambda x: F.avg_pool2d(x, 2),
    "average, padded": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average, ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average, another divisor": lambda x: F.avg_pool2d(x, (3, 2), (1, 2), 1, divisor_override=5),
    "average of a window": lambda x: F.avg_pool2d(x, (7, 9)),
    "average of a line": lambda x: F.avg_pool1d(x.flatten(2), 4, 3, 2, ceil_mode=True, count_include_pad=False),
    "average of volumes": lambda x: F.avg_pool3d(x, (2, 3, 2), (1, 2, 2), (1, 1, 0), True, count_include_pad=False),
    "average of volumes, another divisor": lambda x: F.avg_pool3d(x, 2, 1, divisor_override=3),
    "average of all": lambda x: F.adaptive_avg_pool2d(x, 1),
    "average, adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "max, adaptive": lambda x: F.adaptive_max_pool2d(x, (7, 3)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest, odd": lambda x: F.interpolate(x, size=(5, 13)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, size=(4, 17), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, size=(9, 5), mode="bicubic"),
    "bilinear, smoothed": lambda x: F.interpolate(x, scale_factor=0.4, mode="bilinear", antialias=True),
    "bilinear, smoothed, corners": lambda x: F.interpolate(x, (3, 12), None, "bilinear", True, antialias=True),
    "bicubic, smoothed": lambda x: F.interpolate(x, size=(2, 11), mode="bicubic", antialias=True),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_and_resizing(name):
    check(POOLS[name], [random(2, 3, 7, 9)])


@pytest.mark.parametrize("name", [name for name in POOLS if name.startswith(("max", "nearest"))])
def test_what_only_picks_keeps_every_number(name):
    check(POOLS[name], [hostile(2, 3, 7, 9)], gradients=False)


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("channels", [3, 24])
def test_a_block_in_bfloat16(channels, chip):
    """A bottleneck of small whole numbers, whose sums are exact: of what is added up there is left at most one
    rounding for each operation, half a step of 2^-8 each."""

    def block(x, stem, wide, across, scale, shift):
        x = F.relu(F.conv2d(x, stem, None, 2, 3))
        y = F.conv2d(x, wide, None, 1, 1) * scale[0] + shift[0]
        return F.relu(y + (F.conv2d(x, across) * scale[1] + shift[1]))

    generator = torch.Generator().manual_seed(channels)
    shapes = (2, channels, 17, 18), (16, channels, 7, 7), (40, 16, 3, 3), (40, 16, 1, 1)
    given = [torch.randint(-3, 4, shape, generator=generator).bfloat16() for shape in shapes]
    factors = [[torch.rand(40, 1, 1, generator=generator).bfloat16() for _ in range(2)] for _ in range(2)]
    with engine(chip):
        on_chip = [[x.to("neuron") for x in each] for each in factors]
        got = torch.compile(block, backend="neuron")(*(x.to("neuron") for x in given), *on_chip)
    x, stem, wide, across = (t.double() for t in given)
    (a, b), (c, d) = ([t.double() for t in each] for each in factors)
    x = F.relu(F.conv2d(x, stem, None, 2, 3)).bfloat16().double()
    terms = F.conv2d(x, wide, None, 1, 1) * a, c, F.conv2d(x, across) * b, d
    bound = 5 * 2.0**-9 * sum(t.abs() for t in terms)
    assert ((got.cpu().double() - F.relu(sum(terms))).abs() <= bound).all()


LARGEST = {  # shape, window, stride, padding
    "of a ResNet": ((1, 64, 17, 15), 3, 2, 1),
    "windows that touch": ((2, 64, 12, 14), 2, 2, 0),
    "rows of windows first": ((1, 32, 12, 9), 5, 1, 2),
    "more images than partitions": ((3, 50, 9, 8), (3, 2), (1, 2), (1, 0)),
}


@pytest.mark.parametrize("chip", ["trn1", "trn2", "inf2"])
@pytest.mark.parametrize("name", LARGEST)
def test_largest_elements_in_bfloat16(name, chip):
    """The largest of some numbers is one of them: nothing is rounded."""
    shape, *window = LARGEST[name]
    x = hostile(*shape).bfloat16()
    with engine(chip):
        got = torch.compile(lambda x: F.max_pool2d(x, *window), backend="neuron")(x.to("neuron"))
    assert torch.equal(got.cpu().nan_to_num(7.0), F.max_pool2d(x, *window).nan_to_num(7.0))


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 5, 3), (2, 4, 2, 3, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape, training):
    check(
        lambda x, w, b, mean, var: F.batch_norm(x, mean.detach().clone(), var.detach().abs(), w, b, training),
        [random(*shape) * 3 + 5, *(random(4, seed=i) for i in (1, 2, 3, 4))],
        rtol=2e-5,
        atol=2e-5,
    )


def residual_network():
    """Stem, pooling, a block with a shortcut, averages and a head: what a ResNet is made of."""

    class Block(nn.Module):
        def __init__(self, inside, out, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inside, out, 3, stride, 1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(),
                nn.Conv2d(out, out, 3, 1, 1, bias=False),
                nn.BatchNorm2d(out),
            )
            self.shortcut = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x):
            return F.relu(self.body(x) + self.shortcut(x))

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Block(8, 8, 1),
        Block(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def test_a_residual_network_trains_as_on_the_host():
    """Three steps with running statistics, `compile_step` beside eager PyTorch."""
    ours = residual_network()
    theirs = copy.deepcopy(ours)
    batches = [(random(4, 3, 32, 32, seed=i), torch.arange(4) % 5) for i in range(3)]
    with engine("trn1"):
        ours.to("neuron")
        step = neuron.compile_step(
            ours, torch.optim.SGD(ours.parameters(), 0.05, 0.9), lambda net, x, y: F.cross_entropy(net(x), y)
        )
        got = [float(step(x.to("neuron"), y.to("neuron"))) for x, y in batches]
    optimizer, expected = torch.optim.SGD(theirs.parameters(), 0.05, 0.9), []
    for x, y in batches:
        loss = F.cross_entropy(theirs(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert got == pytest.approx(expected, rel=1e-4)
    for (name, x), y in zip(ours.state_dict().items(), theirs.state_dict().values()):
        assert torch.allclose(x.cpu(), y, rtol=1e-3, atol=1e-4), name
