# SPDX-License-Identifier: Apache-2.0
"""Rows by index, and everything that moves elements: against PyTorch on the CPU, bit for bit where nothing is
added."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import assert_same, build, check, execute, execute_in_both_orders, integers, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.lowerings.move import MOST_BYTES, MOST_ROWS
from trnlab.graph.builder import GraphBuilder
from trnlab.isa import REGISTRY
from trnlab.sim.timing import time_program


@pytest.mark.parametrize("shape", [(1,), (5,), (2, 65), (300,)])
@pytest.mark.parametrize("table", [(1, 1), (70, 33), (300, 600)])
def test_take_rows(shape, table):
    ids = integers(*shape, high=table[0])
    check(lambda b, w, i: b.take_rows(w, i), lambda w, i: w[i], random(*table), ids, tolerance=0.0)


def test_take_rows_and_compute():
    """Token and position embeddings: two tables, one of them in order, and their sum."""
    check(
        lambda b, w, p, i: b.add(b.take_rows(w, i), b.take_rows(p, b.iota((50,), "int32"))),
        lambda w, p, i: w[i] + p[:50],
        random(70, 33),
        random(60, 33, seed=1),
        integers(4, 50, high=70),
    )


@pytest.mark.parametrize("shape", [(1, 1), (130, 33), (2, 65, 600)])
def test_take_along(shape):
    def reference(x, ids):
        return x.gather(-1, ids.long()[..., None])[..., 0]

    ids = integers(*shape[:-1], high=shape[-1])
    check(lambda b, x, i: b.take_along(x, i), reference, random(*shape), ids, tolerance=0.0)


@pytest.mark.parametrize("rows", [1, 70, 300, 5000])
@pytest.mark.parametrize("shape", [(1, 1), (2, 65, 33), (300, 600)])
def test_scatter_add_rows(rows, shape):
    """Many updates of one row, and rows without any."""
    ids = integers(*shape[:-1], high=max(rows // 3, 1))

    def reference(i, u):
        return torch.zeros(rows, shape[-1]).index_add(0, i.flatten(), u.flatten(0, -2))

    check(lambda b, i, u: b.scatter_add_rows(i, u, rows), reference, ids, random(*shape))


@pytest.mark.parametrize("rows", [7, 2000])
def test_scatter_leaves_out_rows_that_do_not_exist(rows):
    """As StableHLO says, on the PE array and where a large table is added to in memory."""
    ids = np.array([0, rows, -1, 3, 0, 2**31 - 1, -(2**31), rows - 1, rows + 128], np.int32)
    seen = (ids >= 0) & (ids < rows)
    x = random(len(ids), 5)
    want = np.zeros((rows, 5), np.float32)
    np.add.at(want, ids[seen], x[seen])
    graph = build(lambda b, i, u: b.scatter_add_rows(i, u, rows), ids, x)
    np.testing.assert_allclose(execute(graph, [ids, x])[0], want, rtol=1e-6)


def test_scatter_into_a_tensor_and_in_order():
    ids, x, u = integers(50, high=60), random(60, 33), random(50, 33, seed=1)
    check(lambda b, i, u, x: b.scatter_add_rows(i, u, 60, x), lambda i, u, x: x.index_add(0, i, u), ids, u, x)
    check(lambda b, u: b.scatter_add_rows(b.iota((50,), "int32"), u, 60), lambda u: F.pad(u, (0, 0, 0, 10)), u)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (130, 3, 140), (2, 300, 129)])
def test_transpose(order, shape):
    check(lambda b, x: b.transpose(x, order), lambda x: x.permute(order), random(*shape), tolerance=0.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
def test_transpose_of_other_formats(dtype):
    check(
        lambda b, x: b.convert(b.transpose(b.convert(x, dtype), (1, 0)), "float32"),
        lambda x: x.T.to(getattr(torch, dtype)).float(),
        np.round(100 * random(130, 70)),
        tolerance=0.0,
    )


def test_transpose_then_compute():
    check(
        lambda b, x, y: b.add(b.transpose(x, (1, 0)), y),
        lambda x, y: x.T + y,
        random(130, 70),
        random(70, 130, seed=1),
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concatenate(axis):
    shapes = [tuple(n if d == axis else size for d, size in enumerate((3, 65, 70))) for n in (1, 4, 130)]
    check(
        lambda b, *xs: b.concatenate(xs, axis),
        lambda *xs: torch.cat(xs, axis),
        *(random(*shape, seed=i) for i, shape in enumerate(shapes)),
        tolerance=0.0,
    )


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((300_001,), 0),
        ((3, 70_000), 0),
        ((3, 70_000), 1),
        ((130, 65), 1),
        *(((3, 130, 70), axis) for axis in range(3)),
    ],
)
def test_concatenate_with_numbers_everywhere(shape, axis):
    """Rows, columns and matrices of one number beside what was computed, of lengths that no tile divides."""
    check(
        lambda b, x: b.concatenate([b.constant(n, "float32", shape) if n else x for n in (1.5, 0, 2.5)], axis),
        lambda x: torch.cat((torch.full(shape, 1.5), x, torch.full(shape, 2.5)), axis),
        random(*shape),
        tolerance=0.0,
    )


def test_numbers_beside_what_was_computed_are_each_ones_own():
    """Two concatenations that differ in nothing else are two routines; so do zeros that differ in their sign."""

    def function(b, x, y, z):
        pairs = ((x, 1.0), (y, -0.0), (z, 0.0))
        return tuple(b.concatenate([v, b.constant(n, "float32", (40, 3))], 1) for v, n in pairs)

    arrays = [random(40, 5, seed=i) for i in range(3)]
    for got, x, n in zip(execute(build(function, *arrays), arrays), arrays, (1.0, -0.0, 0.0)):
        expected = np.concatenate([x, np.full((40, 3), n, np.float32)], 1)
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_concatenate_what_was_computed():
    """Rotary embedding's halves."""
    check(
        lambda b, x: b.concatenate([b.negate(b.slice_dim(x, 1, 20, 40)), b.slice_dim(x, 1, 0, 20)], 1),
        lambda x: torch.cat((-x[:, 20:], x[:, :20]), 1),
        random(130, 40),
        tolerance=0.0,
    )


