# SPDX-License-Identifier: Apache-2.0
"""Derivatives of the graph's ops against PyTorch's autograd, which nobody here wrote."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab.errors import GraphError
from trnlab.graph.grad.builder import GradientBuilder
from trnlab.graph.interpret import interpret
from trnlab.numerics.dtypes import bfloat16, float32, int32

torch = pytest.importorskip("torch")

RANDOM = np.random.default_rng(0)


def positive(*shape):
    return RANDOM.uniform(0.3, 2.0, shape).astype(np.float32)


def signed(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


X, Y, P = signed(3, 4), signed(3, 4), positive(3, 4)
IMAGE, KERNEL = signed(2, 4, 7, 8), signed(6, 2, 3, 3)
TOUCHING = {"window": (2, 2), "window_strides": (2, 2), "padding_low": (0, 0)}
HEADS = [signed(2, 4, 5, 8), signed(2, 2, 5, 8), signed(2, 2, 5, 8)]


def softmax(b, x):
    grown = b.exponential(b.subtract(x, b.reduce(x, (-1,), "maximum", keepdims=True)))
    return b.divide(grown, b.reduce(grown, (-1,), keepdims=True))


def rms_norm(b, x, w):
    mean = b.multiply(b.reduce(b.multiply(x, x), (-1,), keepdims=True), 1 / x.shape[-1])
    return b.multiply(b.multiply(x, b.rsqrt(b.add(mean, 1e-5))), w)


def rotated(b, x):
    low, high = b.slice_dim(x, 1, 0, 2), b.slice_dim(x, 1, 2, 4)
    return b.add(x, b.concatenate([b.negate(high), low], 1))


def torch_rotated(x):
    return x + torch.cat([-x[:, 2:], x[:, :2]], 1)


CASES = {
    "exponential": (lambda b, x: b.exponential(x), torch.exp, [X]),
    "exponential_minus_one": (lambda b, x: b.exponential_minus_one(x), torch.expm1, [X]),
    "log": (lambda b, x: b.log(x), torch.log, [P]),
    "log_plus_one": (lambda b, x: b.log_plus_one(x), torch.log1p, [P]),
    "sqrt": (lambda b, x: b.sqrt(x), torch.sqrt, [P]),
    "rsqrt": (lambda b, x: b.rsqrt(x), torch.rsqrt, [P]),
    "tanh": (lambda b, x: b.tanh(x), torch.tanh, [X]),
    "logistic": (lambda b, x: b.logistic(x), torch.sigmoid, [X]),
    "sine": (lambda b, x: b.sine(x), torch.sin, [X]),
    "cosine": (lambda b, x: b.cosine(x), torch.cos, [X]),
    "atan": (lambda b, x: b.atan(x), torch.atan, [X]),
    "erf": (lambda b, x: b.erf(x), torch.erf, [X]),
    "abs": (lambda b, x: b.abs(x), torch.abs, [X]),
    "negate": (lambda b, x: b.negate(x), torch.neg, [X]),
    "floor": (lambda b, x: b.add(b.floor(x), x), lambda x: torch.floor(x) + x, [X]),
    "silu": (lambda b, x: b.silu(x), torch.nn.functional.silu, [X]),
    "gelu": (lambda b, x: b.gelu(x), torch.nn.functional.gelu, [X]),
    "gelu_tanh": (
        lambda b, x: b.gelu(x, "tanh"),
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        [X],
    ),
    "relu": (lambda b, x: b.maximum(x, 0.0), torch.relu, [np.array([[-1, 0, 2.0]], np.float32)]),
    "add_broadcast": (lambda b, x, y: b.add(x, y), torch.add, [X, Y[:1]]),
    "subtract": (lambda b, x, y: b.subtract(x, y), torch.sub, [X, Y[:, :1]]),
    "multiply": (lambda b, x, y: b.multiply(x, y), torch.mul, [X, Y[0]]),
    "square": (lambda b, x: b.multiply(x, x), lambda x: x * x, [X]),
    "divide": (lambda b, x, y: b.divide(x, y), torch.div, [X, P]),
    "power": (lambda b, x, y: b.power(x, y), torch.pow, [P, Y]),
    "maximum": (lambda b, x, y: b.maximum(x, y), torch.maximum, [X, np.where(P > 1, X, Y).astype(np.float32)]),
    "minimum": (lambda b, x, y: b.minimum(x, y), torch.minimum, [X, np.where(P > 1, X, Y).astype(np.float32)]),
    "select": (
        lambda b, x, y: b.select(b.compare(x, "GT", 0.0), x, y),
        lambda x, y: torch.where(x > 0, x, y),
        [X, Y],
    ),
    "clamp": (lambda b, x: b.clamp(-0.5, x, 0.5), lambda x: torch.clamp(x, -0.5, 0.5), [X]),
    "reshape_transpose": (
        lambda b, x: b.transpose(b.reshape(x, (2, 2, 3)), (2, 0, 1)),
        lambda x: x.reshape(2, 2, 3).permute(2, 0, 1),
        [X],
    ),
    "broadcast_turned": (
        lambda b, x: b.broadcast_in_dim(x, (4, 5, 3), (2, 0)),
        lambda x: x.t()[:, None, :].expand(4, 5, 3),
        [X],
    ),
    "slice_strided": (lambda b, x: b.slice(x, (1, 0), (3, 4), (1, 2)), lambda x: x[1:3, 0:4:2], [X]),
    "slices_that_overlap": (
        lambda b, x: b.multiply(b.slice_dim(x, 1, 0, 3), b.slice_dim(x, 1, 1, 4)),
        lambda x: x[:, :3] * x[:, 1:],
        [X],
    ),
    "slices_that_tile": (rotated, torch_rotated, [X]),
    "one_slice": (lambda b, x: b.slice_dim(x, 0, 1, 2), lambda x: x[1:2], [X]),
    "concatenate": (lambda b, x, y: b.concatenate([x, y, x], 0), lambda x, y: torch.cat([x, y, x]), [X, Y]),
    "pad": (lambda b, x: b.pad(x, (1, 0), (0, 2)), lambda x: torch.nn.functional.pad(x, (0, 2, 1, 0)), [X]),
    "pad_that_crops": (
        lambda b, x: b.pad(x, (-1, 1), (1, -2)),
        lambda x: torch.nn.functional.pad(x, (1, -2, -1, 1)),
        [X],
    ),
    "sum": (lambda b, x: b.reduce(x, (0,)), lambda x: x.sum(0), [X]),
    "product": (lambda b, x: b.reduce(x, (1,), "multiply"), lambda x: x.prod(1), [P]),
    "largest": (
        lambda b, x: b.reduce(x, (1,), "maximum"),
        lambda x: torch.amax(x, 1),
        [np.array([[1, 2, 2, 0], [3, 3, 3, -1]], np.float32)],
    ),
    "softmax": (softmax, lambda x: torch.softmax(x, -1), [X]),
    "rms_norm": (rms_norm, lambda x, w: torch.nn.functional.rms_norm(x, (4,), w, 1e-5), [X, P[0]]),
    "linear": (
        lambda b, x, w: b.dot_general(x, w, ((2,), (1,))),
        torch.nn.functional.linear,
        [signed(2, 3, 5), signed(7, 5)],
    ),
    "matmul": (lambda b, x, y: b.matmul(x, y), torch.matmul, [signed(2, 3, 4, 5), signed(2, 3, 5, 6)]),
    "product_of_many": (
        lambda b, x, y: b.dot_general(x, y, ((3, 1), (0, 2)), ((2,), (1,))),
        lambda x, y: torch.einsum("abcd,dcbe->cae", x, y),
        [signed(2, 3, 4, 5), signed(5, 4, 3, 6)],
    ),
    "convolution": (
        lambda b, x, w: b.convolution(x, w, strides=(2, 1), padding=((1, 2), (2, 1)), groups=2),
        lambda x, w: torch.nn.functional.conv2d(torch.nn.functional.pad(x, (2, 1, 1, 2)), w, stride=(2, 1), groups=2),
        [IMAGE, KERNEL],
    ),
    "convolution_dilated": (
        lambda b, x, w: b.convolution(x, w, dilation=(2, 1), groups=2),
        lambda x, w: torch.nn.functional.conv2d(x, w, dilation=(2, 1), groups=2),
        [IMAGE, KERNEL],
    ),
    "max_pool": (
        lambda b, x: b.op("trn.max_pool", x, window=(3, 3), window_strides=(2, 2), padding_low=(1, 1), places=(4, 4)),
        lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
        [IMAGE],
    ),
    "avg_pool": (
        lambda b, x: b.op("trn.avg_pool", x, window=(3, 3), window_strides=(2, 2), padding_low=(1, 1), places=(4, 4)),
        lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        [IMAGE],
    ),
    "avg_pool_backward": (
        lambda b, y: b.op("trn.avg_pool_backward", y, **TOUCHING, places=(3, 4), size=(6, 8)),
        lambda y: torch.nn.functional.interpolate(y, scale_factor=2) / 4,
        [signed(2, 4, 3, 4)],
    ),
    "resize": (
        lambda b, x: b.op("trn.resize", x, rule="linear_corners", places=(9, 4)),
        lambda x: torch.nn.functional.interpolate(x, (9, 4), mode="bilinear", align_corners=True),
        [IMAGE],
    ),
    "resize_backward": (
        lambda b, y: b.op("trn.resize_backward", y, rule="nearest", places=(6, 8), size=(3, 4)),
        lambda y: torch.nn.functional.avg_pool2d(y, 2) * 4,
        [signed(2, 4, 6, 8)],
    ),
    "attention": (
        lambda b, q, k, v: b.attention(q, k, v, causal=True)[0],
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        HEADS,
    ),
}


def gradients_of(make, arrays):
    """What the graph's interpreter computes: the result for ones, and gradients for a seeded direction."""
    b = GradientBuilder("case")
    inputs = [b.input(f"x{i}", x.shape, float32) for i, x in enumerate(arrays)]
    y = make(b, *inputs)
    d = b.input("d", y.shape, float32)
    found = b.gradients({y: d}, inputs)
    b.output(y)
    for x in inputs:
        b.output(found[x])
    return b.build(), y.shape


