# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose windows lie in memory in any order: PyTorch's [O, I, Y, X], its channels-last [O, Y, X, I],
JAX's and TensorFlow's [Y, X, I, O], gradients by the input, which exchange the channels and turn the window round."""

import numpy as np
import pytest
from compiled import execute_in_both_orders, random

from trnlab.chips import get
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.kernels.blocks import dma_load
from trnlab.kernels.convolutions import forward
from trnlab.kernels.view import full
from trnlab.kernels.windows import Slide
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder

ORDERS = ("OIYX", "IOYX", "OYXI", "YXIO", "YXOI", "YIXO")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("out", "channels", "window", "dtype"),
    [
        (200, 140, (3, 3), float32),
        (130, 129, (2, 3), bfloat16),
        (40, 300, (1, 3), float32),
        (16, 16, (3, 1), bfloat16),
    ],
)
def test_windows_of_any_order(order, out, channels, window, dtype, reverse):
    sizes = dict(zip("OIYX", (out, channels, *window)))
    x, w = random(2, channels, 6, 5), random(*(sizes[axis] for axis in order))
    b = GraphBuilder("convolution")
    images, weights = b.input("x", x.shape, dtype), b.input("w", w.shape, dtype)
    window_first = b.transpose(weights, [order.index(axis) for axis in "OIYX"])
    b.output(b.convolution(images, window_first, padding=((1, 1), (1, 1)), reverse=reverse))
    graph = b.build()
    arrays = [array.astype(dtype.numpy) for array in (x, w)]
    (got,), (want,) = execute_in_both_orders(graph, arrays), interpret(graph, arrays)
    tolerance = 1e-5 if dtype is float32 else 2.0**-8
    wide = want.astype(np.float32)
    assert np.abs(got.astype(np.float32) - wide).max() <= tolerance * np.abs(wide).max()


@pytest.mark.parametrize("order", ["YXIO", "YXOI", "OYXI"])
def test_weights_are_loaded_in_runs(order, monkeypatch):
    """Of channels that follow each other, not element by element."""
    loads = []
    monkeypatch.setattr(forward, "dma_load", lambda b, dst, src: loads.append(src) or dma_load(b, dst, src))
    sizes = {"O": 256, "I": 128, "Y": 3, "X": 3}
    b = Builder("convolution", get("trn1"))
    x, out = (full(b.param(name, (2, c, 8, 8), bfloat16)) for name, c in (("x", 128), ("out", 256)))
    w = full(b.param("w", tuple(sizes[axis] for axis in order), bfloat16))
    slides = Slide(8, 3, 8, low=1), Slide(8, 3, 8, low=1)
    forward.convolution(b, x, w.permute(*(order.index(axis) for axis in "OIYX")), out, slides)
    runs = [src.contiguous_bytes for src in loads if src.buffer is w.base]
    assert runs
    assert min(runs) >= 2 * 128