@pytest.mark.parametrize("sides", [((0, 0), (0, 0)), ((1, 2), (0, 0)), ((0, 0), (3, 1)), ((5, 0), (0, 7))])
@pytest.mark.parametrize("shape", [(1, 1), (130, 33), (3, 700)])
def test_pad(sides, shape):
    low, high = zip(*sides)
    flat = [n for pair in reversed(sides) for n in pair]
    check(
        lambda b, x: b.pad(x, low, high, value=0.5),
        lambda x: F.pad(x, flat, value=0.5),
        random(*shape),
        tolerance=0.0,
    )


@pytest.mark.parametrize(
    "sides",
    [((0, 0), (0, 0), (1, 1)), ((1, -2), (0, 3), (2, 0)), ((-3, -1), (-1, -4), (0, 0)), ((-2, 1), (-1, 0), (1, 3))],
)
@pytest.mark.parametrize("shape", [(5, 7), (130, 33)])
def test_pad_between_elements_and_by_less_than_nothing(sides, shape):
    """What the backward passes of strided slices and of padding itself are made of."""
    x = random(*shape)
    assert_same(build(lambda b, x: (b.pad(x, *sides, 0.5), b.pad(x, *sides, b.reduce(x, (0, 1), "maximum"))), x), [x])


@pytest.mark.parametrize("kind", [np.float32, np.int32, np.uint8])
@pytest.mark.parametrize("order", [(5, 3, 1, 0, 2, 4), (0, 2, 4, 1, 3, 5), (5, 4, 3, 2, 1, 0), (1, 0, 3, 2, 5, 4)])
def test_six_dimensions_in_another_order(order, kind):
    x = np.arange(2 * 3 * 4 * 5 * 2 * 3).reshape(2, 3, 4, 5, 2, 3).astype(kind)
    assert_same(build(lambda b, x: (b.transpose(x, order), b.add(b.transpose(x, order), 1)), x), [x])


