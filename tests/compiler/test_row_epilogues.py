# SPDX-License-Identifier: Apache-2.0
"""Loops over rows that are computed with the product whose rows they read: the bits of two calls, one after the
other; sums over rows within the rounding of their additions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compiled import bind, build, execute_in_both_orders, random, run_by_the_clock

from trnlab import chips
from trnlab.compiler import compile, row_epilogues
from trnlab.compiler.lowerings import row_epilogue
from trnlab.compiler.lowerings.row_epilogue import Depth
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.sim.functional import run_program
from trnlab.sim.timing import on_both, time_pair, time_program
from trnlab.stacks import APART

ROWS, DEPTH = 1700, 256  # the last block of 128 rows is a part of one


def over_columns(b, x):
    """The mean of each row, repeated."""
    mean = b.multiply(b.reduce(x, (1,)), 1 / x.shape[1])
    return b.broadcast_in_dim(mean, x.shape, (0,))


def across(b, vector, like):
    return b.broadcast_in_dim(vector, like.shape, (1,))


def norm(b, x, w, bias, stream, scale, shift):
    """A layer norm of a product with what it is added to; what the backward pass needs is stored, too."""
    x = b.add(b.add(b.dot_general(x, w, ((1,), (0,)), dt=float32), across(b, bias, stream)), stream)
    apart = b.subtract(x, over_columns(b, x))
    size = b.rsqrt(b.add(over_columns(b, b.multiply(apart, apart)), 1e-5))
    normal = b.multiply(apart, size)
    out = b.add(b.multiply(normal, across(b, scale, normal)), across(b, shift, normal))
    return normal, out, b.convert(out, bfloat16)


def backward(b, x, w, bias, stream, scale, shift):
    """The gradient of one: sums over rows for scale and shift, and of what goes on."""
    dy = b.add(b.dot_general(x, w, ((1,), (0,)), dt=float32), across(b, bias, stream))
    through = b.multiply(dy, across(b, scale, dy))
    along = b.multiply(stream, over_columns(b, b.multiply(through, stream)))
    dx = b.subtract(b.subtract(through, over_columns(b, through)), along)
    return dx, b.convert(dx, bfloat16), b.reduce(b.multiply(dy, stream), (0,)), b.reduce(dy, (0,)), b.reduce(dx, (0,))


def given(cols, rows=ROWS, depth=DEPTH, dt=ml_dtypes.bfloat16):
    x, w = random(rows, depth).astype(dt), random(depth, cols, seed=1).astype(dt)
    stream = random(rows, cols, seed=2)
    return [x, w, random(cols, seed=3), stream, random(cols, seed=4), random(cols, seed=5)]


def program_of(graph, chip="trn1", **options):
    return compile(graph, chips.get(chip), {"precision": "fp32", **options})


def results(program, graph, values, chip="trn1", clock=False):
    bound = bind(program, graph, values)
    if clock:
        run_by_the_clock(program, bound, chip)
    else:
        run_program(program, bound, chips.get(chip))
    found = [bound[place].view(v.dtype.numpy) for place, v in zip(program.outputs, graph.outputs)]
    return [array.reshape(v.shape) for array, v in zip(found, graph.outputs)]


@pytest.mark.parametrize(("chip", "longest"), [("trn1", 2048), ("inf2", 2048), ("trn2", 2048), ("trn3", 1024)])
@pytest.mark.parametrize("cols", [512, 640, 768, 1024, 2048])
def test_a_norm_with_its_product_has_the_bits_of_two_calls(cols, chip, longest):
    if cols > longest:
        pytest.skip("the loop by itself adds up its rows in two pieces there")
    values = given(cols)
    graph = build(norm, *values)
    together, apart = program_of(graph, chip), program_of(graph, chip, rows=APART)
    assert (len(together.calls), len(apart.calls)) == (1, 2)
    found = execute_in_both_orders(graph, values, chip=chip)
    for got, expected in zip(found, results(apart, graph, values, chip), strict=True):
        assert got.tobytes() == expected.tobytes()
    sooner, later = (time_program(program, chips.get(chip)).total for program in (together, apart))
    assert sooner < later


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("dt", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("cols", [512, 768, 1024])
def test_a_gradient_of_a_norm_with_its_product(cols, dt, chip):
    values = given(cols, dt=dt)
    graph = build(backward, *values)
    together, apart = program_of(graph, chip), program_of(graph, chip, rows=APART)
    assert (len(together.calls), len(apart.calls)) == (1, 2)
    found, expected = execute_in_both_orders(graph, values, chip=chip), results(apart, graph, values, chip)
    for got, want in zip(found[:2], expected[:2]):
        assert got.tobytes() == want.tobytes()
    dx, stream = expected[0].astype(np.float64), values[3].astype(np.float64)
    dy = values[0].astype(np.float64) @ values[1].astype(np.float64) + values[2]
    for got, terms in zip(found[2:], (dy * stream, dy, dx), strict=True):
        sizes = np.abs(terms).sum(0) + np.abs(
            values[0].astype(np.float64) @ np.abs(values[1].astype(np.float64))
        ).sum(0)
        assert (np.abs(got - terms.sum(0)) <= 2.0**-22 * DEPTH * sizes).all()


@pytest.mark.parametrize("function", [norm, backward])
@pytest.mark.parametrize("depth", [Depth(1, 1), Depth(1, 2), Depth(2, 2), Depth(2, 3), Depth(4, 4), Depth(3, 1)])
@pytest.mark.parametrize("cols", [512, 768])
def test_however_many_rows_are_open_or_wait(function, depth, cols, monkeypatch):
    """With few rows PSUM holds them until the loop has read them; with more than it has room for, SBUF does."""
    values = given(cols, rows=1536)
    graph = build(function, *values)
    expected = results(program_of(graph, rows=APART), graph, values)
    monkeypatch.setattr(row_epilogue, "DEPTHS", (depth,))
    monkeypatch.setattr(row_epilogues, "_pays", lambda candidate, chip: True)
    program = program_of(graph)
    assert len(program.calls) == 1
    for clock in (False, True):
        found = results(program, graph, values, clock=clock)
        for got, want in zip(found[: 3 if function is norm else 2], expected):
            assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("estimated", [True, False])
def test_where_there_is_no_room_for_both_there_are_two_calls(estimated, monkeypatch):
    """Whether the estimate says so, or the recording."""
    monkeypatch.setattr(row_epilogue, "DEPTHS", (Depth(9, 9),))
    if not estimated:
        monkeypatch.setattr(row_epilogues, "_pays", lambda candidate, chip: True)
    values = given(1536)
    graph = build(norm, *values)
    program = program_of(graph)
    assert len(program.calls) == 2
    for got, want in zip(results(program, graph, values), results(program_of(graph, rows=APART), graph, values)):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 1e30, -0.0])
def test_a_row_that_is_not_finite_spoils_no_other(number):
    values = given(768)
    values[3][5, 7] = values[3][ROWS - 1, 0] = number
    for function, whole in ((norm, 3), (backward, 2)):
        graph = build(function, *values)
        found, expected = (
            results(program_of(graph), graph, values),
            results(program_of(graph, rows=APART), graph, values),
        )
        for got, want in zip(found[:whole], expected):
            assert np.array_equal(np.isnan(got.astype(np.float32)), np.isnan(want.astype(np.float32)))
            assert np.array_equal(got.astype(np.float32), want.astype(np.float32), equal_nan=True)
        for got, want in zip(found[whole:], expected[whole:]):
            assert np.array_equal(np.isfinite(got), np.isfinite(want))
            assert np.array_equal(np.isnan(got), np.isnan(want))


def test_a_product_in_bfloat16_is_rounded_before_its_norm():
    """As it would be in memory, though it never is there."""

    def function(b, x, w):
        made = b.convert(b.dot_general(x, w, ((1,), (0,)), dt=bfloat16), float32)
        return b.subtract(made, over_columns(b, made))

    values = given(768)[:2]
    graph = build(function, *values)
    found, expected = results(program_of(graph), graph, values), results(program_of(graph, rows=APART), graph, values)
    assert found[0].tobytes() == expected[0].tobytes()


def test_what_waits_for_the_product_elsewhere_comes_between():
    """The loop reads another product of the first one's result: it cannot be computed with the first."""

    def function(b, x, w, square):
        made = b.dot_general(x, w, ((1,), (0,)), dt=float32)
        other = b.dot_general(made, square, ((1,), (0,)), dt=float32)
        both = b.add(made, other)
        return b.subtract(both, over_columns(b, both))

    values = [*given(768, dt=np.float32)[:2], random(768, 768, seed=7)]
    graph = build(function, *values)
    program = program_of(graph)
    assert len(program.calls) == 2  # with the second
    found, expected = results(program, graph, values), results(program_of(graph, rows=APART), graph, values)
    assert found[0].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize(("rows", "cols"), [(512, 768), (2048, 4096)])
def test_few_rows_and_long_rows_have_calls_of_their_own(rows, cols, chip):
    assert len(program_of(build(norm, *given(cols, rows=rows)), chip).calls) == 2


@pytest.mark.parametrize("chip", ["trn2", "trn3"])
def test_two_cores_divide_a_norm_with_its_product_between_them(chip):
    graph = build(norm, *given(768, rows=4096))
    together, apart = program_of(graph, chip), program_of(graph, chip, rows=APART)
    assert on_both(together, chips.get(chip)) == [True]
    sooner, later = (time_pair(program, chips.get(chip)).total for program in (together, apart))
    assert sooner < later
