# SPDX-License-Identifier: Apache-2.0
"""What a backward pass reads of the forward pass, and what loops of other columns compute for one reader: computed
where it is read, and once there."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from compiled import BF16, bind, build, error, execute_in_both_orders, random, run_by_the_clock
from torch.nn import functional

from trnlab import chips
from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.fusing.groups import GroupKind
from trnlab.compiler.pipeline import assembled
from trnlab.compiler.rules import quotients, select
from trnlab.graph.builder import GraphBuilder
from trnlab.program.verify import verify_program
from trnlab.sim.functional import run_program

BFLOAT16 = ml_dtypes.bfloat16
ROWS, WIDTH = 1024, 96  # as many elements as are worth computing again


def groups_of(graph):
    made = assembled(graph, chips.get("trn1"), {"precision": "fp32"}, {})
    return made.groups, made.stores_of


def norm(b, x, scale, shift):
    """Of rows: the result, and its mean and reciprocal deviation."""
    wide = b.convert(x, "float32")
    mean = b.multiply(b.reduce(wide, (1,), keepdims=True), 1 / x.shape[1])
    apart = b.subtract(wide, mean)
    unit = b.rsqrt(b.add(b.multiply(b.reduce(b.multiply(apart, apart), (1,), keepdims=True), 1 / x.shape[1]), 1e-5))
    y = b.add(b.multiply(b.multiply(apart, unit), b.convert(scale, "float32")), b.convert(shift, "float32"))
    return b.convert(y, x.dtype), mean, unit


def there_and_back(b, x, scale, shift, w):
    """A norm and a product, and the gradients of the norm behind the gradient of the product."""
    y, mean, unit = norm(b, x, scale, shift)
    z = b.convert(b.matmul(y, w), x.dtype)
    d = b.convert(
        b.convert(b.matmul(z, b.transpose(w, (1, 0))), x.dtype), "float32"
    )  # of the sum of z's squares, halved
    n = b.multiply(b.subtract(b.convert(x, "float32"), mean), unit)
    g = b.multiply(d, b.convert(scale, "float32"))

    def mean_of(v):
        return b.multiply(b.reduce(v, (1,), keepdims=True), 1 / x.shape[1])

    along = b.multiply(n, mean_of(b.multiply(g, n)))
    of_x = b.multiply(unit, b.subtract(b.subtract(g, mean_of(g)), along))
    return b.convert(of_x, x.dtype), b.reduce(b.multiply(d, n), (0,)), b.reduce(d, (0,)), z


def given(dtype):
    x, w = random(ROWS, WIDTH), random(WIDTH, WIDTH, seed=3) / 10
    scale, shift = 1 + random(WIDTH, seed=1) / 4, random(WIDTH, seed=2)
    return [np.asarray(v.astype(dtype)) for v in (x, scale, shift, w)]


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (BFLOAT16, 4 * BF16)])
def test_gradients_of_a_norm(dtype, tolerance, chip):
    inputs = given(dtype)
    results = execute_in_both_orders(build(there_and_back, *inputs), inputs, chip=chip)
    x, scale, shift, w = (torch.from_numpy(v.astype(np.float64)).requires_grad_() for v in inputs)
    z = functional.layer_norm(x, (WIDTH,), scale, shift, 1e-5) @ w
    (z * z / 2).sum().backward()
    for got, want in zip(results, (x.grad, scale.grad, shift.grad, z)):
        assert error(got.astype(np.float64), want.detach().numpy()) < tolerance


def test_what_is_normed_is_read_again_and_not_kept_in_float32():
    """In bfloat16 no tensor of float32 is in memory: not the rows less their mean, no scale for each row, and no
    gradient that is as wide."""
    graph = build(there_and_back, *given(BFLOAT16))
    groups, stores = groups_of(graph)
    large = [v for g in groups for v in stores[g] if v.type.size == ROWS * WIDTH]
    assert {v.dtype.name for v in large} == {"bfloat16"}


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_the_derivative_of_an_activation_is_computed_where_it_is_read(chip):
    """A gated network: halves of a product, one of which is activated, and the gradient of that half."""
    x, w = (np.asarray(v.astype(BFLOAT16)) for v in (random(ROWS, WIDTH), random(WIDTH, 2 * WIDTH, seed=1) / 10))
    back = np.asarray((random(WIDTH, WIDTH, seed=2) / 10).astype(BFLOAT16))

    def function(b, x, w, back):
        both = b.convert(b.matmul(x, w), "bfloat16")
        y, gate = (b.slice_dim(both, 1, start, start + WIDTH) for start in (0, WIDTH))
        out = b.convert(b.matmul(b.multiply(y, b.gelu(gate)), back), "bfloat16")
        d = b.convert(b.convert(b.matmul(out, b.transpose(back, (1, 0))), "bfloat16"), "float32")
        slope = b.op("trn.gelu_dx", b.convert(gate, "float32"), approximate="none")
        return out, b.convert(b.multiply(b.multiply(d, b.convert(y, "float32")), slope), "bfloat16")

    graph = build(function, x, w, back)
    groups, stores = groups_of(graph)
    assert not any(v.op.name == "trn.gelu_dx" for g in groups for v in stores[g])
    out, of_gate = execute_in_both_orders(graph, [x, w, back], chip=chip)
    x, w, back = (torch.from_numpy(v.astype(np.float64)) for v in (x, w, back))
    both = x @ w
    y, gate = both[:, :WIDTH], both[:, WIDTH:].clone().requires_grad_()
    want = (y * functional.gelu(gate)) @ back
    (want * want / 2).sum().backward()
    assert error(out.astype(np.float64), want.detach().numpy()) < 4 * BF16
    assert error(of_gate.astype(np.float64), gate.grad.numpy()) < 6 * BF16


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("shape", [(2, 32, 5, 512), (3, 7, 4, 900), (1, 4, 3, 6000)])
def test_loops_of_other_columns_follow_their_reader(shape, chip):
    """The gradient by what is normed by group: a factor for each channel, numbers of groups."""
    images, groups, each, _ = shape
    d, x = (np.asarray(random(*shape, seed=i).astype(BFLOAT16)) for i in range(2))
    factor, slope, number = random(images, groups, each), random(images, groups), random(images, groups, seed=2)

    def function(b, d, x, factor, slope, number):
        parts = b.multiply(b.convert(d, "float32"), b.broadcast_in_dim(factor, shape, (0, 1, 2)))
        slopes, numbers = (b.broadcast_in_dim(v, shape, (0, 1)) for v in (slope, number))
        return b.convert(b.add(b.add(parts, b.multiply(b.convert(x, "float32"), slopes)), numbers), "bfloat16")

    inputs = [d, x, factor, slope, number]
    graph = build(function, *inputs)
    groups_, _ = groups_of(graph)
    assert [g.kind for g in groups_ if g.size == d.size] == [GroupKind.ROWS]
    (got,) = execute_in_both_orders(graph, inputs, chip=chip)
    wide = d.astype(np.float32) * factor[..., None] + x.astype(np.float32) * slope[..., None, None]
    assert error(got.astype(np.float32), wide + number[..., None, None]) < BF16


def adamw(rounded):
    """A step of AdamW of one tensor, as PyTorch writes it: the divisor is negative."""
    b = GraphBuilder("adamw")
    form = "bfloat16" if rounded else "float32"
    p, g, m, v = (b.input(name, (130, 600), form) for name in ("p", "g", "m", "v"))
    root, least = (b.input(name, (), "float32") for name in ("root", "least"))
    b.graph.bounds[root.index], b.graph.bounds[least.index] = (-100.0, -1e-3), (-1e-3, -1e-7)
    root, least = (b.broadcast_to(b.convert(x, form), p.shape) for x in (root, least))

    def wide(x):
        return b.convert(x, "float32")

    mean = b.convert(b.add(wide(m), b.multiply(b.subtract(wide(g), wide(m)), 0.1)), form)
    grown = b.convert(b.multiply(wide(v), 0.999), form)
    square = b.convert(b.add(wide(grown), b.multiply(b.multiply(wide(g), wide(g)), 0.001)), form)
    below = b.add(b.divide(b.sqrt(square), root), least)
    new = b.convert(b.add(wide(p), b.divide(wide(mean), wide(below))), form)
    for value, old in ((new, p), (mean, m), (square, v)):
        b.output(value, alias_of=old)
    return b.build()


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("rounded", [False, True])
def test_an_update_whose_divisor_is_rounded(rounded, chip):
    graph, target = adamw(rounded), chips.get(chip)
    dtype = BFLOAT16 if rounded else np.float32
    p, g, m = (np.asarray(random(130, 600, seed=i).astype(dtype)) for i in range(3))
    inputs = [
        p,
        g,
        m,
        np.asarray((m.astype(np.float32) ** 2).astype(dtype)),
        np.float32([-30.0]),
        np.float32([-1e-5]),
    ]
    program = assembled(graph, target, {"precision": "fp32"}, {}).program()
    verify_program(program, target)
    in_order, by_the_clock = (bind(program, graph, inputs) for _ in range(2))
    run_program(program, in_order, target)
    run_by_the_clock(program, by_the_clock, chip)
    results = []
    for place, value in zip(program.outputs, graph.outputs):
        assert in_order[place].tobytes() == by_the_clock[place].tobytes()
        results.append(in_order[place].view(dtype).reshape(value.shape).astype(np.float64))
    p, g, m, v = (torch.from_numpy(x.astype(np.float32)) for x in inputs[:4])

    def round_(x):
        return x.bfloat16().float() if rounded else x

    root, least = (round_(torch.tensor(float(x[0]))) for x in inputs[4:])
    mean, square = round_(m + (g - m) * 0.1), round_(round_(v * 0.999) + g * g * 0.001)
    below = round_(round_(round_(square.sqrt()) / root) + least)
    for got, want in zip(results, (round_(p + mean / below), mean, square)):
        assert error(got, want.numpy()) < (2 * BF16 if rounded else 1e-6)


@pytest.mark.parametrize("rounded", [False, True])
def test_the_sign_of_a_divisor_is_known_through_its_rounding(rounded):
    graph = adamw(rounded)
    known = Ranges(graph)
    last = [op for op in graph.ops if op.name == "divide"][-1]
    assert known.sign_of(last.operands[1]) == -1
    assert select(last, known).emit is quotients.product_of_negative_roots


@pytest.mark.parametrize(
    "name", ["divide", "sqrt", "rsqrt", "logistic", "erf", "trn.silu", "trn.silu_dx", "trn.gelu"]
)
def test_what_is_widened_is_read_as_it_is(name):
    """Functions in float32 of bfloat16 give what they give of the same numbers in float32."""
    x = np.asarray(np.abs(random(130, 700)).astype(BFLOAT16)) + BFLOAT16(0.25)
    attrs = {"approximate": "none"} if name == "trn.gelu" else {}

    def function(b, x):
        wide = b.convert(x, "float32")
        return b.op(name, wide, b.add(wide, 1.0)) if name == "divide" else b.op(name, wide, **attrs)

    (got,) = execute_in_both_orders(build(function, x), [x])
    (want,) = execute_in_both_orders(build(function, x.astype(np.float32)), [x.astype(np.float32)])
    assert np.array_equal(got, want)