@pytest.mark.parametrize("bounds", [(0, 5, 1), (3, 130, 1), (0, 130, 2), (1, 129, 7), (129, 130, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_slice(bounds, axis):
    start, stop, step = bounds
    index = tuple(slice(start, stop, step) if d == axis else slice(None) for d in range(2))
    x = random(130, 140)
    check(lambda b, x: b.slice_dim(x, axis, *bounds), lambda x: x[index], x, tolerance=0.0)
    check(lambda b, x: b.tanh(b.slice_dim(x, axis, *bounds)), lambda x: torch.tanh(x[index]), x)


@pytest.mark.parametrize("new", [(390, 70), (3, 9100), (27300,), (10, 39, 70), (3, 130, 70, 1)])
def test_reshape_of_a_transposed_tensor(new):
    x = random(130, 3, 70)
    check(
        lambda b, x: b.reshape(b.transpose(x, (1, 0, 2)), new),
        lambda x: x.transpose(0, 1).reshape(new),
        x,
        tolerance=0.0,
    )


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_broadcast(dims):
    shape = (3, 65, 70)
    x = random(*(shape[d] for d in dims))

    def reference(x):
        return x.reshape(tuple(n if d in dims else 1 for d, n in enumerate(shape))).expand(shape)

    check(lambda b, x: b.broadcast_in_dim(x, shape, dims), reference, x, tolerance=0.0)


def test_counters_go_out():
    graph = build(lambda b, x: (b.iota((5, 7), "int32", 0), b.iota((5, 7), "int32", 1)), random(1))
    for axis, got in enumerate(execute(graph, [random(1)])):
        assert np.array_equal(got, np.indices((5, 7))[axis])


def test_rows_of_what_a_product_is_made_into():
    """The table must be complete before its rows are picked: it does not belong into the loop that picks them."""
    x, w, ids = random(9, 9), random(9, 9, seed=1), integers(9, high=9)
    check(lambda b, x, w, i: b.take_rows(b.tanh(b.matmul(x, w)), i), lambda x, w, i: torch.tanh(x @ w)[i], x, w, ids)


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("count", "rows", "cols"), [(9, 5, 7), (130, 65, 33), (300, 700, 1), (2100, 9, 300), (300, 1500, 270)]
)
def test_what_is_not_finite_stays_in_its_cell(count, rows, cols, dtype, chip):
    """Infinities of one sign, of both, and NaN, in a few cells: all sums are those of PyTorch."""
    rng = np.random.default_rng([count, rows, cols])
    x = np.where(rng.random((count, cols)) < 0.3, 1e-38, 1.0) * rng.standard_normal((count, cols))
    special = rng.random((count, cols)) < min(0.05, 3 * rows / count)
    x = np.where(special, rng.choice([np.inf, -np.inf, np.nan], (count, cols), p=[0.45, 0.45, 0.1]), x)
    ids = rng.integers(0, rows, count).astype(np.int32)
    b = GraphBuilder("test")
    b.output(b.scatter_add_rows(b.input("ids", ids.shape, "int32"), b.input("x", x.shape, dtype), rows))
    graph = b.build()
    x = x.astype(graph.inputs[1].dtype.numpy)
    (got,) = execute(graph, [ids, x], chip=chip)
    sums = torch.zeros(rows, cols, dtype=torch.float64).index_add(
        0, torch.from_numpy(ids), torch.tensor(x.astype(float))
    )
    magnitudes = np.zeros((rows, cols))
    np.add.at(magnitudes, ids, np.abs(np.where(np.isfinite(x), x.astype(float), 0.0)))
    got, want = got.astype(np.float64), sums.numpy()
    outside = ~np.isfinite(want)
    assert 0 < outside.sum() < outside.size
    assert np.array_equal(got[outside], want[outside], equal_nan=True)
    step = {"float32": 2.0**-22, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    least = {"float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24}[dtype]
    got, want, magnitudes = (v[~outside] for v in (got, want, magnitudes))
    assert (np.abs(got - want) <= step * magnitudes + least).all()


def transfers(graph):
    """Transfers of the one call of a graph, and HBM bytes that they write."""
    chip = chips.get("trn1")
    program = compile(graph, chip, {"precision": "fp32"})
    (call,) = program.calls
    timed = time_program(program, chip)
    written = sum(timed.ops[i].hbm_write for i in timed.op)
    return (program.routines[call.routine].opcode == REGISTRY["dma_copy"].opcode).sum(), written


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16, np.int32, np.uint8])
@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(3 * MOST_ROWS + 5, 3), (7, 3)], 0),  # one run, longer than the bytes of a transfer in some formats
        ([(MOST_ROWS + 77, 5), (MOST_ROWS + 77, 1)], 1),  # more rows than a transfer has
        ([(3, 2, MOST_ROWS - 9, 2), (3, 4, MOST_ROWS - 9, 2)], 1),
        ([(2, 3, MOST_ROWS + 1, 2, 3), (2, 3, MOST_ROWS + 1, 5, 3)], 3),
        ([(2, MOST_BYTES // 2 + 3), (2, 11)], 1),  # runs that are more than a transfer in any format
        ([(5, 17, 3, 3), (5, 2, 3, 3), (5, 40, 3, 3)], 1),  # gradients of parts of a weight
    ],
)
def test_copies_of_any_size_move_every_element(shapes, axis, kind, chip):
    arrays = [(np.arange(np.prod(s)) % 251 + i).reshape(s).astype(kind) for i, s in enumerate(shapes)]
    graph = build(lambda b, *xs: b.concatenate(xs, axis), *arrays)
    (got,) = execute_in_both_orders(graph, arrays, chip=chip)
    assert np.array_equal(got, np.concatenate(arrays, axis))


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize(
    "order", [(0, 2, 3, 1), (2, 3, 0, 1), (3, 2, 1, 0), (1, 0, 2, 3), (1, 3, 0, 2), (0, 3, 1, 2)]
)
def test_images_in_another_order(order, kind, chip):
    x = np.arange(3 * 130 * 6 * 7).reshape(3, 130, 6, 7).astype(kind)
    graph = build(lambda b, x: b.transpose(x, order), x)
    (got,) = execute_in_both_orders(graph, [x], chip=chip)
    assert np.array_equal(got, x.transpose(order))


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16, np.uint8])
def test_steps_and_padding_in_many_dimensions(kind):
    """More dimensions than a transfer has, none of which merge."""
    x = (np.arange(3 * 5 * 4 * 6 * 5 * 7 * 2) % 251).reshape(3, 5, 4, 6, 5, 7, 2).astype(kind)
    index = tuple(slice(1, None, 2) if d % 2 else slice(0, n - 1) for d, n in enumerate(x.shape))

    def function(b, x):
        for d, part in enumerate(index):
            stop = x.shape[d] if part.stop is None else part.stop
            x = b.slice_dim(x, d, part.start, stop, part.step or 1)
        return x

    (got,) = execute_in_both_orders(build(function, x), [x])
    assert np.array_equal(got, x[index])


