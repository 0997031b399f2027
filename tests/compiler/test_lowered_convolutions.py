# SPDX-License-Identifier: Apache-2.0
"""Convolutions of every geometry, as matrix products and by the kernel: on the interpreter, and on the chip."""

import sys
from pathlib import Path

import numpy as np
import pytest
from compiled import execute, execute_in_both_orders

from trnlab import chips
from trnlab.compiler import compile, convolutions
from trnlab.compiler.convolutions import has_kernel, is_weight_gradient
from trnlab.compiler.rewriting.composites import expand_composites
from trnlab.errors import CapacityError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.isa.base import Engine
from trnlab.kernels.convolutions import gradient as weight_gradients
from trnlab.kernels.convolutions import gradient_plan
from trnlab.kernels.convolutions.gradient_blocks import BlockedGradient, GradientBlocks
from trnlab.kernels.convolutions.gradient_blocks import choose as choose_blocks
from trnlab.kernels.view import full
from trnlab.kernels.windows import Taps
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder
from trnlab.sim.timing import time_program

sys.path.insert(0, str(Path(__file__).parents[1] / "graph"))
from convolutions import random_convolution
from graph_samples import random_inputs


@pytest.mark.parametrize("seed", range(100, 160))
def test_products_are_the_convolution(seed, monkeypatch):
    monkeypatch.setattr(convolutions, "FEWEST_CHANNELS", 1000)
    monkeypatch.setattr(convolutions, "has_few_channels", lambda op: False)
    graph = random_convolution(seed)
    arrays = random_inputs(graph)
    rewritten = graph.copy()
    expand_composites(rewritten)
    assert all(op.name != "convolution" for op in rewritten.ops)  # few channels: none has a kernel
    np.testing.assert_allclose(interpret(rewritten, arrays)[0], interpret(graph, arrays)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("seed", range(6))
def test_on_the_chip(seed, chip):
    graph = random_convolution(seed)
    arrays = random_inputs(graph)
    expected = interpret(graph, arrays)[0]
    np.testing.assert_allclose(execute(graph, arrays, chip=chip)[0], expected, rtol=1e-5, atol=1e-5)


def convolved(images, channels, out, space, window, *, turned=False, precision="fp32", chip="trn1", **given):
    """The kernel's result and the interpreter's; `turned`: weights lie as [channels, out, window]."""
    b = GraphBuilder("kernel")
    x = b.input("x", (images, channels, *space), float32)
    w = b.input("w", (channels, out, *window) if turned else (out, channels, *window), float32)
    b.output(b.convolution(x, b.transpose(w, (1, 0, *range(2, 2 + len(window)))) if turned else w, **given))
    graph = b.build()
    assert has_kernel(next(op for op in graph.ops if op.name == "convolution"))
    arrays = random_inputs(graph)
    return execute(graph, arrays, chip=chip, precision=precision)[0], interpret(graph, arrays)[0]


ONE, FAR = ((1, 1), (1, 1)), ((15, 15), (15, 15))
KERNELS = {
    "same size": ((2, 16, 8, (6, 7), (3, 3)), {"padding": ONE}),
    "more channels than partitions": ((2, 130, 140, (6, 7), (3, 3)), {"padding": ONE}),
    "results larger than the input": ((1, 16, 64, (224, 224), (3, 3)), {"padding": ONE}),
    "strided, in bands": ((1, 32, 8, (40, 41), (3, 3)), {"strides": (2, 2), "padding": ONE}),
    "spread, turned round": (
        (2, 32, 8, (9, 9), (3, 3)),
        {"spread": (2, 2), "padding": ((1, 1), (2, 2)), "reverse": True, "turned": True},
    ),
    "spread, a phase that meets nothing": (
        (1, 16, 8, (5, 4), (1, 2)),
        {"spread": (2, 3), "padding": ((0, 1), (1, 0))},
    ),
    # One pixel of the input makes 256 of the result: of what fits a bank of PSUM not all fits SBUF.
    "spread far, many images": ((17, 8, 3, (3, 2), (16, 16)), {"spread": (16, 16), "padding": FAR, "turned": True}),
    "spread far, a wide image": ((1, 8, 3, (5, 14), (16, 16)), {"spread": (16, 16), "padding": FAR}),
    "a line": ((2, 32, 8, (12,), (5,)), {"padding": ((2,), (2,))}),
    "dilated": ((1, 20, 8, (12, 13), (3, 3)), {"dilation": (2, 2), "padding": ((2, 2), (2, 2)), "chip": "trn2"}),
    "nothing covers all places": ((1, 20, 8, (12, 13), (3, 3)), {"padding": ((3, 3), (3, 3)), "chip": "trn3"}),
    "cropped": ((1, 20, 8, (12, 13), (3, 3)), {"padding": ((-1, 1), (2, -2))}),
    "windows that touch": ((3, 20, 8, (5, 6), (2, 2)), {"strides": (2, 2)}),
    "few channels": ((2, 3, 16, (30, 31), (7, 7)), {"strides": (2, 2), "padding": ((3, 3), (3, 3))}),
    "few channels, in bands": ((1, 3, 64, (224, 224), (3, 3)), {"padding": ONE}),
    "few channels of many images": ((9, 2, 200, (9, 11), (3, 3)), {"padding": ONE, "chip": "trn2"}),
    "few channels, several passes": ((1, 7, 80, (33, 40), (11, 9)), {"padding": ((5, 4), (5, 4)), "chip": "trn3"}),
    "few channels, more strides than columns": ((2, 3, 8, (20, 21), (5, 2)), {"strides": (2, 3)}),
    "few channels, dilated": ((3, 4, 8, (16, 17), (3, 3)), {"dilation": (3, 2), "padding": ((3, 2), (3, 2))}),
    "few channels, rows dilated": (
        (1, 3, 8, (19, 18), (3, 3)),
        {"strides": (2, 2), "dilation": (2, 1), "padding": ((2, 0), (1, 2))},
    ),
    "few channels, cropped": ((1, 3, 8, (19, 18), (5, 5)), {"strides": (1, 2), "padding": ((-2, 3), (3, -2))}),
    "elements far apart, some channels at a time": (
        (1, 2048, 8, (41, 60), (3, 3)),
        {"dilation": (20, 30), "padding": ((20, 30), (20, 30))},
    ),
    "weights in turns": ((1, 300, 700, (5, 5), (5, 5)), {"padding": ((2, 2), (2, 2))}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name):
    sizes, given = KERNELS[name]
    got, expected = convolved(*sizes, **given)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_kernel_in_bf16():
    got, expected = convolved(2, 64, 64, (28, 28), (3, 3), padding=ONE, precision="bf16")
    assert np.abs(got - expected).max() < 2.0**-7 * np.abs(expected).max()


GRADIENTS = {  # images, channels, out, space, pixels of the result, window; strides, padding, dilation
    "same size": ((2, 16, 8, (6, 7), (6, 7), (3, 3)), (1, 1), (1, 1), (1, 1)),
    "no padding": ((3, 16, 8, (6, 7), (4, 5), (3, 3)), (1, 1), (0, 0), (1, 1)),
    "strided": ((2, 20, 8, (12, 13), (6, 7), (3, 3)), (2, 2), (1, 1), (1, 1)),
    "dilated": ((2, 20, 8, (12, 13), (12, 13), (3, 3)), (1, 1), (2, 2), (2, 2)),
    "more channels than partitions": ((5, 130, 140, (7, 7), (7, 7), (3, 3)), (1, 1), (1, 1), (1, 1)),
    "a line": ((2, 20, 8, (50,), (50,), (5,)), (1,), (2,), (1,)),
    "long rows": ((1, 20, 8, (12, 100), (11, 99), (3, 3)), (1, 1), (0, 1), (1, 1)),
    "cropped": ((1, 20, 8, (12, 13), (9, 10), (3, 3)), (1, 1), (-1, 0), (1, 1)),
    "images in groups": ((9, 64, 128, (56, 56), (56, 56), (1, 3)), (1, 1), (0, 1), (1, 1)),
}


def gradient(name, kind=float32):
    """The gradient by the weight, as PyTorch's importer writes it: images and channels exchanged."""
    (images, channels, out, space, pixels, window), strides, padding, dilation = GRADIENTS[name]
    b = GraphBuilder("gradient")
    x, dy = b.input("x", (images, channels, *space), kind), b.input("dy", (images, out, *pixels), kind)
    swapped = (1, 0, *range(2, 2 + len(space)))
    after = [
        (k - 1) * d + (n - 1) * s + 1 - size - p
        for k, d, n, s, size, p in zip(window, dilation, pixels, strides, space, padding)
    ]
    result = b.convolution(
        b.transpose(x, swapped),
        b.transpose(dy, swapped),
        strides=dilation,
        padding=(padding, after),
        dilation=strides,
    )
    b.output(b.transpose(result, swapped))
    return b.build()


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_kernel(name):
    graph = gradient(name)
    op = next(op for op in graph.ops if op.name == "convolution")
    assert has_kernel(op)
    assert is_weight_gradient(op)
    arrays = random_inputs(graph)
    expected = interpret(graph, arrays)[0]
    np.testing.assert_allclose(execute(graph, arrays)[0], expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


FORMS = {  # of gradients with a pixel of each of many images at a time
    "whole images": lambda form: form.whole and not form.held,
    "whole images, one load at a time": lambda form: form.whole and form.bufs == 1,
    "held": lambda form: form.held and not form.whole,
    "rows, few at a time": lambda form: not form.whole and not form.held and form.loaded == 1,
    "rows, several at a time": lambda form: not form.whole and form.loaded > 1,
    "stripes": lambda form: form.cols == 3,
    "few channels at a time": lambda form: form.channels == 128,
}
GRADIENTS |= {
    "many images": ((70, 20, 24, (9, 7), (9, 7), (3, 3)), (1, 1), (1, 1), (1, 1)),
    "many images, strided": ((130, 20, 24, (8, 9), (4, 5), (3, 3)), (2, 2), (1, 1), (1, 1)),
    "many images, uneven": ((5, 300, 140, (9, 7), (9, 8), (3, 2)), (1, 1), (1, 1), (1, 1)),
    "many images, cropped and dilated": ((40, 70, 20, (12, 13), (5, 12), (3, 3)), (2, 1), (-1, 1), (2, 1)),
    "many images, bands of several rows": ((150, 20, 24, (14, 6), (14, 6), (5, 3)), (1, 1), (2, 1), (1, 1)),
    "few large images": ((4, 160, 160, (64, 64), (64, 64), (3, 3)), (1, 1), (1, 1), (1, 1)),
    "many images, strided one by one": ((6, 600, 130, (5, 5), (3, 3), (1, 1)), (2, 2), (0, 0), (1, 1)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name in GRADIENTS if name.startswith("many")])
def test_gradient_in_lanes(name, form, monkeypatch):
    """Each way to bring the pixels of many images on chip gives the gradient."""
    forms, used = gradient_plan._forms, []

    def some(*given):
        found = [f for f in forms(*given) if FORMS[form](f)]
        used.extend(found)
        return found

    monkeypatch.setattr(gradient_plan, "_forms", some)
    graph = gradient(name)
    arrays = random_inputs(graph)
    expected = interpret(graph, arrays)[0]
    try:
        got = execute(graph, arrays)[0]
    except CapacityError:
        assert not used, "a form that is offered fits"
        pytest.skip("has no such form")
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=4e-6 * np.abs(expected).max())


def test_bands_of_images_are_loaded_side_by_side():
    """Few large images: rows of each band are a transfer of a few kilobytes, which takes two microseconds alone."""
    chip = chips.get("trn1")
    timeline = time_program(compile(gradient("few large images", bfloat16), chip, {"precision": "bf16"}), chip)
    (call,) = (c for c in timeline.calls if c.label.startswith("convolution"))
    part = slice(call.first, call.first + call.count)
    loads = timeline.engine[part] == Engine.SYNC
    start, done = timeline.start[part][loads], timeline.done[part][loads]
    in_flight = (done - start).sum() / (done.max() - start.min())
    assert loads.sum() > 1000
    assert in_flight > 2


@pytest.mark.parametrize(
    ("shape", "out", "window", "stride", "padding"),
    [
        ((1, 130, 40, 100), 8, 3, 1, 1),
        ((2, 16, 60, 60), 130, 3, 2, 1),
        ((3, 300, 1501), 200, 3, 2, 1),
        ((2, 130, 2000), 8, 10, 5, 0),
        ((1, 130, 3, 1200), 140, 3, 1, 1),
    ],
)
def test_gradient_in_parts(shape, out, window, stride, padding, monkeypatch):
    """Where an image, or the sums of all channels, have no room: bands of rows, parts of a row or of a line, and some
    channels at a time."""
    monkeypatch.setattr(convolutions, "IMAGE_BYTES", 24 << 10)
    monkeypatch.setattr(convolutions, "SUMS_BYTES", 50 << 10)
    places = [(n + 2 * padding - window) // stride + 1 for n in shape[2:]]
    b = GraphBuilder("gradient")
    x, dy = b.input("x", shape, float32), b.input("dy", (shape[0], out, *places), float32)
    after = [(window - 1) + (m - 1) * stride + 1 - n - padding for m, n in zip(places, shape[2:])]
    swapped, rank = (1, 0, *range(2, len(shape))), len(places)
    around = (padding,) * rank, after
    result = b.convolution(
        b.transpose(x, swapped), b.transpose(dy, swapped), padding=around, dilation=(stride,) * rank
    )
    b.output(b.transpose(result, swapped))
    graph = b.build()
    rewritten = graph.copy()
    expand_composites(rewritten)
    assert len([op for op in rewritten.ops if op.name == "convolution"]) > 1
    arrays = random_inputs(graph)
    expected = interpret(graph, arrays)[0]
    np.testing.assert_allclose(execute(graph, arrays)[0], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("seed", range(12))
def test_gradient_in_any_blocks(seed, monkeypatch):
    """Of channels of the input, of the result, and of images: each is done once, and the result is one."""
    rng = np.random.default_rng(seed)
    channels, out, images = (int(rng.integers(*ends)) for ends in ((100, 400), (4, 300), (1, 6)))
    window, stride, low = int(rng.integers(2, 4)), int(rng.integers(1, 3)), int(rng.integers(0, 2))
    places = [int(n) for n in rng.integers(3, 8, 2)]
    sizes = [(n - 1) * stride + window - low for n in places]
    whole = -(-channels // 128), -(-out // 128)
    depth, outs = (int(rng.integers(1, n + 1)) for n in whole)
    blocks = GradientBlocks(min(128 * depth, channels), outs, int(rng.integers(1, images + 1)))
    monkeypatch.setattr(weight_gradients, "choose", lambda *given: blocks)
    monkeypatch.setattr(weight_gradients, "pays", lambda *given: False)
    b = GraphBuilder("gradient")
    x, dy = b.input("x", (channels, images, *sizes), float32), b.input("dy", (out, images, *places), float32)
    b.output(b.convolution(x, dy, padding=((low, low), (0, 0)), dilation=(stride, stride)))
    graph = b.build()
    rewritten = graph.copy()
    expand_composites(rewritten)
    assert [op.name for op in rewritten.ops if op.name in ("convolution", "concatenate")] == ["convolution"]
    arrays = random_inputs(graph)
    expected = interpret(graph, arrays)[0]
    (found,) = execute_in_both_orders(graph, arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("gradient", [False, True])
def test_patches_of_images_are_a_view(gradient):
    """Those of ViT-Base, 64 images: windows that share no pixel are a matmul, however many pixels they have."""
    b = GraphBuilder("patches")
    if gradient:
        x, dy = b.input("x", (3, 64, 224, 224), float32), b.input("dy", (768, 64, 14, 14), float32)
        b.output(b.convolution(x, dy, dilation=(16, 16)))
    else:
        x, weight = b.input("x", (64, 3, 224, 224), float32), b.input("weight", (768, 3, 16, 16), float32)
        b.output(b.convolution(x, weight, strides=(16, 16)))
    graph = b.build()
    expand_composites(graph)
    names = {op.name for op in graph.ops}
    assert "dot_general" in names
    assert not names & {"convolution", "concatenate", "pad"}


@pytest.mark.parametrize("seed", range(25))
def test_blocks_of_a_gradient_have_room(seed):
    """What an estimate says of SBUF is no less than the kernel takes of it, where there is little and where there is
    much; and what has no room is refused before anything is recorded."""
    rng = np.random.default_rng([7, seed])
    chip = chips.get(("trn1", "trn2")[seed % 2])
    channels, out, images = (int(rng.integers(*ends)) for ends in ((1, 700), (1, 700), (1, 9)))
    taps = tuple(Taps(int(rng.integers(1, 4)), int(rng.integers(1, 3)), 1, int(rng.integers(0, 2))) for _ in range(2))
    places = [int(n) for n in rng.integers(1, 40, 2)]
    sizes = [max(t.reach(n) - t.low, 1) for t, n in zip(taps, places)]
    room = int(rng.integers(30 << 10, chip.sbuf.usable_bytes_per_partition)) // 64 * 64
    b = Builder("gradient", chip, sbuf_limit=room)
    x, dy, result = (
        full(b.param(name, shape, bfloat16))
        for name, shape in (
            ("x", (channels, images, *sizes)),
            ("dy", (out, images, *places)),
            ("out", (channels, out, taps[0].count, taps[1].count)),
        )
    )
    problem = BlockedGradient(x.shape, dy.shape, taps, 2, 2)
    try:
        blocks = choose_blocks(problem, room, chip)
    except CapacityError:
        assert problem.bytes(GradientBlocks(min(channels, 128), 1, 1)) > room
        return
    for at in range(0, channels, blocks.channels):
        part = slice(at, min(at + blocks.channels, channels))
        with b.scope():
            weight_gradients._Gradient(b, x[part], dy, result[part], taps, blocks).record()
    assert b.build().sbuf_bytes <= problem.bytes(blocks) <= room
