# SPDX-License-Identifier: Apache-2.0
"""Largest elements of windows and the way back: the definition and the kernels, against PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import execute_in_both_orders

from trnlab import chips
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.kernels.pooling.maxima import max_pool
from trnlab.kernels.pooling.maxima_gradient import max_pool_gradient
from trnlab.kernels.pooling.ordered_gradient import ordered_pool_gradient
from trnlab.kernels.view import full
from trnlab.kernels.windows import Slide
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder
from trnlab.sim.functional import Machine

CASES = {  # shape, window, strides, padding
    "of a ResNet": ((2, 3, 8, 9), (3, 3), (2, 2), (1, 1)),
    "windows that touch": ((1, 2, 7, 6), (2, 2), (2, 2), (0, 0)),
    "more images than partitions": ((3, 50, 5, 5), (3, 2), (1, 2), (1, 0)),
    "nothing covers all places": ((1, 1, 6, 6), (5, 5), (3, 3), (2, 2)),
    "gaps": ((2, 2, 9, 9), (2, 2), (3, 3), (0, 0)),
    "an image in two parts": ((2, 32, 14, 13), (3, 3), (2, 2), (1, 1)),
    "an image in four parts": ((1, 32, 8, 9), (5, 5), (1, 1), (2, 2)),
    "parts whose edges differ": ((1, 64, 5, 6), (3, 3), (2, 2), (1, 1)),
    "rows first": ((1, 4, 9, 9), (5, 5), (1, 1), (2, 2)),
    "given away in parts": ((1, 3, 37, 30), (3, 4), (2, 1), (1, 1)),
    "rows too long for a bank": ((1, 2, 5, 530), (3, 3), (2, 1), (1, 1)),
}


def expected(x, dy, window, strides, padding):
    x = torch.tensor(x, requires_grad=True)
    y = F.max_pool2d(x, window, strides, padding)
    y.backward(torch.tensor(dy[: y.shape[0], : y.shape[1], : y.shape[2], : y.shape[3]]))
    return y.detach().numpy(), x.grad.numpy()


def graph_of(shape, places, window, strides, padding, dtype):
    b = GraphBuilder("pool")
    x, dy = b.input("x", shape, dtype), b.input("dy", (*shape[:2], *places), dtype)
    attrs = {"window": window, "window_strides": strides, "padding_low": padding, "places": tuple(places)}
    b.output(b.op("trn.max_pool", x, **attrs))
    b.output(b.op("trn.max_pool_backward", dy, x, **attrs))
    return b.build()


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("values", ["normal", "ties", "not finite"])
@pytest.mark.parametrize("name", CASES)
def test_pooling(name, values, dtype):
    """Of several NaN in a window PyTorch takes the last, and this the first: there is one. Sums are exact."""
    shape, window, strides, padding = CASES[name]
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape).astype(dtype.numpy).astype(np.float32) for _ in range(2))
    dy = np.round(dy * 64 if dtype is float32 else dy) / 64
    if values == "ties":  # of zeros of both signs, too
        x = np.round(x)
    if values == "not finite":
        x[rng.random(shape) < 0.1] = -np.inf
        x[rng.random(shape) < 0.05] = np.inf
        x[0, 0, 3, 3] = np.nan
    y, dx = expected(x, dy, window, strides, padding)
    graph = graph_of(shape, y.shape[2:], window, strides, padding, dtype)
    given = np.ascontiguousarray(dy[:, :, : y.shape[2], : y.shape[3]])
    arrays = [a.astype(dtype.numpy) for a in (x, given)]
    found = [execute_in_both_orders(graph, arrays, chip=chip) for chip in ("trn1", "trn2")]
    for got in (interpret(graph, arrays), *found):
        np.testing.assert_array_equal(got[0].astype(np.float32), y)
        np.testing.assert_array_equal(got[1].astype(np.float32), dx)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
def test_of_several_nan_one_gets_the_gradient(dtype):
    """Whatever their bits are: signs and payloads differ."""
    shape, window, strides, padding = (1, 5, 13, 12), (3, 3), (2, 2), (1, 1)
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape).astype(dtype.numpy)
    bits = x.view(np.uint16 if dtype is bfloat16 else np.uint32)
    nan = np.array([0x7FC0, 0xFFC0, 0x7FC1, 0xFFFF, 0x7F81], bits.dtype) << (8 * bits.itemsize - 16)
    picked = rng.random(shape) < 0.3
    bits[picked] = rng.choice(nan, int(picked.sum()))
    given = np.ones((1, 5, 7, 6), dtype.numpy)
    graph = graph_of(shape, (7, 6), window, strides, padding, dtype)
    holds = F.max_pool2d(torch.tensor(picked.astype(np.float32)), window, strides, padding)
    for chip in ("trn1", "trn2"):
        _, dx = execute_in_both_orders(graph, [x, given], chip=chip)
        dx = dx.astype(np.float32)
        assert dx.sum() == given.size
        assert dx[picked].sum() == float(holds.sum())


def in_order(x, dy, window, strides):
    """Of each window the element that is left where each stays as long as it is at least the next one."""
    dx = np.zeros_like(x)
    for place in np.ndindex(*dy.shape):
        *lead, top, left = place
        rows, cols = (range(n * s, n * s + k) for n, s, k in zip((top, left), strides, window))
        best, *others = ((*lead, r, c) for r in rows for c in cols)
        for other in others:
            best = best if x[best] >= x[other] else other
        dx[best] += dy[place]
    return dx


@pytest.mark.parametrize("sbuf", [None, 5000])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("shape", "window", "strides"),
    [
        ((2, 3, 9, 8), (3, 3), (2, 2)),
        ((1, 2, 13, 12), (3, 2), (1, 3)),
        ((3, 50, 8, 7), (2, 2), (3, 3)),
        ((1, 1, 6, 6), (6, 6), (1, 1)),
    ],
)
def test_the_gradient_in_order(shape, window, strides, dtype, sbuf):
    rng = np.random.default_rng(0)
    x = rng.choice(np.float32([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 2.0, -1.0]), shape)
    places = tuple((n - k) // s + 1 for n, k, s in zip(shape[2:], window, strides))
    dy = rng.integers(-4, 5, (*shape[:2], *places)).astype(np.float32)
    dy.flat[:2] = np.inf, np.nan
    wanted = in_order(x, dy, window, strides)
    attrs = {"window": window, "window_strides": strides, "padding_low": (0, 0), "places": places}
    b = GraphBuilder("pool")
    operands = b.input("dy", dy.shape, dtype), b.input("x", shape, dtype)
    b.output(b.op("trn.max_pool_backward", *operands, **attrs, ordered=True))
    given = [a.astype(dtype.numpy) for a in (dy, x)]
    if sbuf is None:
        found = [execute_in_both_orders(b.graph, given, chip=chip) for chip in ("trn1", "trn2")]
    else:
        found = [[banded_in_order(*given, dtype, attrs, sbuf)]]
    for (got,) in (interpret(b.graph, given), *found):
        np.testing.assert_array_equal(got.astype(np.float32), wanted)


def banded_in_order(dy, x, dtype, attrs, sbuf):
    chip = chips.get("trn1")
    b = Builder("pool", chip, sbuf_limit=sbuf + (6 * 1024 if x.shape[-1] > 8 else 0))
    names = ("x", x.shape), ("dy", dy.shape), ("dx", x.shape)
    params = [full(b.param(name, shape, dtype.name)) for name, shape in names]
    sizes = zip(x.shape[2:], attrs["window"], attrs["places"], attrs["window_strides"])
    ordered_pool_gradient(b, *params, tuple(Slide(*size) for size in sizes))
    got = np.empty(x.shape, dtype.numpy)
    Machine(chip).call(b.build(), [x, dy, got])
    return got


def test_bands():
    """Where an image does not fit, its rows come in bands that overlap."""
    shape, window, strides, padding = (1, 4, 40, 30), (3, 3), (2, 2), (1, 1)
    rng = np.random.default_rng(1)
    x, dy = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    y, dx = expected(x, dy, window, strides, padding)
    slides = tuple(Slide(shape[2 + d], 3, y.shape[2 + d], 2, 1) for d in range(2))
    chip = chips.get("trn1")
    b = Builder("pool", chip, sbuf_limit=16 * 1024)
    params = [b.param(n, s, "float32") for n, s in (("x", x.shape), ("dy", y.shape), ("y", y.shape), ("dx", x.shape))]
    views = [full(p) for p in params]
    max_pool(b, views[0], views[2], slides)
    max_pool_gradient(b, views[0], views[1], views[3], slides)
    got = [np.empty(y.shape, np.float32), np.empty(x.shape, np.float32)]
    given = np.ascontiguousarray(dy[:, :, : y.shape[2], : y.shape[3]])
    Machine(chip).call(b.build(), [x, given, *got])
    np.testing.assert_array_equal(got[0], y)
    np.testing.assert_allclose(got[1], dx, atol=1e-6)