def test_what_lies_together_is_moved_together():
    """Parts of a weight of 3 x 3 taps: a transfer of each 4,096 rows or each MiB, and a transpose for each image."""
    parts = [np.zeros((128, n, 3, 3), ml_dtypes.bfloat16) for n in (768, 256)]
    graph = build(lambda b, *xs: b.concatenate(xs, 1), *parts)
    count, written = transfers(graph)
    assert written == sum(x.nbytes for x in parts)
    assert count <= sum(-(-x.nbytes // MOST_BYTES) for x in parts) + 1
    count, _ = transfers(build(lambda b, x: b.transpose(x, (0, 2, 3, 1)), np.zeros((2, 128, 32, 32), np.float32)))
    assert count < 2 * 2 * 32  # of the rows of each image there and back


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((2, 300, 7, 24), (0, 3, 1, 2)),  # heads that lie beside each other
        ((300, 2, 24, 7), (0, 1, 3, 2)),
        ((200, 98, 98), (0, 2, 1)),  # windows, of which a partition has no room for all
        ((3, 5, 1001), (0, 2, 1)),  # long and narrow, in pieces of which the last is shorter
        ((2, 4099, 6), (0, 2, 1)),
        ((131, 9, 3, 11), (1, 3, 0, 2)),
        ((40, 3, 50, 4), (2, 3, 0, 1)),
    ],
    ids=str,
)
def test_small_matrices_are_turned_within_rows(shape, order, kind, chip):
    """Every element keeps its bits, in both orders; no product turns them."""
    x = hostile(random(*shape).astype(kind))
    graph = build(lambda b, x: b.negate(b.transpose(x, order)), x)
    got = execute_in_both_orders(graph, [x], chip=chip)[0]
    bits = np.uint32 if kind is np.float32 else np.uint16
    expected = np.ascontiguousarray(-np.transpose(x, order))
    known = ~np.isnan(expected.astype(np.float32))
    assert np.array_equal(got.view(bits)[known], expected.view(bits)[known])
    assert np.isnan(got.astype(np.float32)[~known]).all()
    program = compile(graph, chips.get(chip), {})
    opcodes = {int(code) for routine in program.routines for code in routine.opcode}
    assert REGISTRY["nc_transpose"].opcode not in opcodes


