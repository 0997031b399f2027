# SPDX-License-Identifier: Apache-2.0
"""Every elementwise op and reduction of integers, truth values and choices, in every format, over the limits of the
formats and of float32: the chip gives the very numbers of the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import assert_same, build

from trnlab.graph.ops import COMPARISONS

INTEGERS = ("int32", "uint32", "int16", "uint16", "int8", "uint8")
NUMBERS = (
    0,
    1,
    -1,
    2,
    -2,
    3,
    5,
    7,
    -7,
    17,
    100,
    127,
    128,
    129,
    -128,
    -129,
    255,
    256,
    32767,
    -32768,
    65535,
    65536,
    2**24 - 1,
    2**24,
    2**24 + 1,
    -(2**24) - 1,
    2**30,
    2**31 - 1,
    -(2**31),
    -(2**31) + 1,
    123456789,
    -987654321,
)
FLOATS = (
    0.0,
    -0.0,
    0.5,
    -0.5,
    0.49999997,
    1.5,
    2.5,
    -2.5,
    2.9999998,
    -2.99999,
    255.9,
    300.7,
    -1.5,
    32767.9,
    -32768.9,
    8388607.5,
    16777217.0,
    2147483520.0,
    2.0**31,
    -(2.0**31),
    3e9,
    -3e9,
    1e-40,
    1e-45,
    np.inf,
    -np.inf,
    np.nan,
    1e38,
)
BINARY = (
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "and",
    "or",
    "xor",
    "divide",
    "remainder",
    "power",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
)
REFUSED = {("divide", "uint32"), ("remainder", "uint32")}  # TRN220


def grid(kind):
    """Every number with every number, and the numbers by row and by column."""
    line = np.array(NUMBERS).astype(kind)
    x = np.repeat(line, len(line)).reshape(len(line), -1)
    return x.copy(), x.T.copy(), line[:, None].copy(), line


def forms(x, y, row, col):
    """Whole tiles, values per row and per column, a number, both sides alike."""
    return (x, y), (x, row), (row, x), (x, col), (x, 3), (3, x), (row, row), (x, x)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_and_bits(name, kind):
    if (name, kind) in REFUSED:
        pytest.skip("refused, see test_compiled_refusals")
    inputs = grid(kind)
    graph = build(lambda b, *v: [b.binary(name, p, q) for p, q in forms(*v)], *inputs)
    assert_same(graph, inputs, chip="trn2" if kind == "int16" else "trn1")


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("direction", COMPARISONS)
def test_comparisons(direction, kind):
    inputs = grid(kind)
    assert_same(build(lambda b, *v: [b.compare(p, direction, q) for p, q in forms(*v)], *inputs), inputs)


@pytest.mark.parametrize("kind", INTEGERS)
def test_one_operand(kind):
    x, _, row, _ = grid(kind)
    names = ("negate", "abs", "sign", "not")
    assert_same(
        build(lambda b, x, r: [b.op(n, v) for n in names for v in (x, r)] + [b.clamp(3, x, 100)], x, row), [x, row]
    )


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("reduction", ["add", "maximum", "minimum", "multiply", "and", "or"])
def test_reductions(reduction, kind):
    x, y, _, _ = grid(kind)
    values = [x ^ (y & np.array(3, kind))]
    assert_same(build(lambda b, x: [b.reduce(x, dims, reduction) for dims in ((1,), (0,), (0, 1))], *values), values)


@pytest.mark.parametrize("target", [*INTEGERS, "bool", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", [*INTEGERS, "float32"])
def test_casts(kind, target):
    x = grid(kind)[0] if kind != "float32" else np.tile(np.array(FLOATS, np.float32), (3, 1))
    row = x[:, :1].copy() if kind != "float32" else np.array(FLOATS, np.float32)[:, None].copy()
    assert_same(build(lambda b, x, r: [b.convert(x, target), b.convert(r, target)], x, row), [x, row])


@pytest.mark.parametrize("kind", [*INTEGERS, "float32"])
def test_choices(kind):
    """Not the sign of a zero, nor a NaN beside it, is touched by choosing."""
    if kind == "float32":
        line = np.array(FLOATS, np.float32)
        x = np.repeat(line, len(line)).reshape(len(line), -1)
        inputs = x.copy(), x.T.copy(), line[:, None].copy(), line
    else:
        inputs = grid(kind)
    graph = build(lambda b, *v: [b.select(b.compare(v[0], "GT", v[1]), p, q) for p, q in forms(*v)], *inputs)
    assert_same(graph, inputs)
    one = build(
        lambda b, x, y, r, c: [
            b.select(b.compare(x, "GT", 2), r, 0),
            b.select(b.compare(c, "LT", x), b.constant(3, kind), 0),
        ],
        *inputs,
    )
    assert_same(one, inputs)


@pytest.mark.parametrize("kind", INTEGERS)
def test_products_and_rows_by_index(kind):
    x, y, _, line = grid(kind)
    ids = (np.arange(len(line)) % 5).astype(np.int32)

    def function(b, x, y, i):
        return (b.dot_general(x, y, ((1,), (0,))), b.scatter_add_rows(i, x, 5), b.take_along(x, i), b.take_rows(x, i))

    assert_same(build(function, x, y, ids), [x, y, ids])


@pytest.mark.parametrize("kind", ["float32", "int32", "uint8"])
def test_without_elements(kind):
    """Nothing is computed of nothing, and its sum is zero."""
    x, y, full = np.zeros((0, 5), kind), np.zeros((5, 0), kind), np.ones((3, 5), kind)

    def function(b, x, y, f):
        return (
            b.add(x, x),
            b.compare(x, "LT", 2),
            b.convert(x, "int32"),
            b.reduce(x, (0,)),
            b.reduce(x, (0,), "maximum"),
            b.reduce(y, (1,), "multiply"),
            b.reduce(x, (0, 1), "minimum"),
            b.matmul(y, x),
            b.matmul(x, y),
            x,
            b.transpose(x, (1, 0)),
            b.concatenate([x, f], 0),
            b.pad(x, (1, 1), (1, 0), value=1),
            b.slice_dim(f, 0, 1, 1),
        )

    assert_same(build(function, x, y, full), [x, y, full])


@pytest.mark.parametrize("kind", ["float32", "int32", "uint8"])
def test_one_element(kind):
    x, o = np.full((), 3, kind), np.full((1, 1, 1), 3, kind)

    def function(b, x, o):
        return (
            b.add(x, x),
            b.negate(x),
            b.reduce(o, (0, 1)),
            b.reduce(o, (0, 1, 2), "maximum"),
            b.broadcast_in_dim(x, (2, 3), ()),
            b.compare(x, "LT", 5),
            b.transpose(o, (2, 1, 0)),
            b.select(b.compare(x, "LT", 5), x, 0),
        )

    assert_same(build(function, x, o), [x, o])


def test_indices_out_of_range_take_the_nearest_element():
    x, ids = np.arange(12, dtype=np.float32).reshape(3, 4) + 1, np.array([-1, 4, 2], np.int32)
    assert_same(build(lambda b, x, i: b.take_along(x, i), x, ids), [x, ids])