@pytest.mark.parametrize("name", CASES)
def test_a_derivative_is_that_of_autograd(name):
    make, reference, arrays = CASES[name]
    graph, shape = gradients_of(make, arrays)
    direction = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    result, *found = interpret(graph, [*arrays, direction])
    wide = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    y = reference(*wide)
    expected = torch.autograd.grad(y, wide, torch.tensor(direction, dtype=torch.float64))
    np.testing.assert_allclose(result, y.detach(), rtol=2e-5, atol=2e-5)
    for mine, theirs in zip(found, expected):
        np.testing.assert_allclose(mine, theirs, rtol=5e-5, atol=5e-5)


def test_rows_of_a_table_add_up():
    table, ids = signed(5, 3), np.array([[1, 4], [1, 1]], np.int32)
    b = GradientBuilder("rows")
    t, i = b.input("table", table.shape, float32), b.input("ids", ids.shape, int32)
    y = b.take_rows(t, i)
    b.output(b.gradients({y: b.input("d", y.shape, float32)}, [t])[t])
    d = signed(2, 2, 3)
    (found,) = interpret(b.build(), [table, ids, d])
    expected = np.zeros_like(table)
    np.add.at(expected, ids, d)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def layer(b, x, w, v, again):
    def inside(x):
        return b.multiply(b.silu(b.dot_general(x, w, ((1,), (1,)))), b.dot_general(x, v, ((1,), (1,))))

    return b.recomputed(inside, x) if again else inside(x)