def hostile(x):
    """With zeros of both signs, infinities and NaN among its elements."""
    flat = x.reshape(-1)
    for i, value in enumerate((np.inf, -np.inf, np.nan, -0.0, 0.0)):
        flat[i * 7 :: 97] = value
    return x


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize(
    ("shape", "times"), [((3, 40, 65), 2), ((200, 300), 3), ((1, 1000), 7), ((2, 5, 3), 4)], ids=str
)
def test_elements_that_are_repeated(shape, times, kind, chip):
    """Each of a row several times, as images are made larger by their nearest neighbours."""
    x = random(*shape)
    x = (x * 1e4).astype(kind) if kind is np.int32 else hostile(x.astype(kind))

    def function(b, x):
        wide = b.broadcast_in_dim(x, (*shape, times), range(len(shape)))
        return b.concatenate([b.reshape(wide, (*shape[:-1], shape[-1] * times)), x], len(shape) - 1)

    got = execute_in_both_orders(build(function, x), [x], chip=chip)[0]
    expected = np.concatenate([np.repeat(x, times, -1), x], -1)
    assert got.tobytes() == expected.tobytes() or np.isnan(expected.astype(np.float32)).any()
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("number", [0.0, -0.0, np.inf, np.nan])
def test_numbers_of_other_sizes_beside_a_part(number, axis, chip):
    """The gradients of states that a loop picks one by one: alike but for where each part lies between its zeros."""
    starts, (width, whole) = (20, 16, 12, 0), (4, 28)
    parts = [
        random(*(width if d == axis else n for d, n in enumerate((32, 2, 3))), seed=i) for i in range(len(starts))
    ]

    def filled(b, parts):
        for x, start in zip(parts, starts):
            sizes = [
                tuple(n if d == axis else m for d, m in enumerate(x.shape)) for n in (start, whole - width - start)
            ]
            before, after = ([b.constant(number, shape=size)] if size[axis] else [] for size in sizes)
            yield b.concatenate([*before, x, *after], axis)

    graph = build(lambda b, *parts: list(filled(b, parts)), *parts)
    for x, start, got in zip(parts, starts, execute_in_both_orders(graph, parts, chip=chip), strict=True):
        want = np.full(got.shape, number, np.float32)
        want[(*[slice(None)] * axis, slice(start, start + width))] = x
        assert got.tobytes() == want.tobytes()
