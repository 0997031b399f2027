# SPDX-License-Identifier: Apache-2.0
"""Every elementwise op, compiled and executed on the chip, against PyTorch on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import BF16, build, check, error, execute, integers, random

from trnlab.graph.interpret import interpret

# Sizes: one element; fewer than the partitions; no multiple of 128; more than one tile in rows, in columns, in both.
SHAPES = ((1,), (3, 5), (130, 7), (2, 65, 33), (128, 4100), (600, 70))


def gelu_dx(x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(F.gelu(x).sum(), x)[0]


def gelu_tanh_dx(x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(F.gelu(x, approximate="tanh").sum(), x)[0]


def silu_dx(x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(F.silu(x).sum(), x)[0]


UNARY = {
    "negate": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "exponential": torch.exp,
    "exponential_minus_one": torch.expm1,
    "tanh": torch.tanh,
    "logistic": torch.sigmoid,
    "sine": torch.sin,
    "cosine": torch.cos,
    "erf": torch.erf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round_nearest_even": torch.round,
    "trn.gelu": F.gelu,
    "trn.gelu_dx": gelu_dx,
    "trn.silu": F.silu,
    "trn.silu_dx": silu_dx,
}
CANCEL = {"trn.gelu", "trn.gelu_dx", "trn.silu_dx"}  # PyTorch's own in fp32; their ulp are in docs/functions.md
POSITIVE = {"log": torch.log, "log_plus_one": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt}
BINARY = {
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "divide": torch.divide,
    "power": torch.pow,
    "remainder": torch.fmod,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    for shape in SHAPES:
        check(lambda b, x: b.op(name, x), UNARY[name], 3 * random(*shape), steps=None if name in CANCEL else 4)


@pytest.mark.parametrize("name", POSITIVE)
def test_unary_of_positive_numbers(name):
    for shape in SHAPES:
        check(lambda b, x: b.op(name, x), POSITIVE[name], random(*shape, low=0.05, high=9.0), steps=4)


def test_approximate_gelu():
    x = 3 * random(130, 33)
    check(lambda b, x: b.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), x)
    check(lambda b, x: b.gelu_dx(x, "tanh"), gelu_tanh_dx, x)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    for shape in SHAPES:
        x, y = random(*shape, low=0.2, high=4.0), random(*shape, seed=1, low=0.3, high=3.0)
        check(lambda b, x, y: b.op(name, x, y), BINARY[name], x, y, steps=2)


@pytest.mark.parametrize("name", BINARY)
def test_binary_with_a_number_on_either_side(name):
    x = random(130, 33, low=0.3, high=3.0)
    check(lambda b, x: b.binary(name, x, 1.7), lambda x: BINARY[name](x, torch.tensor(1.7)), x, steps=2)
    check(lambda b, x: b.binary(name, 1.7, x), lambda x: BINARY[name](torch.tensor(1.7), x), x, steps=2)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("other", [(65, 1), (33,), (), (1, 1), (2, 1, 1), (2, 1, 33), (1, 65, 1), (2, 65, 1)])
def test_binary_broadcasts(name, other):
    """Along rows, along columns, of one element, and along a mixture of dimensions; on either side."""
    x, y = random(2, 65, 33, low=0.3, high=3.0), random(*other, seed=1, low=0.4, high=3.0)
    function = BINARY[name]
    check(
        lambda b, x, y: (b.binary(name, x, y), b.binary(name, y, x)),
        lambda x, y: (function(x, y), function(y, x)),
        x,
        y,
    )


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
def test_compare(direction):
    """Of floats, of integers beyond 24 bits, and with a number; equal elements occur."""
    function = {"EQ": torch.eq, "NE": torch.ne, "LT": torch.lt, "LE": torch.le, "GT": torch.gt, "GE": torch.ge}[
        direction
    ]
    x, y = (np.round(random(130, 33, seed=s)) for s in (0, 1))
    check(lambda b, x, y: b.compare(x, direction, y), function, x, y)
    check(lambda b, x: b.compare(x, direction, 1.0), lambda x: function(x, 1.0), x)
    check(lambda b, x: b.compare(1.0, direction, x), lambda x: function(torch.tensor(1.0), x), x)
    i, j = (integers(130, 33, low=2**30, high=2**30 + 3, seed=s) for s in (0, 1))
    check(lambda b, x, y: b.compare(x, direction, y), function, i, j)


def test_select():
    """Between tensors, numbers and row or column values, on either side, by a mask of any of these shapes."""
    x, y = random(130, 33), random(130, 33, seed=1)
    row, col = random(130, 1), random(33)

    def function(b, x, y, row, col):
        masks = [b.broadcast_to(b.compare(v, "GT", 0.1), x.shape) for v in (x, row, col)]
        picks = [(x, y), (x, 0.5), (0.5, x), (x, b.broadcast_to(row, x.shape)), (b.broadcast_to(row, x.shape), x)]
        picks += [(b.broadcast_to(col, x.shape), x), (b.broadcast_to(row, x.shape), b.broadcast_to(col, x.shape))]
        return [b.select(m, *pick) for m in masks for pick in picks]

    def reference(x, y, row, col):
        half = torch.tensor(0.5)
        picks = [(x, y), (x, half), (half, x), (x, row), (row, x), (col, x), (row, col)]
        return [torch.where((v > 0.1).expand(130, 33), *pick) for v in (x, row, col) for pick in picks]

    check(function, reference, x, y, row, col, tolerance=0.0)


def test_clamp():
    x = random(130, 33)
    check(lambda b, x: b.clamp(-0.3, x, 0.4), lambda x: x.clamp(-0.3, 0.4), x, tolerance=0.0)
    low, high = random(130, 33, low=-1.0, high=0.0), random(130, 33, low=0.0, high=1.0)
    check(lambda b, x, l, h: b.clamp(l, x, h), lambda x, l, h: x.clamp(l, h), x, low, high, tolerance=0.0)


def test_is_finite():
    x = random(130, 33)
    x[::3, ::5], x[1::3, ::7], x[2::5, 1::3] = np.inf, np.nan, -np.inf
    check(lambda b, x: b.is_finite(x), torch.isfinite, x)


def test_truth_values():
    """and, or, xor and not of truth values; the result of a comparison as numbers."""
    x, y = random(130, 33), random(130, 33, seed=1)

    def function(b, x, y):
        p, q = b.compare(x, "GT", 0.0), b.compare(y, "GT", 0.0)
        return b.and_(p, q), b.or_(p, q), b.xor(p, q), b.not_(p), b.convert(p, "float32"), b.convert(q, "int32")

    def reference(x, y):
        p, q = x > 0, y > 0
        return p & q, p | q, p ^ q, ~p, p.float(), q.int()

    check(function, reference, x, y)


def test_truth_values_come_in_and_go_out():
    mask, x = random(130, 33) > 0, random(130, 33, seed=1)
    check(lambda b, m, x: (b.select(m, x, 0.0), b.not_(m)), lambda m, x: (torch.where(m, x, 0.0), ~m), mask, x)


def test_integers():
    """32-bit integers are exact, beyond the 24 bits of float32 too."""
    x, y = integers(130, 33, low=-(2**30), high=2**30), integers(130, 33, low=1, high=2**20, seed=1)
    names = ("add", "subtract", "multiply", "maximum", "minimum")
    functions = (torch.add, torch.subtract, torch.multiply, torch.maximum, torch.minimum)
    graph = build(lambda b, x, y: [b.op(n, x, y) for n in names], x, y)
    for got, function in zip(execute(graph, [x, y]), functions):
        assert np.array_equal(got, function(torch.from_numpy(x), torch.from_numpy(y)).numpy())


def test_integers_and_numbers():
    x = integers(130, 33, low=2**29, high=2**30)

    def function(b, x):
        return b.add(x, 1), b.subtract(3, x), b.multiply(x, -1), b.negate(x), b.maximum(x, 7), b.and_(x, 255)

    expected = (x + 1, 3 - x, -x, -x, np.maximum(x, 7), x & 255)
    for got, want in zip(execute(build(function, x), [x]), expected, strict=True):
        assert np.array_equal(got, want)


def test_bits():
    x, y = integers(130, 33, high=2**31 - 1), integers(130, 33, high=2**31 - 1, seed=1)
    graph = build(lambda b, x, y: (b.and_(x, y), b.or_(x, y), b.xor(x, y)), x, y)
    for got, expected in zip(execute(graph, [x, y]), (x & y, x | y, x ^ y)):
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("to", ["bfloat16", "float16", "int32"])
def test_convert(to):
    """To a narrower format and back, rounded once, to nearest even."""
    x = 50 * random(130, 33)
    check(
        lambda b, x: b.convert(b.convert(x, to), "float32"),
        lambda x: x.to(getattr(torch, to)).float() if to != "int32" else torch.trunc(x),
        np.trunc(x) if to == "int32" else x,
        tolerance=0.0,
    )


@pytest.mark.parametrize("name", ["add", "multiply", "tanh", "exponential", "trn.gelu"])
def test_bfloat16(name):
    """In and out in bfloat16: computed in fp32 and rounded once, half a step, 2^-9 of the magnitude; the reference
    rounds once as well, and where the two fp32 results lie on either side of a midpoint they differ by a whole step,
    2^-8."""
    inputs = [random(130, 33, seed=s) for s in range(2 if name in ("add", "multiply") else 1)]
    graph = build(lambda b, *v: b.op(name, *(b.convert(x, "bfloat16") for x in v)), *inputs)
    (expected,) = interpret(graph, inputs)
    (got,) = execute(graph, inputs)
    assert error(got, expected) <= BF16


def test_one_element():
    check(lambda b, x: b.add(b.multiply(x, x), 1.0), lambda x: x * x + 1, np.array(1.5, np.float32))
    check(lambda b, x: b.tanh(x), torch.tanh, random(1, 1, 1))


def test_a_scalar_input_and_computations_on_it():
    """A learning rate: a few ops on one element, then an update that they scale."""
    check(
        lambda b, p, lr: b.subtract(p, b.multiply(b.divide(b.sqrt(b.add(lr, 1.0)), b.add(lr, 3.0)), p)),
        lambda p, lr: p - (torch.sqrt(lr + 1) / (lr + 3)) * p,
        random(130, 33),
        np.array(0.25, np.float32),
    )


def test_a_long_chain_in_one_loop():
    """Chains of every pair of foldable ops: the second may take the first along as scale, bias or operand."""
    first = [("add", 0.3), ("subtract", 0.3), ("multiply", 0.7), ("maximum", 0.2), ("minimum", 0.4)]
    second = ("tanh", "exponential", "abs", "trn.gelu")
    x = random(130, 33)

    def function(b, x):
        pairs = [b.binary(n, x, v) for n, v in first] + [b.binary(n, v, x) for n, v in first]
        return [b.op(s, b.binary(n, x, v)) for n, v in first for s in second] + [
            b.binary(m, p, w) for p in pairs for m, w in first
        ]

    graph = build(function, x)
    for got, expected in zip(execute(graph, [x]), interpret(graph, [x])):
        assert error(got, expected) <= 1e-5
