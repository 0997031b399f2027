# SPDX-License-Identifier: Apache-2.0
"""Reductions, broadcasts and what is made of them: softmax, layer norm, cross entropy; rows longer than SBUF too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import BF16, FP32, build, check, execute, integers, random, row_softmax

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.sim.timing import time_program

REDUCERS = {"add": torch.sum, "maximum": torch.amax, "minimum": torch.amin}
LONG = (3, 60_000)  # 240 kB a row in fp32: more than a partition of SBUF holds


def scale_of(x, dims):
    return np.prod([x.shape[d] for d in dims]) ** -0.5


@pytest.mark.parametrize("kind", REDUCERS)
@pytest.mark.parametrize("dims", [(2,), (1, 2), (0,), (0, 1), (1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(5, 33, 130), (130, 3, 5), (1, 7, 1)])
def test_reduce(kind, dims, shape):
    """Over trailing, leading, middle, outer and all dimensions; alone, and in a loop that also writes the full
    tensor."""
    x, function = random(*shape), REDUCERS[kind]
    tolerance = FP32 * max(1, len(dims) ** 2)  # sums that cancel are judged by the largest sum
    check(lambda b, x: b.reduce(x, dims, kind), lambda x: function(x, dim=dims), x, tolerance=tolerance)
    check(
        lambda b, x: (b.tanh(x), b.reduce(b.tanh(x), dims, kind, keepdims=True)),
        lambda x: (torch.tanh(x), function(torch.tanh(x), dim=dims, keepdim=True)),
        x,
        tolerance=tolerance,
    )


@pytest.mark.parametrize("kind", REDUCERS)
@pytest.mark.parametrize("shape", [(300, 700), (1, 9000), (9000, 1), (700, 1100)])
def test_reduce_beyond_one_tile(kind, shape):
    x = random(*shape, low=0.1, high=1.0)
    for dims in ((0,), (1,), (0, 1)):
        check(lambda b, x, d=dims: b.reduce(x, d, kind), lambda x, d=dims: REDUCERS[kind](x, dim=d), x)


def test_reduce_of_truth_values_and_integers():
    x = integers(130, 33, high=3)
    check(lambda b, x: b.reduce(x, (1,)), lambda x: x.sum(1), x)
    check(lambda b, x: b.reduce(x, (0,)), lambda x: x.sum(0), x)
    check(lambda b, x: b.reduce(x, (0, 1), "maximum"), lambda x: x.amax(), x)
    check(lambda b, x: b.reduce(b.compare(x, "EQ", 2), (1,), "or"), lambda x: (x == 2).any(1), x)
    check(lambda b, x: b.reduce(b.compare(x, "LT", 2), (1,), "and"), lambda x: (x < 2).all(1), x)


def test_sums_over_rows_and_along_rows_of_one_tensor():
    """The gradients of a linear layer's bias and of a norm's weight and bias: all from one read."""
    x, y = random(300, 70), random(300, 70, seed=1)
    check(
        lambda b, x, y: (b.reduce(x, (0,)), b.reduce(b.multiply(x, y), (0,)), b.reduce(x, (1,)), b.multiply(x, y)),
        lambda x, y: (x.sum(0), (x * y).sum(0), x.sum(1), x * y),
        x,
        y,
    )


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (130, 33), (4, 7, 129), (300, 1100), LONG])
def test_softmax_and_its_gradient(shape):
    def function(b, x, g):
        y = row_softmax(b, x)
        total = b.reduce(b.multiply(g, y), (len(shape) - 1,), keepdims=True)
        return y, b.multiply(y, b.subtract(g, total))

    def reference(x, g):
        x.requires_grad_()
        y = F.softmax(x, -1)
        return y.detach(), torch.autograd.grad(y, x, g)[0]

    check(function, reference, random(*shape), random(*shape, seed=1))


@pytest.mark.parametrize("shape", [(3, 5), (130, 33), (2, 65, 129), (300, 1100), LONG])
def test_layer_norm_and_its_gradients(shape):
    last = (len(shape) - 1,)

    def function(b, x, w, c, g):
        count = 1 / shape[-1]
        centred = b.subtract(x, b.multiply(b.reduce(x, last, keepdims=True), count))
        spread = b.multiply(b.reduce(b.multiply(centred, centred), last, keepdims=True), count)
        inverse = b.rsqrt(b.add(spread, 1e-5))
        normal = b.multiply(centred, inverse)
        slope = b.multiply(g, w)
        mean = b.multiply(b.reduce(slope, last, keepdims=True), count)
        along = b.multiply(b.reduce(b.multiply(slope, normal), last, keepdims=True), count)
        dx = b.multiply(inverse, b.subtract(b.subtract(slope, mean), b.multiply(normal, along)))
        rows = tuple(range(len(shape) - 1))
        return b.add(b.multiply(normal, w), c), dx, b.reduce(b.multiply(g, normal), rows), b.reduce(g, rows)

    def reference(x, w, c, g):
        for t in (x, w, c):
            t.requires_grad_()
        y = F.layer_norm(x, shape[-1:], w, c)
        return (y.detach(), *torch.autograd.grad(y, (x, w, c), g))

    inputs = random(*shape), random(shape[-1], seed=1), random(shape[-1], seed=2), random(*shape, seed=3)
    check(function, reference, *inputs, tolerance=2e-5)  # two sums and a square root behind each element


@pytest.mark.parametrize("shape", [(1, 3), (130, 33), (300, 5000), LONG])
def test_cross_entropy_and_its_gradient(shape):
    rows, classes = shape

    def function(b, x, t):
        shifted = b.subtract(x, b.reduce(x, (1,), "maximum", keepdims=True))
        total = b.reduce(b.exponential(shifted), (1,), keepdims=True)
        likely = b.subtract(shifted, b.log(total))
        loss = b.negate(b.multiply(b.reduce(b.take_along(likely, t), (0,)), 1 / rows))
        wanted = b.compare(b.iota(shape, "int32", 1), "EQ", b.broadcast_in_dim(t, shape, (0,)))
        return loss, b.multiply(b.subtract(b.exponential(likely), b.convert(wanted, "float32")), 1 / rows)

    def reference(x, t):
        x.requires_grad_()
        loss = F.cross_entropy(x, t.long())
        return loss.detach(), torch.autograd.grad(loss, x)[0]

    check(function, reference, random(*shape), integers(rows, high=classes))


@pytest.mark.parametrize("shape", [(5, 7), (130, 33), (2, 65, 140)])
def test_one_hot(shape):
    """A value per row put into one column, and its sum along the row; some rows name no column that there is."""
    last = len(shape) - 1

    def function(b, ids, value):
        columns, wanted = b.iota(shape, "int32", last), b.broadcast_in_dim(ids, shape, range(last))
        mask = b.compare(columns, "EQ", wanted)
        placed = b.select(mask, b.broadcast_in_dim(value, shape, range(last)), 0.0)
        return (
            placed,
            b.reduce(placed, (last,)),
            b.convert(b.select(mask, b.constant(2.0, shape=shape), 0.0), "bfloat16"),
        )

    def reference(ids, value):
        mask = torch.arange(shape[-1]) == ids[..., None]
        placed = torch.where(mask, value[..., None], 0.0)
        return placed, placed.sum(-1), 2.0 * mask

    ids = integers(*shape[:-1], low=-1, high=shape[-1] + 1)
    check(function, reference, ids, random(*shape[:-1]), tolerance=0.0)


@pytest.mark.parametrize("shape", [(5, 7), (130, 200), (2, 3, 65, 65)])
def test_causal_mask_from_counters(shape):
    size = len(shape)

    def function(b, x):
        rows, cols = (b.iota(shape, "int32", d) for d in (size - 2, size - 1))
        return b.select(b.compare(rows, "GE", cols), x, -1.0)

    check(function, lambda x: torch.where(torch.ones(shape[-2:]).tril() > 0, x, -1.0), random(*shape), tolerance=0.0)


def test_several_sums_over_rows_wider_than_psum():
    """Nine banks' worth of columns: the loop over columns goes outside."""
    x = random(140, 4700, low=0.1, high=1.0)
    check(lambda b, x: (b.reduce(x, (0,)), b.reduce(b.multiply(x, x), (0,))), lambda x: (x.sum(0), (x * x).sum(0)), x)


