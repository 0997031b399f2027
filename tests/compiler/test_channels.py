# SPDX-License-Identifier: Apache-2.0
"""Exchanging channels and images keeps the meaning, and leaves no transposes between layers."""

import numpy as np
import pytest
from compiled import execute

from trnlab.compiler.rewriting import channels
from trnlab.compiler.rewriting.channels import channels_first
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.passes import simplify
from trnlab.graph.verify import verify
from trnlab.numerics.dtypes import float32


def inputs_of(graph, rng):
    return [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]


def assert_meaning_is_kept(graph, rng, *, on_chip):
    """The graph that the pass makes, and the chip where asked, compute what the graph does."""
    arrays = inputs_of(graph, rng)
    changed = graph.copy()
    channels_first(changed)
    verify(changed)
    for got, expected in zip(interpret(changed, arrays), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    if on_chip:
        for got, expected in zip(execute(graph, arrays), interpret(graph, arrays), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def layer(b, x, channels, rng, name):
    """A convolution of a random window, and what follows it, at random."""
    window = int(rng.integers(1, 4))
    w = b.input(name, (channels, x.shape[1], window, window), float32)
    pad = ((window // 2,) * 2, ((window - 1) // 2,) * 2)
    y = b.convolution(x, w, padding=pad)
    shape = (1, channels, 1, 1)
    for choice in rng.integers(0, 9, 3):
        match int(choice):
            case 0:
                y = b.subtract(y, b.reshape(b.reduce(y, (0, 2, 3)), shape))
            case 1:
                y = b.maximum(y, 0.0)
            case 2:
                y = b.multiply(y, b.reduce(y, (2, 3), keepdims=True))
            case 3:
                y = b.add(y, b.reduce(y, (1,), "maximum", keepdims=True))
            case 4:
                y = b.slice(
                    b.pad(y, (0, 1, 1, 0), (1, 0, 0, 1)), (0, 1, 0, 0), (*y.shape[:1], 1 + channels, *y.shape[2:])
                )
            case 5:
                y = b.add(y, b.transpose(b.transpose(y, (1, 0, 2, 3)), (1, 0, 2, 3)))
            case 6:
                y = b.slice_dim(b.concatenate([y, y], 1), 1, 0, channels)
            case 7:
                flat = b.reshape(y, (*y.shape[:2], y.shape[2] * y.shape[3]))
                y = b.multiply(y, b.reshape(b.reduce(flat, (2,)), (*y.shape[:2], 1, 1)))
            case _:
                y = b.transpose(b.transpose(y, (0, 2, 3, 1)), (0, 3, 1, 2))
    return y


@pytest.mark.parametrize("seed", range(40))
def test_meaning_is_kept(seed):
    rng = np.random.default_rng(seed)
    b = GraphBuilder("layers")
    x = b.input("x", (2, 3, 5, 4), float32)
    y = layer(b, layer(b, x, 4, rng, "w0"), 3, rng, "w1")
    for value in (b.add(y, x), b.reduce(y, (0, 1, 2, 3)), b.reduce(y, (1, 3)), b.reshape(y, (2, -1))):
        b.output(value)
    assert_meaning_is_kept(b.build(), rng, on_chip=seed < 6)


def test_no_transposes_between_layers():
    """Of two normalised layers what comes in is transposed, and the sides of convolutions, which is free."""
    b = GraphBuilder("layers")
    x = b.input("x", (2, 16, 5, 4), float32)
    for i in range(2):
        y = b.convolution(x, b.input(f"w{i}", (16, 16, 3, 3), float32), padding=((1, 1), (1, 1)))
        mean = b.reshape(b.reduce(y, (0, 2, 3)), (1, 16, 1, 1))
        x = b.add(b.maximum(b.subtract(y, mean), 0.0), x)
    b.output(b.reduce(x, (0, 2, 3)))
    graph = b.build()
    channels_first(graph)
    simplify(graph)
    moved = [op for op in graph.ops if op.name == "transpose"]
    beside = [op for op in graph.ops if op.name == "convolution"]
    readers = graph.users()
    inner = [
        op
        for op in moved
        if op.operands[0].op not in beside and not all(r.name == "convolution" for r in readers[op.result])
    ]
    assert [op.operands[0].name for op in inner] == ["x"]
    sums = [op for op in graph.ops if op.name == "reduce"]
    assert all(op.attrs["dimensions"] == (1, 2, 3) for op in sums), "a channel's pixels lie in one row"


LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def layer_of_channels_last(b, x, channels, rng, name):
    """As `layer`, of [N, H, W, C] and windows [Y, X, I, O]: as JAX and TensorFlow have them."""
    window = int(rng.integers(1, 4))
    w = b.input(name, (window, window, x.shape[3], channels), float32)
    pad = ((window // 2,) * 2, ((window - 1) // 2,) * 2)
    y = b.transpose(b.convolution(b.transpose(x, FIRST), b.transpose(w, (3, 2, 0, 1)), padding=pad), LAST)
    for choice in rng.integers(0, 10, 3):
        match int(choice):
            case 0:
                y = b.subtract(y, b.reshape(b.reduce(y, (0, 1, 2)), (1, 1, 1, channels)))
            case 1:
                y = b.maximum(y, 0.0)
            case 2:
                y = b.multiply(y, b.reduce(y, (1, 2), keepdims=True))
            case 3:
                y = b.add(y, b.reduce(y, (3,), "maximum", keepdims=True))
            case 4:
                images, rows, cols, _ = y.shape
                y = b.slice(
                    b.pad(y, (0, 1, 0, 1), (1, 0, 1, 0)), (0, 1, 0, 1), (images, 1 + rows, cols, 1 + channels)
                )
            case 5:
                y = b.add(y, b.transpose(b.transpose(y, (1, 3, 0, 2)), (2, 0, 3, 1)))
            case 6:
                y = b.slice_dim(b.concatenate([y, y], 3), 3, 0, channels)
            case 7:
                flat = b.reshape(y, (y.shape[0], y.shape[1] * y.shape[2], channels))
                y = b.multiply(y, b.reshape(b.reduce(flat, (1,)), (y.shape[0], 1, 1, channels)))
            case 8:  # of what is repeated alone, as gradients of means are
                mean = b.broadcast_in_dim(b.reduce(y, (0, 1, 2)), y.shape, (3,))
                y = b.add(y, b.maximum(b.divide(mean, 40.0), b.negate(mean)))
            case _:
                y = b.add(y, b.broadcast_in_dim(b.reduce(y, (2,)), y.shape, (0, 1, 3)))
    return y


@pytest.mark.parametrize("seed", range(40))
def test_meaning_is_kept_of_channels_last(seed):
    rng = np.random.default_rng(seed)
    b = GraphBuilder("layers")
    x = b.input("x", (2, 5, 4, 3), float32)
    y = layer_of_channels_last(b, layer_of_channels_last(b, x, 4, rng, "w0"), 3, rng, "w1")
    for value in (
        b.add(y, x),
        b.reduce(y, (0, 1, 2, 3)),
        b.reduce(y, (1, 3)),
        b.reduce(y, (2,)),
        b.reshape(y, (2, -1)),
    ):
        b.output(value)
    assert_meaning_is_kept(b.build(), rng, on_chip=seed < 6)


def test_no_transposes_between_layers_of_channels_last():
    """Of what comes in last, and of windows, alone."""
    b = GraphBuilder("layers")
    x = b.input("x", (2, 5, 4, 16), float32)
    for i in range(2):
        w = b.input(f"w{i}", (3, 3, 16, 16), float32)
        pad = ((1, 1), (1, 1))
        y = b.transpose(b.convolution(b.transpose(x, FIRST), b.transpose(w, (3, 2, 0, 1)), padding=pad), LAST)
        mean = b.divide(b.broadcast_in_dim(b.reduce(y, (0, 1, 2)), y.shape, (3,)), 40.0)
        x = b.add(b.maximum(b.subtract(y, mean), 0.0), x)
    b.output(b.reduce(x, (0, 1, 2)))
    graph = b.build()
    channels_first(graph)
    simplify(graph)
    beside = [op for op in graph.ops if op.name == "convolution"]
    readers = graph.users()
    moved = [op for op in graph.ops if op.name == "transpose" and op.operands[0].op not in beside]
    inner = [op for op in moved if not all(r.name == "convolution" for r in readers[op.result])]
    assert {op.operands[0].name for op in inner} == {"x"}
    sums = [op for op in graph.ops if op.name == "reduce"]
    assert all(op.attrs["dimensions"] == (1, 2, 3) for op in sums), "a channel's pixels lie in one row"


def windows_of_channels_last(computed):
    """The largest elements of windows and their gradient, of [N, H, W, C]; of an input, or of what is computed."""
    b = GraphBuilder("windows")
    x = b.input("x", (2, 6, 8, 3), float32)
    y = b.maximum(x, 0.0) if computed else x
    sides = {"window": (2, 2), "window_strides": (2, 2), "padding_low": (0, 0), "places": (3, 4)}
    found = b.transpose(b.append("trn.max_pool", [b.transpose(y, FIRST)], sides).result, LAST)
    dout = b.constant(2.0, float32, found.shape)
    back = b.append("trn.max_pool_backward", [b.transpose(dout, FIRST), b.transpose(y, FIRST)], sides).result
    gradient = b.transpose(back, LAST)
    b.output(b.subtract(x, b.multiply(gradient, 0.5)))
    b.output(b.add(b.tanh(found), found))
    return b.build()


@pytest.mark.parametrize("computed", [False, True])
def test_meaning_is_kept_of_windows(computed):
    assert_meaning_is_kept(windows_of_channels_last(computed), np.random.default_rng(0), on_chip=True)


def test_windows_of_an_input_are_followed_by_pixels():
    """What is computed of them stays in their order; of what is computed before, the order is as it was."""
    graph = windows_of_channels_last(False)
    channels_first(graph)
    simplify(graph)
    assert {op.result.shape for op in graph.ops if op.name in ("tanh", "add", "subtract")} == {
        (2, 3, 3, 4),
        (2, 3, 6, 8),
    }
    graph = windows_of_channels_last(True)
    channels_first(graph)
    assert {op.result.shape for op in graph.ops if op.name in ("tanh", "add", "subtract")} == {
        (2, 3, 4, 3),
        (2, 6, 8, 3),
    }


def softmax(b, x, dim, rng):
    """Over a dimension, or its logarithm, and perhaps something that each pixel has one of."""
    shifted = b.subtract(x, b.reduce(x, (dim,), "maximum", keepdims=True))
    total = b.reduce(b.exponential(shifted), (dim,), keepdims=True)
    if rng.integers(2):
        return b.subtract(shifted, b.log(total))
    return b.multiply(b.divide(b.exponential(shifted), total), b.reduce(x, (dim,), keepdims=True))


def picked(b, x, dim):
    """The classes of each pixel by a count of places, zeros elsewhere."""
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    wanted = b.remainder(b.iota(shape, "int32", len(shape) - 1), x.shape[dim])
    return b.select(b.compare(b.iota(x.shape, "int32", dim), "EQ", wanted), x, 0.0)


@pytest.mark.parametrize("few", [0, channels.FEW_CLASSES])
@pytest.mark.parametrize("seed", range(24))
def test_softmax_over_channels_keeps_its_meaning(seed, few, monkeypatch):
    """And what reads it: elementwise, sums of pixels and of channels, other images, further convolutions."""
    monkeypatch.setattr(channels, "FEW_CLASSES", few)
    rng = np.random.default_rng(seed)
    b = GraphBuilder("classes")
    x = b.input("x", (2, 3, 5, 4), float32)
    classes = int(rng.integers(2, 7))
    y = layer(b, x, classes, rng, "w0")
    p = softmax(b, y, 1, rng)
    hit = picked(b, p, 1)
    z = b.add(layer(b, p, classes, rng, "w1"), y)
    for value in (
        p,
        b.multiply(p, y),
        b.reduce(hit, (1,)),
        b.reduce(b.subtract(hit, p), (0, 2, 3)),
        b.reshape(b.transpose(p, (0, 2, 3, 1)), (-1, classes)),
        b.reshape(softmax(b, b.reshape(z, (2, classes, -1)), 1, rng), (2, classes, 1, -1)),
    ):
        b.output(value)
    assert_meaning_is_kept(b.build(), rng, on_chip=seed < 6)


def test_a_loss_of_pixels_turns_them_once_and_their_gradient_once(monkeypatch):
    """Whatever is read of their classes in between."""
    monkeypatch.setattr(channels, "FEW_CLASSES", 0)
    b = GraphBuilder("loss")
    x, w = b.input("x", (2, 16, 8, 8), float32), b.input("w", (6, 16, 3, 3), float32)
    y = b.convolution(x, w, padding=((1, 1), (1, 1)))
    shifted = b.subtract(y, b.reduce(y, (1,), "maximum", keepdims=True))
    exp = b.exponential(shifted)
    hit = picked(b, b.broadcast_to(b.reduce(y, (), "add"), y.shape), 1)
    gradient = b.subtract(b.divide(exp, b.reduce(exp, (1,), keepdims=True)), hit)
    b.output(b.convolution(gradient, b.input("v", (4, 6, 3, 3), float32)))
    graph = b.build()
    channels_first(graph)
    simplify(graph)
    orders = [op.attrs["permutation"] for op in graph.ops if op.name == "transpose"]
    assert [order for order in orders if order != (1, 0, 2, 3)] == [(0, 2, 3, 1), (3, 0, 1, 2)]


def test_images_that_turn_there_and_back_stay_as_convolutions_leave_them():
    """As memory formats of PyTorch have it: resized images of channels that lie last are given as such."""
    b = GraphBuilder("formats")
    x, w = b.input("x", (2, 16, 8, 8), float32), b.input("w", (6, 16, 3, 3), float32)
    y = b.op("trn.resize", b.convolution(x, w, padding=((1, 1), (1, 1))), rule="linear", places=(16, 16))
    y = b.transpose(b.transpose(y, LAST), FIRST)
    b.output(b.reduce(y, (0, 2, 3)))
    graph = b.build()
    channels_first(graph)
    simplify(graph)
    assert [op.attrs["permutation"] for op in graph.ops if op.name == "transpose"] == [(1, 0, 2, 3)]
