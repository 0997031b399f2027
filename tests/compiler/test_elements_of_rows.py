# SPDX-License-Identifier: Apache-2.0
"""Many elements of each row by number, and sums by number within rows: as the graph's interpreter has them, bit for
bit where elements move, in both orders of execution; and by the kernels that take them, however large the row."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, error, execute_in_both_orders, integers, random, same

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.interpret import interpret
from trnlab.numerics.dtypes import bfloat16, float16, float32, int32

HOSTILE = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, 3e38, -3e38], np.float32)


def hostile(*shape, seed=0) -> np.ndarray:
    """Numbers, one in eight of which is a special one."""
    x = random(*shape, seed=seed)
    rng = np.random.default_rng(seed)
    where = rng.random(shape) < 1 / 8
    x[where] = rng.choice(HOSTILE, where.sum())
    return x


def calls(graph, chip="trn1") -> set[str]:
    """The kinds of calls of a compiled graph."""
    program = compile(graph, chips.get(chip), {"precision": "fp32"})
    return {call.label.split(":")[0] for call in program.calls}


def broadcast(b, ids, lead):
    return b.broadcast_to(ids, (*lead, ids.shape[-1]))


GATHERED = {
    "each row its own": ((5, 150), (5, 150), 64, 50),
    "the same in all heads": ((6, 150), (1, 150), 64, 50),
    "the same in all rows": ((6, 150), (1, 1), 64, 50),
    "the same in some, between others": ((3, 20, 9), (3, 1, 9), 300, 9),
    "more indices than are taken at once": ((2, 130), (1, 130), 70, 1100),
    "one row": ((1,), (1,), 500, 40),
}


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.parametrize("dtype", [float32, bfloat16, int32])
def test_elements_are_taken_bit_for_bit(name, dtype, chip):
    """Also indices out of range, which take the nearest."""
    lead, own, size, count = GATHERED[name]
    x = integers(*lead, size, high=2**31 - 1) if dtype is int32 else hostile(*lead, size).astype(dtype.numpy)
    ids = integers(*own, count, low=-3, high=size + 3)
    graph = build(lambda b, x, ids: b.take_along(x, broadcast(b, ids, lead)), x, ids)
    (want,) = interpret(graph, [x, ids])
    (got,) = execute_in_both_orders(graph, [x, ids], chip=chip)
    assert same(got, want)
    assert calls(graph, chip) == {"gather"}


def test_elements_of_turned_rows():
    """Whose elements lie apart in memory."""
    x, ids = hostile(4, 300, 130), integers(4, 130, 40, high=300)
    graph = build(lambda b, x, ids: b.take_along(b.transpose(x, (0, 2, 1)), ids), x, ids)
    assert same(execute_in_both_orders(graph, [x, ids])[0], interpret(graph, [x, ids])[0])


@pytest.mark.parametrize(("size", "count"), [(9000, 20), (20, 3), (6, 1), (5000, 1)])
def test_elements_that_no_kernel_takes(size, count):
    """Of rows that are too long for it, or so short that a comparison does."""
    x, ids = hostile(7, 5, size), integers(7, 5, count, low=-3, high=size + 3)
    graph = build(lambda b, x, ids: b.take_along(x, ids), x, ids)
    assert same(execute_in_both_orders(graph, [x, ids])[0], interpret(graph, [x, ids])[0])
    assert "gather" not in calls(graph)


SUMMED = {
    "the same in all heads": ((12, 70), (1, 70), 90, 64),
    "more heads than partitions": ((130, 9), (1, 9), 200, 40),
    "the same between others": ((3, 40, 5), (3, 1, 5), 200, 600),
    "the same in two dimensions": ((2, 3, 140), (1, 3, 1), 256, 40),
    "the same in all rows": ((9, 130), (1, 1), 300, 40),
}


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16])
@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("name", SUMMED)
def test_sums_within_rows(name, special, dtype):
    """Infinities and NaN reach their places and no others; a number that is no place adds to none."""
    lead, own, count, places = SUMMED[name]
    x = random(*lead, count)
    if special:
        rng = np.random.default_rng(0)
        where = rng.random(x.shape) < 1 / 512
        x[where] = rng.choice([np.inf, -np.inf, np.nan], where.sum())
    x, ids = x.astype(dtype.numpy), integers(*own, count, low=-2, high=places + 2)
    graph = build(lambda b, x, ids: b.sum_along(x, broadcast(b, ids, lead), places, float32), x, ids)
    (want,), (got,) = interpret(graph, [x, ids]), execute_in_both_orders(graph, [x, ids])
    if special:
        assert np.isinf(want).any()
        assert np.isnan(want).any()
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
    assert error(got, want) < 1e-5
    assert calls(graph) == {"scatter"}


def test_sums_in_another_format_are_rounded_once():
    x, ids = random(16, 64, 200).astype(bfloat16.numpy), integers(1, 64, 200, high=100)
    graph = build(lambda b, x, ids: b.sum_along(x, broadcast(b, ids, (16, 64)), 100, bfloat16), x, ids)
    (want,), (got,) = interpret(graph, [x, ids]), execute_in_both_orders(graph, [x, ids])
    assert got.dtype == want.dtype == bfloat16.numpy
    assert error(got.astype(np.float32), want.astype(np.float32)) < 2.0**-8


@pytest.mark.parametrize(("lead", "count", "places"), [((9,), 30, 40), ((3, 4), 8, 5)])
def test_sums_that_no_product_makes(lead, count, places):
    """Few, or each row with numbers of its own: every place is compared with every number."""
    x, ids = random(*lead, count), integers(*lead, count, low=-2, high=places + 2)
    x[0, ..., 3] = np.inf
    graph = build(lambda b, x, ids: b.sum_along(x, ids, places, float32), x, ids)
    (want,), (got,) = interpret(graph, [x, ids]), execute_in_both_orders(graph, [x, ids])
    assert error(got, want) < 1e-5
    assert "scatter" not in calls(graph)