@pytest.mark.parametrize("rows", [130, 257, 384, 390, 520, 700])
@pytest.mark.parametrize("sums", [1, 2, 3])
def test_sums_over_rows_in_pieces_do_not_meet(rows, sums):
    """However many sweeps side by side there are: other columns begin when those before are added up."""
    x = random(rows, 4700, low=0.1, high=1.0)

    def powers(b, x):
        found = [x]
        for _ in range(1, sums):
            found.append(b.multiply(found[-1], x))
        return [b.reduce(power, (0,)) for power in found]

    check(powers, lambda x: [(x**n).sum(0) for n in range(1, sums + 1)], x)


@pytest.mark.parametrize("narrow", ["bfloat16", "float16", "int32"])
@pytest.mark.parametrize("shape", [(5,), (5, 5), (300, 200)])
@pytest.mark.parametrize("function", ["abs", "exponential", "sqrt"])
def test_the_sum_of_a_function_is_written_in_the_format_that_it_is_cast_to(function, shape, narrow):
    """The activation engine sums while it computes; the cast of that sum was lost, and zeros were returned."""
    x = np.abs(random(*shape)).astype(np.float32)

    def graph(b, v):
        return b.convert(b.reduce(b.op(function, v), range(len(shape)), "add"), narrow)

    built = build(graph, x)
    (got,) = execute(built, [x])
    (want,) = interpret(built, [x])
    assert np.isclose(np.float64(got), np.float64(want), rtol=2.0**-7 if narrow == "bfloat16" else 1e-3)
    assert np.float64(got) != 0


