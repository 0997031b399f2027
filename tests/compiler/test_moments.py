# SPDX-License-Identifier: Apache-2.0
"""Means and variances of what products make: taken in their epilogues, in float32, without cancellation."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import execute

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.numerics.dtypes import bfloat16, float32


def statistics(b, x):
    """As normalisations spell them out: channels first, over all else."""
    dims = tuple(range(1, len(x.shape)))
    count = float(x.type.size // x.shape[0])
    mean = b.divide(b.reduce(x, dims), count)
    apart = b.subtract(x, b.broadcast_in_dim(mean, x.shape, [0]))
    return mean, b.divide(b.reduce(b.multiply(apart, apart), dims), count)


def convolved(shape, weight, stride, dtype, groups=1):
    b = GraphBuilder("moments")
    x, w = b.input("x", shape, dtype), b.input("w", weight, dtype)
    pad = weight[2] // 2
    places = [(n + 2 * pad - weight[2]) // stride + 1 for n in shape[2:]]
    attrs = {
        "window_strides": (stride,) * 2,
        "padding_low": (pad,) * 2,
        "padding_high": (pad,) * 2,
        "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1),
        "dtype": dtype,
        "feature_group_count": groups,
    }
    y = b.op("convolution", x, w, **attrs)
    assert y.shape[2:] == tuple(places)
    turned = b.convert(b.transpose(y, (1, 0, 2, 3)), float32)
    mean, variance = statistics(b, turned)
    b.output(b.subtract(turned, b.broadcast_in_dim(mean, turned.shape, [0])))
    b.output(mean)
    b.output(variance)
    return b.build()


@pytest.mark.parametrize("dtype", [float32, bfloat16])
@pytest.mark.parametrize(
    ("shape", "weight", "stride"),
    [
        ((2, 32, 24, 24), (64, 32, 1, 1), 1),  # a matmul
        ((3, 32, 20, 20), (160, 32, 3, 3), 1),  # the kernel, two blocks of channels
        ((2, 16, 33, 35), (40, 16, 3, 3), 2),
        ((2, 3, 30, 30), (64, 3, 7, 7), 2),  # few channels
    ],
)
def test_epilogues_take_statistics(shape, weight, stride, dtype):
    """Beside the definition; and nobody reads the result again for them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype.numpy)
    w = (rng.standard_normal(weight) / np.sqrt(np.prod(weight[1:]))).astype(dtype.numpy)
    graph = convolved(shape, weight, stride, dtype)
    expected, got = interpret(graph, [x, w]), execute(graph, [x, w])
    for e, g in zip(expected, got):
        np.testing.assert_allclose(g, e, atol=2e-6 if dtype is float32 else 0.02)
    program = compile(graph, chips.get("trn1"), {"precision": "fp32"})
    product = next(r for r in program.routines if "dot" in r.name or "convolution" in r.name)
    assert "reduce" in product.name or "moments" in product.name


@pytest.mark.parametrize(("channels", "groups"), [(160, 160), (144, 6)])
def test_of_packed_groups(channels, groups):
    """Packs of 128 channels, and of 120, whose rows do not end where blocks do."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, channels, 12, 12)).astype(np.float32)
    w = rng.standard_normal((channels, channels // groups, 3, 3)).astype(np.float32)
    graph = convolved(x.shape, w.shape, 1, float32, groups)
    for e, g in zip(interpret(graph, [x, w]), execute(graph, [x, w])):
        np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-5 * np.abs(e).max())


def test_large_means_do_not_cancel():
    """The variance of numbers around 1000 that differ by one: sums of squares would lose it."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 16, 96, 96)).astype(np.float32)
    x[:, 0] = 1000.0
    w = np.zeros((32, 16, 3, 3), np.float32)
    w[:, 0, 1, 1] = 1.0
    w[:, 1, 1, 1] = 1.0
    graph = convolved(x.shape, w.shape, 1, float32)
    _, mean, variance = execute(graph, [x, w])
    y = (x[0, 0].astype(np.float64) + x[0, 1]).astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(mean, y.mean(), rtol=1e-6)
    np.testing.assert_allclose(variance, y.var(), rtol=2e-5)


@pytest.mark.parametrize("channels", [32, 64, 130])
def test_of_rows_in_memory(channels):
    """Where no epilogue can take them: a loop of its own, with rows cut into parts where there are few."""
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((2, channels // 2, 40)) + 3).astype(np.float32)
    w = rng.standard_normal((2, 40, 2048)).astype(np.float32)
    b = GraphBuilder("rows")
    a, c = b.input("x", x.shape, float32), b.input("w", w.shape, float32)
    product = b.dot_general(a, c, ((2,), (1,)), ((0,), (0,)), float32, "DEFAULT")
    for value in statistics(b, b.reshape(product, (channels, 2, 1024))):
        b.output(value)
    graph = b.build()
    program = compile(graph, chips.get("trn1"), {"precision": "fp32"})
    assert any(r.name.startswith("rows") for r in program.routines[1:])
    for e, g in zip(interpret(graph, [x, w]), execute(graph, [x, w])):
        np.testing.assert_allclose(g, e, rtol=2e-5, atol=1e-5)
