# SPDX-License-Identifier: Apache-2.0
"""What interval analysis says of a value holds for each of its elements, op by op and in random graphs."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.interval_analysis import Intervals
from trnlab.graph.intervals import EXACT, Interval, Range, in_format, limits
from trnlab.graph.overflow import Watch
from trnlab.numerics.dtypes import ALL, bfloat16, bool_, float16, float32, int8, int32, uint8

ENDS = (-(2**31), -129, -7, -1, 0, 1, 2, 5, 31, 32, 200, 2**31 - 1)
BINARY = ("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor", "power")
SHIFTS = ("shift_left", "shift_right_logical", "shift_right_arithmetic")


def numbers(low, high, dtype):
    """Some whole numbers from low to high, both included, that the format holds."""
    held = limits(dtype)
    inside = [n for n in (*ENDS, low, high, low + 1, high - 1, 3, 4, -2) if low <= n <= high]
    return np.array(sorted({n for n in inside if held.low <= n <= held.high}), dtype.numpy)


def holds(interval: Interval, array) -> bool:
    """Whether an interval is right about an array."""
    array = np.asarray(array, np.float64)
    finite = array[np.isfinite(array)]
    return (
        (interval.nan or not np.isnan(array).any())
        and (interval.infinite or not np.isinf(array).any())
        and bool(((finite >= interval.low) & (finite <= interval.high)).all())
        and not (interval.whole and (finite != np.rint(finite)).any())
    )


def check(b, *results):
    """What is known of the results of a graph of constants, beside what it computes."""
    for value in results:
        b.output(value)
    graph = b.build()
    with np.errstate(all="ignore"):
        found = interpret(graph, [])
    for value, array in zip(graph.outputs, found):
        known = Intervals().of(value)
        assert holds(known, array), (value.op, known, array)


@pytest.mark.parametrize("dtype", [int32, int8, uint8], ids=str)
@pytest.mark.parametrize("name", [*BINARY, *SHIFTS])
def test_integers_are_where_their_interval_says(name, dtype):
    held = limits(dtype)
    ends = [(a, c) for a, c in product(ENDS, ENDS) if held.low <= a <= c <= held.high][::3]
    spans = [(-7, -1), (0, 5), (-1, 2), (31, 32), (held.low, held.high)]
    b = GraphBuilder("pairs")
    results = []
    for first, second in product(ends, (s for s in spans if held.low <= s[0] <= s[1] <= held.high)):
        sides = [numbers(*span, dtype) for span in (first, second)]
        x, y = (side.ravel() for side in np.meshgrid(*sides))
        results.append(b.op(name, b.constant(x, dtype, x.shape), b.constant(y, dtype, y.shape)))
    check(b, *results)


@pytest.mark.parametrize("name", ["negate", "abs", "sign", "not"])
def test_functions_of_integers_are_where_their_interval_says(name):
    b = GraphBuilder("unary")
    given = [numbers(a, c, int32) for a, c in product(ENDS, ENDS) if a <= c]
    check(b, *(b.op(name, b.constant(x, int32, x.shape)) for x in given))


def test_clamps_between_bounds_that_vary():
    """The lower bound may lift what the range of x says, and the upper one press it down: both are ranges too."""
    b = GraphBuilder("clamp")
    spans = [(0, 0), (0, 7), (3, 10), (-5, 2), (5, 5)]
    results = []
    for low, x, high in product(spans, repeat=3):
        grid = np.meshgrid(*(np.arange(a, c + 1, dtype=np.int32) for a, c in (low, x, high)))
        results.append(b.clamp(*(b.constant(side.ravel(), int32, side.ravel().shape) for side in grid)))
    check(b, *results)


def test_a_clamp_of_infinity_is_its_bound():
    b = GraphBuilder("clamp")
    x = b.constant(np.float32([0, 1, math.inf, -math.inf]), float32, (4,))
    check(b, b.clamp(-3.0, x, 5.0), b.clamp(0.25, x, 0.5))


def test_integer_quotients_are_truncated():
    """The interval of the quotient as a float has no zero in it, and the quotient has."""
    b = GraphBuilder("quotient")
    quotient = b.divide(b.constant(np.int32([3, 4, 5]), int32, (3,)), 10)
    assert Intervals().bounds(quotient) == Range(0, 0)
    assert not Intervals().of(b.convert(quotient, float32)).is_never_zero


@pytest.mark.parametrize("kind", ["add", "multiply", "maximum", "minimum", "and", "or"])
def test_reductions_are_where_their_interval_says(kind):
    b = GraphBuilder("reduce")
    arrays = [np.int32([[1, 2, 4], [5, 6, 7]]), np.int32([[-3, 2], [-1, 1]]), np.int32([[2, 2, 3, 3]])]
    check(b, *(b.reduce(b.constant(x, int32, x.shape), (1,), kind) for x in arrays))


def test_sums_and_products_of_nothing():
    b = GraphBuilder("nothing")
    x = b.constant(np.zeros((2, 0), np.int32), int32, (2, 0))
    check(b, *(b.reduce(x, (1,), kind) for kind in ("add", "multiply", "maximum", "minimum", "and", "or")))


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_float], ids=str)
def test_formats_round_what_they_do_not_hold(dtype):
    """Whole numbers beyond what a format holds, what overflows in it, and what underflows, cast from float32."""
    given = np.float32(
        [[0, 1, 9, 15], [17, 33, 100, 239], [255, 257, 449, 2049], [1e-3, 2e-3, 1e-20, 65519], [3e38] * 4]
    )
    for row in given:
        interval = Interval(float(row.min()), float(row.max()), bool((row == np.rint(row)).all()))
        with np.errstate(all="ignore"):
            assert holds(in_format(interval, dtype), row.astype(dtype.numpy)), (dtype, row)


def test_whole_numbers_of_floats_are_whole_numbers():
    """Casts of them drop nothing, and of others the fraction."""
    b = GraphBuilder("casts")
    x = b.input("x", (4,), float32)
    known = Intervals({0: (-2.5, 7.9)})
    assert known.bounds(b.convert(x, int32)) == Range(-2, 7)
    assert known.range(b.convert(b.iota((9,), int32, 0), bfloat16)) == Range(0, 8)
    assert known.range(b.floor(x)) == Range(-3, 7)
    large = b.convert(b.constant(np.int32([-5, 2**31 - 1]), int32, (2,)), float32)
    assert known.range(large) == Range(-5, 2**31)
    assert known.range(b.convert(b.constant(2048, int32), float16)) == Range(2048, 2048)
    assert Intervals().range(b.floor(x)) is None
    assert Intervals().of(b.add(b.floor(x), 1.0)).whole


def test_casts_of_what_may_be_nan_are_any_number():
    b = GraphBuilder("casts")
    x = b.input("x", (4,), float32)
    for made in (b.floor(b.sqrt(x)), b.sign(x), b.maximum(b.sine(x), 0.0)):
        assert Intervals().of(made).nan
        assert Intervals().bounds(b.convert(made, int32)) == limits(int32)
    assert Intervals().bounds(b.convert(b.compare(x, "EQ", x), int32)) == Range(0, 1)


def test_casts_are_watched_whatever_floats_may_be_in_one_precision():
    """A product of floats that fits may not fit once its operands are rounded to 16 bits."""
    b = GraphBuilder("casts")
    watch, x = Watch(b), b.convert(b.iota((4,), int32, 0), float32)
    assert watch.follow([b.convert(b.multiply(x, x), int32).op], (), wide=True) is None
    assert len(watch.checks) == 1
    assert watch.follow([b.multiply(b.iota((4,), int32, 0), 9).op], (), wide=True) is None
    assert len(watch.checks) == 1


def test_what_wraps_has_all_of_its_format():
    b = GraphBuilder("wraps")
    x = b.input("x", (4,), int8)
    assert Intervals().bounds(b.add(x, 1)) == limits(int8)
    assert Intervals().exact(b.add(x, 1).op) == Range(-127, 128)
    assert Intervals().bounds(b.not_(b.compare(x, "EQ", 1))) == limits(bool_)


def test_sums_are_exact_up_to_what_float32_holds():
    b = GraphBuilder("sums")
    x = b.convert(b.iota((4,), int32, 0), float32)
    total = b.multiply(x, float(EXACT // 3))
    assert Intervals().range(total) == Range(0, EXACT // 3 * 3)
    assert Intervals().range(b.add(total, total)).high >= 2 * (EXACT // 3 * 3)