@pytest.mark.parametrize("format", ["bfloat16", "float16"])
def test_sums_over_rows_of_what_was_narrow(format):
    """The PE array, which sums rows, takes bf16 as it is; fp16 is made fp32 before."""
    b = GraphBuilder("sums")
    x = b.input("x", (8, 32), float32)
    b.output(b.reduce(b.convert(b.convert(x, format), float32), (0,)))
    graph = b.build()
    arrays = [np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)]
    np.testing.assert_allclose(execute(graph, arrays)[0], interpret(graph, arrays)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("format", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(16, 128, 64), (2, 3, 40, 70), (31, 64, 9), (32, 64, 3), (33, 70, 3)])
def test_sums_over_a_batch_of_matrices(shape, format):
    """The gradient of positions that all sequences share. No number is rounded between; hostile ones stay alone."""
    x = random(*shape)
    x[(0,) * x.ndim], x[(-1,) * x.ndim] = np.inf, np.nan
    dims = tuple(range(len(shape) - 2))
    b = GraphBuilder("sums")
    given = b.input("x", shape, float32)
    b.output(b.convert(b.reduce(b.convert(given, format), dims), float32))
    graph = b.build()
    (got,), (want,) = execute(graph, [x]), interpret(graph, [x])
    allowed = (FP32 if format == "float32" else BF16) * np.abs(want[np.isfinite(want)]).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=allowed)


def test_a_batch_of_matrices_is_summed_with_rows_on_partitions():
    """The PE array would write 131,072 sums in one row."""
    graph = build(lambda b, x: b.reduce(x, (0,)), random(16, 128, 1024))
    program = compile(graph, chips.get("trn1"), {"precision": "fp32"})
    timeline = time_program(program, chips.get("trn1"))
    assert not (timeline.engine == Engine.TENSOR).any()


@pytest.mark.parametrize("shape", [(300, 600), (130, 5000), (32, 3000), (3, 4096)])
@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("hostile", [False, True])
def test_largest_magnitudes_of_what_was_widened(shape, chip, hostile):
    """Of bfloat16, as scales of FP8 ask for: exact, with NaN, infinities, subnormals and minus zeros."""
    x = random(*shape)
    if hostile:
        x[1, 5], x[2, 7], x[0] = np.nan, -np.inf, -0.0
        x[0, 3] = -1e-40
    x = x.astype(bfloat16.numpy)

    def largest(b, x):
        wide = b.convert(x, float32)
        return b.reduce(b.abs(wide), (1,), "maximum"), b.reduce(wide, (1,), "minimum")

    graph = build(largest, x)
    for got, want in zip(execute(graph, [x], chip=chip), interpret(graph, [x])):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == np.float32


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_largest_magnitudes_of_a_product_are_of_what_is_stored(chip):
    """In its epilogue, where the product lies in PSUM before it is rounded to what is stored."""
    x, w = (random(*shape, seed=1).astype(bfloat16.numpy) for shape in ((200, 256), (256, 700)))

    def product(b, x, w):
        y = b.convert(b.multiply(b.dot_general(x, w, ((1,), (0,)), dt=float32), 0.7), bfloat16)
        wide = b.convert(y, float32)
        cut = b.convert(b.multiply(b.clamp(-2.0, wide, 2.0), 0.3), bfloat16)
        return y, b.reduce(b.abs(wide), (1,), "maximum"), cut

    y, most, cut = execute(build(product, x, w), [x, w], chip=chip)
    wide = y.astype(np.float32)
    np.testing.assert_array_equal(most, np.abs(wide).max(1))
    np.testing.assert_array_equal(cut, (wide.clip(-2, 2) * np.float32(0.3)).astype(bfloat16.numpy))