@pytest.mark.parametrize("nested", [False, True])
def test_what_is_recomputed_has_the_same_gradients_and_is_not_kept(nested):
    arrays = [signed(4, 6), signed(5, 6), signed(5, 6)]
    found = {}
    for again in (False, True):

        def make(b, x, w, v, again=again):
            if nested and again:
                return b.recomputed(lambda x: layer(b, layer(b, x, w, v, True), *_turned(b, w, v), True), x)
            return (
                layer(b, layer(b, x, w, v, again), *_turned(b, w, v), again) if nested else layer(b, x, w, v, again)
            )

        graph, shape = gradients_of(make, arrays)
        direction = np.ones(shape, np.float32)
        found[again] = interpret(graph, [*arrays, direction])
        barriers = sum(op.name == "optimization_barrier" for op in graph.ops)
        assert (barriers > 0) == again
        if again and not nested:
            forward = graph.outputs[0]
            inner = forward.op.operands
            assert all(len([op for op in graph.ops if value in op.operands]) == 1 for value in inner)
    for one, two in zip(found[False], found[True]):
        np.testing.assert_allclose(one, two, rtol=1e-6)


def _turned(b, w, v):
    return b.transpose(w, (1, 0)), b.transpose(v, (1, 0))


def test_a_derivative_of_ones_own_is_used_also_where_it_is_recomputed():
    x = signed(3, 4)
    for again in (False, True):

        def make(b, x, again=again):
            def forward(x):
                return b.multiply(x, 2.0), b.multiply(x, 3.0)

            def backward(d, inputs, results):
                return [b.add(d, results[1])]

            def custom(x):
                return b.with_gradient(forward, [b.add(x, 1.0)], backward)[0]

            return b.recomputed(custom, x) if again else custom(x)

        graph, shape = gradients_of(make, [x])
        _, found = interpret(graph, [x, np.ones(shape, np.float32)])
        np.testing.assert_allclose(found, 1 + 3 * (x + 1), rtol=1e-6)


def test_weights_can_have_gradients_that_are_not_rounded():
    b = GradientBuilder("wide")
    x, w, s = (b.input(n, shape, bfloat16) for n, shape in (("x", (8, 4)), ("w", (6, 4)), ("s", (6,))))
    y = b.add(b.dot_general(x, w, ((1,), (1,)), dt=bfloat16), s)
    found = b.gradients({y: b.input("d", y.shape, bfloat16)}, [x, w, s], in_float32=[w, s])
    assert [found[v].dtype for v in (x, w, s)] == [bfloat16, float32, float32]


def test_what_ranks_gathered_is_gathered_again_and_not_kept():
    groups = ((0, 1),)
    b = GradientBuilder("gathered")
    x, w = b.input("x", (2, 4, 8), bfloat16), b.input("w", (6, 8), bfloat16)
    (whole,) = b.all_gather([x], groups, 1)
    y = b.dot_general(whole, w, ((2,), (1,)), dt=bfloat16)
    found = b.gradients({y: b.input("d", y.shape, bfloat16)}, [x, w], in_float32=[w])
    b.output(found[x])
    b.output(found[w])
    graph = b.build()
    assert [op.name for op in graph.ops].count("all_gather") == 2
    assert found[x].op.name == "reduce_scatter"
    assert len([op for op in graph.ops if whole in op.operands]) == 1


def test_what_has_no_derivative_says_so():
    b = GradientBuilder("none")
    x = b.input("x", (4,), float32)
    y = b.copysign(x, 1.0)
    with pytest.raises(GraphError, match="TRN309"):
        b.gradients({y: y}, [x])
