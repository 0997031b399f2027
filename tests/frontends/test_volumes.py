# SPDX-License-Identifier: Apache-2.0
"""Convolutions of three dimensions against PyTorch, forward and backward, through what makes images of them."""

import pytest
import torch
import torch.nn.functional as F
from helpers import check, engine

from trnlab.compiler.convolutions import has_kernel
from trnlab.compiler.rewriting.composites import expand_composites
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import bfloat16


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "same size": (F.conv3d, (2, 8, 4, 5, 6), (12, 8, 3, 3, 3), {"padding": 1}),
    "one image, no padding": (F.conv3d, (1, 16, 5, 6, 5), (8, 16, 3, 3, 3), {}),
    "strided in all dimensions": (F.conv3d, (2, 16, 7, 8, 9), (12, 16, 3, 3, 3), {"padding": 1, "stride": 2}),
    "strided along the depth": (F.conv3d, (2, 8, 9, 5, 6), (8, 8, 3, 3, 3), {"padding": 1, "stride": (3, 1, 2)}),
    "strides beyond the window": (F.conv3d, (2, 16, 9, 6, 6), (8, 16, 2, 3, 3), {"stride": (4, 1, 1)}),
    "dilated along the depth": (F.conv3d, (1, 16, 9, 5, 6), (8, 16, 3, 3, 2), {"padding": 2, "dilation": (3, 1, 2)}),
    "strided and dilated": (F.conv3d, (1, 8, 12, 7, 6), (8, 8, 3, 2, 3), {"stride": 2, "dilation": 3, "padding": 2}),
    "one picture at a time": (F.conv3d, (2, 16, 3, 7, 6), (8, 16, 1, 3, 3), {"padding": (0, 1, 1)}),
    "one picture of several": (F.conv3d, (2, 16, 6, 7, 6), (8, 16, 1, 3, 3), {"stride": (2, 2, 2)}),
    "one by one by one, strided": (F.conv3d, (2, 16, 6, 7, 6), (8, 16, 1, 1, 1), {"stride": 2}),
    "one by one by one": (F.conv3d, (2, 16, 3, 4, 5), (8, 16, 1, 1, 1), {}),
    "depth alone": (F.conv3d, (2, 16, 6, 5, 6), (8, 16, 3, 1, 1), {"padding": (1, 0, 0)}),
    "depth alone, strided": (
        F.conv3d,
        (2, 16, 8, 5, 6),
        (8, 16, 4, 1, 1),
        {"padding": (1, 0, 0), "stride": (2, 1, 1)},
    ),
    "depth alone, planes skipped": (F.conv3d, (2, 16, 8, 5, 6), (8, 16, 3, 1, 1), {"stride": (1, 2, 2)}),
    "depth alone of large planes": (F.conv3d, (1, 8, 4, 24, 30), (8, 8, 3, 1, 1), {"padding": (1, 0, 0)}),
    "more padding than window": (F.conv3d, (1, 8, 2, 4, 4), (8, 8, 2, 2, 2), {"padding": 3}),
    "windows larger than the volume": (F.conv3d, (2, 8, 2, 3, 3), (8, 8, 5, 5, 5), {"padding": 2}),
    "few channels": (F.conv3d, (2, 3, 6, 9, 10), (8, 3, 3, 7, 7), {"stride": (1, 2, 2), "padding": (1, 3, 3)}),
    "one channel": (F.conv3d, (2, 1, 6, 7, 6), (8, 1, 3, 3, 3), {"padding": 1}),
    "patches": (F.conv3d, (2, 3, 4, 8, 8), (16, 3, 2, 4, 4), {"stride": (2, 4, 4)}),
    "patches of many channels": (F.conv3d, (2, 16, 4, 6, 6), (16, 16, 2, 2, 2), {"stride": 2}),
    "groups": (F.conv3d, (2, 32, 4, 5, 5), (48, 8, 3, 3, 3), {"padding": 1, "groups": 4, "stride": (1, 2, 1)}),
    "depthwise": (F.conv3d, (2, 24, 4, 5, 5), (24, 1, 3, 3, 3), {"padding": 1, "groups": 24, "stride": (2, 1, 1)}),
    "depthwise along the depth": (F.conv3d, (2, 24, 6, 3, 4), (24, 1, 5, 1, 1), {"padding": (2, 0, 0), "groups": 24}),
    "transposed": (F.conv_transpose3d, (1, 16, 3, 4, 4), (16, 8, 2, 2, 2), {"stride": 2}),
    "transposed, padded": (
        F.conv_transpose3d,
        (2, 8, 3, 4, 3),
        (8, 4, 4, 3, 3),
        {"stride": (2, 1, 2), "padding": (1, 1, 0), "output_padding": (1, 0, 1), "groups": 2},
    ),
    "transposed, gaps": (F.conv_transpose3d, (1, 8, 3, 3, 3), (8, 8, 2, 3, 3), {"stride": (3, 1, 1), "dilation": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_volumes(name):
    function, x, w, given = CASES[name]
    inputs = [random(*x), random(*w, seed=1)]
    check(lambda x, w: function(x, w, **given), inputs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["same size", "strided in all dimensions", "depth alone", "transposed, padded"])
def test_volumes_in_bfloat16(name):
    """Small whole numbers, whose sums are exact: what PyTorch computes in float32, rounded once."""
    function, *shapes, given = CASES[name]
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randint(-2, 3, shape, generator=generator).bfloat16() for shape in shapes)
    leaves = [v.float().requires_grad_() for v in (x, w)]
    expected = function(*leaves, **given)
    gradients = torch.autograd.grad(expected.sum(), leaves)
    with engine("trn1"):
        on_chip = [v.to("neuron").requires_grad_() for v in (x, w)]
        got = torch.compile(lambda x, w: function(x, w, **given), backend="neuron")(*on_chip)
        found = torch.autograd.grad(got.sum(), on_chip)
    for a, b in zip((got, *found), (expected, *gradients), strict=True):
        assert torch.equal(a.detach().cpu(), b.detach().bfloat16())


@pytest.mark.parametrize(
    "given", [{"padding": 1}, {"padding": 1, "stride": 2}, {"padding": 2, "dilation": (2, 1, 2)}]
)
@pytest.mark.parametrize("channels", [3, 16])
def test_what_is_not_finite_stays_where_it_is(channels, given):
    """Infinity and NaN reach the places that see them, and no others; of either zero the sums are the same."""
    x, w = random(2, channels, 5, 7, 6), random(5, channels, 3, 3, 3, seed=1)
    x[0, 1, 0, 0, 5], x[1, 2, 2, 4, 4], x[0, 0, 4, 6, 3] = float("inf"), float("nan"), float("-inf")
    x[1, 0, :2] = -0.0
    check(lambda a, b: F.conv3d(a, b, **given), [x, w], on=["trn1"], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("window", [(3, 3, 3), (1, 3, 3), (3, 1, 1)])
def test_forward_and_gradient_share_what_they_copy(window):
    """Each is one convolution of images that has a kernel; where the window has one plane, or depth alone, planes
    are only looked at, never put side by side."""
    b = GraphBuilder("volume")
    x, dy = b.input("x", (2, 16, 4, 6, 6), bfloat16), b.input("dy", (2, 8, 4, 6, 6), bfloat16)
    w = b.input("w", (8, 16, *window), bfloat16)
    around = tuple(n // 2 for n in window)
    b.output(b.convolution(x, w, padding=(around, around)))
    swapped = (1, 0, 2, 3, 4)
    b.output(b.convolution(b.transpose(x, swapped), b.transpose(dy, swapped), padding=(around, around)))
    graph = b.build()
    expand_composites(graph)
    found = [op for op in graph.ops if op.name == "convolution"]
    assert len(found) == 2
    assert all(len(op.result.shape) == 4 and has_kernel(op) for op in found)
    assert any(op.name in ("concatenate", "pad") for op in graph.ops) == (window == (3, 3, 3))
