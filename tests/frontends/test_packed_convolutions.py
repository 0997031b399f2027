# SPDX-License-Identifier: Apache-2.0
"""Grouped and depthwise convolutions by the kernels, groups packed: a training step beside the graph's definition."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trnlab import chips, compiler
from trnlab.frontends.torch import capture_step
from trnlab.graph.interpret import interpret
from trnlab.sim.timing import time_program

sys.path.insert(0, str(Path(__file__).parents[1] / "compiler"))
from compiled import run

# images, channels, output channels, window, size, stride, groups, padding, dilation
CASES = {
    "depthwise": (2, 32, 32, 3, (9, 9), 1, 32, 1, 1),
    "depthwise, two packs, strided": (2, 144, 144, 5, (11, 10), 2, 144, 2, 1),
    "two outputs of a channel": (2, 32, 64, 3, (8, 9), 1, 32, 1, 1),
    "groups, more outputs, strided": (2, 64, 96, 3, (8, 9), 2, 8, 1, 1),
    "groups, fewer outputs, dilated": (1, 96, 48, 3, (8, 9), 1, 3, 1, 2),
    "depthwise along long rows": (2, 32, 32, 4, (1100,), 1, 32, 3, 1),
    "long rows, strided": (2, 32, 48, 3, (1100,), 2, 1, 1, 1),
    "long rows, strided far, several parts": (1, 16, 24, 5, (2070,), 3, 1, 2, 1),
    "long rows, windows with gaps between": (1, 16, 24, 2, (1601,), 3, 2, 0, 1),
    "long rows of images, strided and dilated": (1, 16, 16, 3, (5, 1100), 2, 4, 1, 2),
    "a group to a pack": (2, 160, 160, 3, (8, 9), 1, 2, 1, 1),
    "a group to a pack, all rows, strided": (3, 256, 256, 3, (9, 8), 2, 2, 1, 1),
    "groups wider than the PE array": (2, 272, 288, 3, (6, 7), 1, 2, 1, 1),
    "groups wider than the PE array, strided": (2, 288, 160, 3, (9, 7), 2, 2, 1, 1),
    "groups wider than the PE array along long rows": (1, 260, 260, 3, (1040,), 1, 2, 1, 1),
    "one group's results wider than the PE array": (2, 32, 288, 3, (6, 7), 1, 2, 1, 1),
    "depthwise, windows as large as the image": (4, 40, 40, 7, (7, 7), 1, 40, 3, 1),
    "depthwise, windows larger than the image": (4, 40, 80, 5, (3, 4), 1, 40, 2, 1),
    "groups, windows larger than the image": (2, 140, 140, 5, (3, 4), 1, 2, 2, 1),
    "volumes": (2, 16, 24, 3, (4, 5, 6), 1, 1, 1, 1),
    "volumes, strided": (2, 16, 24, 3, (6, 5, 6), 2, 1, 1, 1),
    "volumes, dilated groups": (1, 16, 24, 3, (6, 7, 6), 1, 2, 2, 2),
    "volumes, depthwise": (2, 32, 32, 3, (4, 5, 6), 1, 32, 1, 1),
}


def captured(images, channels, outputs, window, size, stride, groups, padding, dilation):
    """A step that trains a pointwise convolution and the one in question."""
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(size)]
    with FakeTensorMode(), torch.device("neuron"):
        model = nn.Sequential(
            conv(channels, channels, 1, bias=False),
            conv(channels, outputs, window, stride, padding, dilation, groups=groups, bias=False),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = (torch.zeros(images, channels, *size),)
        return capture_step(model, optimizer, lambda m, x: (m(x) ** 2).sum(), inputs).graph


@pytest.mark.parametrize("name", CASES)
def test_forward_and_gradients(name):
    graph = captured(*CASES[name])
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal(v.shape) * 0.1).astype(v.dtype.numpy) for v in graph.inputs]
    expected = interpret(graph, [x.copy() for x in arrays])
    program = compiler.compile(graph, chips.get("trn1"), {"precision": "fp32"})
    for e, g in zip(expected, run(program, graph, [x.copy() for x in arrays])):
        np.testing.assert_allclose(g, e, atol=2e-5 * np.abs(e).max())
    kernels = [call for call in program.calls if call.label.startswith("convolution")]
    assert len(kernels) >= 3, "forward and both gradients are calls of the kernels"


def test_a_depthwise_layer_takes_about_as_long_as_its_pixels():
    """Packed groups stream the pixels once for each element of the window, on the model's clock."""
    graph = captured(8, 128, 128, 3, (56, 56), 1, 128, 1, 1)
    trn1 = chips.get("trn1")
    timeline = time_program(compiler.compile(graph, trn1, {"precision": "bf16"}), trn1)
    pixels = 8 * 56 * 56
    streamed = 9 * pixels / trn1.tensor.clock.value  # of each of forward and gradient by the input
    assert timeline.total / 1e12 < 20 * streamed
