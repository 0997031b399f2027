# SPDX-License-Identifier: Apache-2.0
"""Tensors that their readers compute again, of what is stored in any case: the bits of tensors that are stored."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import bind, build, execute_in_both_orders, random
from test_row_epilogues import over_columns

from trnlab import chips
from trnlab.compiler import compile
from trnlab.sim.functional import run_program
from trnlab.sim.timing import time_program
from trnlab.stacks import APART, JOINED

ROWS, COLS = 512, 640


def normal_of(b, x):
    """x less its mean, times a number of each row."""
    apart = b.subtract(x, over_columns(b, x))
    spread = b.multiply(b.reduce(b.multiply(apart, apart), (1,)), 1 / x.shape[1])
    return b.multiply(apart, b.broadcast_in_dim(b.rsqrt(b.add(spread, 1e-5)), x.shape, (0,)))


def before_and_after(b, x, more, w):
    """A stream, its norm, which a product reads, and what is made of both behind a product."""
    stream = b.add(x, more)
    normal = normal_of(b, stream)
    made = b.dot_general(normal, w, ((1,), (0,)))
    gradient = b.dot_general(made, w, ((1,), (1,)))
    return stream, b.multiply(gradient, normal), b.reduce(b.multiply(gradient, normal), (0,))


def given(rows=ROWS, cols=COLS):
    return [random(rows, cols), random(rows, cols, seed=1), random(cols, 256, seed=2)]


def program_of(graph, chip="trn1", **options):
    return compile(graph, chips.get(chip), {"precision": "fp32", **options})


def results(program, graph, values, chip="trn1"):
    bound = bind(program, graph, values)
    run_program(program, bound, chips.get(chip))
    found = [bound[place].view(v.dtype.numpy) for place, v in zip(program.outputs, graph.outputs)]
    return [array.reshape(v.shape) for array, v in zip(found, graph.outputs)]


def stored(program):
    """Bytes that go to HBM."""
    timeline = time_program(program, chips.get(program.target))
    return sum(timeline.ops[op].hbm_write for op in timeline.op)


def elsewhere(b, x, more, w):
    """The product reads something else than the norm, which the last loop alone reads."""
    stream = b.add(x, more)
    normal = normal_of(b, stream)
    made = b.dot_general(b.dot_general(stream, w, ((1,), (0,))), w, ((1,), (1,)))
    return stream, b.reduce(normal, (1,), "maximum"), b.multiply(made, b.add(normal, made))


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_a_norm_is_made_again_of_its_rows(chip):
    values = given()
    graph = build(elsewhere, *values)
    again, kept = (program_of(graph, chip, residence="leave", rows=rows) for rows in (JOINED, APART))
    assert stored(again) < stored(kept) - ROWS * COLS * 3
    found = execute_in_both_orders(graph, values, chip=chip)
    for got, want in zip(found, results(kept, graph, values, chip), strict=True):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("number", [np.inf, np.nan, 1e30, -0.0, 1e-40])
def test_of_any_numbers(number):
    values = given()
    values[0][7, 9] = values[1][500, 0] = number
    graph = build(elsewhere, *values)
    found, expected = (results(p, graph, values) for p in (program_of(graph), program_of(graph, rows=APART)))
    for got, want in zip(found, expected, strict=True):
        assert np.array_equal(got, want, equal_nan=True)
        assert np.array_equal(np.signbit(got), np.signbit(want))


def test_what_a_product_reads_or_the_user_is_stored():
    """A product's operand has to be in memory: whoever else reads it finds it there."""
    values = given()
    graph = build(before_and_after, *values)
    again, kept = program_of(graph), program_of(graph, rows=APART)
    assert stored(again) == stored(kept)

    def asked(b, x, more, w):
        stream = b.add(x, more)
        normal = normal_of(b, stream)
        made = b.dot_general(b.dot_general(stream, w, ((1,), (0,))), w, ((1,), (1,)))
        return stream, normal, b.multiply(made, normal)

    graph = build(asked, *values)
    for got, want in zip(
        results(program_of(graph), graph, values), results(program_of(graph, rows=APART), graph, values)
    ):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("before", [True, False])
def test_a_reader_of_what_lies_between_too(before):
    """The last loop reads the distances from the mean as well, before what is made of them or behind it."""

    def function(b, x, more, w):
        stream = b.add(x, more)
        apart = b.subtract(stream, over_columns(b, stream))
        spread = b.multiply(b.reduce(b.multiply(apart, apart), (1,)), 1 / COLS)
        normal = b.multiply(apart, b.broadcast_in_dim(b.rsqrt(b.add(spread, 1e-5)), stream.shape, (0,)))
        made = b.dot_general(b.dot_general(stream, w, ((1,), (0,))), w, ((1,), (1,)))
        first, second = (apart, normal) if before else (normal, apart)
        early = b.multiply(made, first)
        return stream, b.multiply(early, b.add(second, made)), early

    values = given()
    graph = build(function, *values)
    for leave in ("stay", "leave"):
        again, kept = (program_of(graph, residence=leave, rows=rows) for rows in (JOINED, APART))
        for got, want in zip(results(again, graph, values), results(kept, graph, values), strict=True):
            assert got.tobytes() == want.tobytes()


def test_what_is_overwritten_is_read_before():
    """The rows are written over what was given: their readers still find what they were."""

    def function(b, x, more, w):
        stream = b.add(x, more)
        normal = normal_of(b, stream)
        made = b.dot_general(b.dot_general(stream, w, ((1,), (0,))), w, ((1,), (1,)))
        b.output(b.add(x, made), alias_of=x)
        return stream, b.multiply(made, normal)

    values = given()
    graph = build(function, *values)
    for got, want in zip(
        results(program_of(graph), graph, values), results(program_of(graph, rows=APART), graph, values), strict=True
    ):
        assert got.tobytes() == want.tobytes()
