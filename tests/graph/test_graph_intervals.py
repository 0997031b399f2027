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
from trnlab.graph.overflow import OverflowFlags
from trnlab.numerics.dtypes import ALL, bfloat16, bool_, float16, float32, int8, int32, tfloat32, uint8

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
    watch, x = OverflowFlags(b), b.convert(b.iota((4,), int32, 0), float32)
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


def test_what_is_not_zero_is_true():
    """Casts to truth values ask for zero; those to integers drop the fraction."""
    b = GraphBuilder("casts")
    x = b.constant(np.float32([0.25, -0.5, 0.0]), float32, (3,))
    check(b, b.convert(x, bool_), b.convert(x, int32), b.convert(b.multiply(b.tanh(x), 0.5), bool_))


def test_small_differences_from_one_stay():
    b = GraphBuilder("small")
    x = [b.constant(np.float32(row), float32, (2,)) for row in ([1e-20, 2e-20], [-3e-30, -1e-30], [-math.inf, 0.5])]
    check(b, *(b.exponential_minus_one(row) for row in x))


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_float], ids=str)
def test_what_is_smaller_than_a_format_holds_moves_up_or_down(dtype):
    """Below the smallest normal number an element may move by nearly the smallest positive one."""
    smallest = float(np.float32(2.0 ** (-136 if dtype is tfloat32 else -149)))
    for most in (0.6 * smallest, 1.5 * smallest, 2.0**-135, 1e-40, 0.6 * 2.0**-24, 2.0**-17, 0.0012, 0.0029):
        row = np.float32([most, most / 2])
        for sign in (1, -1):
            b = GraphBuilder("small")
            x = b.constant(sign * row, float32, (2,))
            check(b, b.convert(x, dtype))


@pytest.mark.parametrize("cast", ["", "bfloat16"])
def test_products_of_whole_numbers_are_of_what_they_are_rounded_to(cast):
    """1003 is 1004 in bfloat16."""
    b = GraphBuilder("product")
    x = b.constant(np.float32([[1003]]), float32, (1, 1))
    dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,), "dtype": float32}
    product = b.op("dot_general", x, x, lhs_cast=cast, rhs_cast=cast, **dims)
    check(b, product)
    assert Intervals().of(product).whole


def test_only_what_is_beside_its_own_maximum_is_at_most_one():
    """In a square the maxima of rows also fit beside columns, where an exponential may be any number."""
    array = np.float32([[5, 4], [-3, -20]])
    b = GraphBuilder("softmax")
    x = b.constant(array, float32, (2, 2))
    most = b.reduce(x, (1,), "maximum")
    results = {}
    for name, axis in (("own", 0), ("other", 1)):
        beside = b.op("broadcast_in_dim", most, broadcast_dimensions=(axis,), shape=(2, 2))
        results[name] = b.exponential(b.subtract(x, beside))
    column = b.op("broadcast_in_dim", b.reshape(most, (2, 1)), broadcast_dimensions=(0, 1), shape=(2, 2))
    results["column"] = b.exponential(b.subtract(x, column))
    row = b.op("broadcast_in_dim", b.reshape(most, (1, 2)), broadcast_dimensions=(0, 1), shape=(2, 2))
    results["row"] = b.exponential(b.subtract(x, row))
    totals = {name: b.reduce(value, (1,), "add") for name, value in results.items()}
    check(b, *results.values(), *totals.values())
    known = Intervals()
    assert all(known.of(results[name]).high == pytest.approx(1, rel=1e-4) for name in ("own", "column"))
    assert all(known.of(totals[name]).is_never_zero for name in ("own", "column"))


def test_what_overflows_throughout_is_an_interval():
    """A power of it once was a number that Python has no float for."""
    b = GraphBuilder("overflow")
    x = b.constant(np.float32([3e38, 3e38]), float32, (2,))
    large = b.add(x, x)
    assert Intervals().of(large).low <= Intervals().of(large).high
    half = b.constant(np.float32([0.5, 0.5]), float32, (2,))
    check(b, large, b.negate(large), b.power(half, large), b.power(b.subtract(large, large), large))


def test_other_ranks_have_constants_of_their_own():
    """A rank's number is a constant of its program, and says nothing of what the others send."""
    b = GraphBuilder("ranks")
    mine = b.constant(np.int32([3, 3]), int32, (2,))
    groups = {"replica_groups": (0, 1), "group_size": 2}
    gathered = b.op("all_gather", mine, all_gather_dim=0, **groups)
    assert Intervals().bounds(gathered) == limits(int32)
    largest, total = (b.op("all_reduce", mine, kind=kind, **groups) for kind in ("maximum", "add"))
    assert Intervals().bounds(largest) == limits(int32)
    assert Intervals().exact(total.op) is None
    watch = OverflowFlags(b)
    assert watch.follow([gathered.op, largest.op, total.op], (), wide=True) is None
    assert [check.origin for check in watch.checks] == ["all_reduce"]


FLOATS = ["exponential", "exponential_minus_one", "log", "sqrt", "rsqrt", "tanh", "sine", "atan", "floor", "logistic"]
NUMBERS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    3.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-45,
    -1e-40,
    1e-20,
    3.4e38,
    257,
    1003,
    88.8,
]


def another(b, rng, values, form):
    """A value of this float format, made of some others."""
    x, y, z = (values[i] for i in rng.integers(0, len(values), 3))
    through = rng.choice([d for d in ALL if d is not form])
    made = [
        lambda: b.op(str(rng.choice(FLOATS)), x),
        lambda: b.op(str(rng.choice(["add", "subtract", "multiply", "divide", "power", "maximum"])), x, y),
        lambda: b.clamp(x, y, z),
        lambda: b.convert(b.convert(x, through), form),
        lambda: b.select(b.compare(x, "LT", y), y, z),
        lambda: b.op("broadcast_in_dim", b.reduce(x, (0,), "add"), broadcast_dimensions=(), shape=(3,)),
    ]
    return made[rng.integers(len(made))]()


@pytest.mark.parametrize("seed", range(12))
def test_random_chains_are_where_their_interval_says(seed):
    """Of every float format, from constants at its ends, with casts to and from integers and truth values between."""
    rng = np.random.default_rng(seed)
    for _ in range(60):
        b, form = GraphBuilder("chain"), rng.choice([d for d in ALL if d.is_float])
        given = (*(rng.choice(NUMBERS, 3) for _ in range(2)), rng.random(3) * 9)
        values = [b.convert(b.constant(np.float32(x), float32, (3,)), form) for x in given]
        for _ in range(5):
            values.append(another(b, rng, values, form))
        check(b, *values)
