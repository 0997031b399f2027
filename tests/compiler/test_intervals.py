# SPDX-License-Identifier: Apache-2.0
"""What is known of ranges is true, and decides between the forms of division and of sine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compiled import build, random, row_softmax
from random_float_graphs import FloatGenerator
from random_graphs import Generator
from random_whole_graphs import WholeGenerator

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.rules import select
from trnlab.compiler.rules.quotients import (
    product,
    product_of_negative_roots,
    product_of_roots,
    product_on_scalar,
    scaled,
)
from trnlab.compiler.rules.waves import any_wave, near_wave
from trnlab.graph.interpret import interpret
from trnlab.graph.interval_analysis import Intervals
from trnlab.graph.intervals import MOST, Interval
from trnlab.numerics.dtypes import float32

X = random(4, 6)


def form(function, name, bounds=None, inputs=(X,), in_update=False):
    """The rule taken for the last op called `name`; `in_update`: as if it were the optimizer's."""
    graph = build(function, *inputs)
    graph.bounds.update(bounds or {})
    op = [op for op in graph.ops if op.name == name][-1]
    known = Ranges(graph)
    known.updates.update([op] if in_update else [])
    rule = select(op, known)
    assert rule is not None
    return rule.emit


def by_norm(b, x):
    """One over a norm that an addend keeps from zero, as gradients are clipped."""
    return b.divide(1.0, b.add(b.sqrt(b.reduce(b.multiply(x, x), (0, 1))), 1e-6))


def test_divisions_of_training_stay_cheap():
    """Softmax, a clipped norm, a divisor kept from zero, a number of elements: all are known to be moderate."""
    assert form(row_softmax, "divide") is product_on_scalar
    assert form(by_norm, "divide") is product
    assert form(lambda b, x: b.divide(x, b.clamp(1e-12, x, math.inf)), "divide") is scaled
    assert form(lambda b, x: b.divide(x, b.clamp(1e-12, x, 1e12)), "divide") is product_on_scalar
    assert form(lambda b, x: b.divide(x, b.convert(b.compare(x, "GT", 0.0), float32)), "divide") is product_on_scalar


def test_what_is_not_known_takes_the_general_form():
    y = random(4, 6, seed=1)
    assert form(lambda b, x, y: b.divide(x, y), "divide", inputs=(X, y)) is scaled
    assert form(lambda b, x, y: b.divide(x, y), "divide", {1: (0.5, 2.0)}, (X, y)) is product_on_scalar
    assert form(lambda b, x, y: b.divide(x, y), "divide", {1: (-(2.0**100), -(2.0**-100))}, (X, y)) is product
    assert form(lambda b, x: b.divide(1.0, x), "divide") is product
    assert form(lambda b, x: b.sine(x), "sine") is any_wave
    assert form(lambda b, x: b.sine(b.multiply(b.tanh(x), 3.0)), "sine") is near_wave
    assert form(lambda b, x: b.sine(b.add(b.iota(x.shape, float32, 1), 0.5)), "sine") is near_wave


def test_only_updates_divide_by_roots():
    """The inverse root, squared, has fewer digits than the reciprocal: an optimizer's step can spare them, and only
    where the divisor's sign is known and it is never zero."""
    y = random(4, 6, seed=1)
    quotient = lambda b, x, y: b.divide(x, y)  # noqa: E731
    positive, negative, either = {1: (2.0**-50, 2.0**109)}, {1: (-1e30, -1e-15)}, {1: (-1e30, 1e30)}
    assert form(by_norm, "divide", in_update=True) is product_of_roots
    assert form(quotient, "divide", positive, (X, y), in_update=True) is product_of_roots
    assert form(quotient, "divide", negative, (X, y), in_update=True) is product_of_negative_roots
    assert form(quotient, "divide", either, (X, y), in_update=True) is scaled
    assert form(quotient, "divide", positive, (X, y)) is product
    assert form(quotient, "divide", negative, (X, y)) is product


def test_exponentials_of_something_else_are_not_bounded_below():
    """A sum is at least one only where the maximum is of the same numbers, along the dimensions that are summed."""

    def other(b, x):
        grown = b.exponential(b.subtract(x, b.reduce(x, (0,), "maximum", keepdims=True)))
        return b.divide(grown, b.reduce(grown, (1,), keepdims=True))

    assert form(other, "divide") is scaled


HOSTILE = np.float32(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-39, 1e-30, 3e38, -3e38, np.inf, -np.inf, np.nan, 7.5, -2.5, 88.0, -104.0]
)


@pytest.mark.parametrize(
    "name",
    [
        "negate",
        "abs",
        "sign",
        "exponential",
        "exponential_minus_one",
        "log",
        "sqrt",
        "rsqrt",
        "tanh",
        "logistic",
        "sine",
        "erf",
        "atan",
        "floor",
        "ceil",
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "power",
    ],
)
def test_every_interval_holds(name):
    """For operands within given intervals, what an op gives is within, or NaN or infinite where that is said."""
    pairs = np.array(np.meshgrid(HOSTILE, HOSTILE)).reshape(2, -1)
    intervals = [(-MOST, MOST), (0.0, MOST), (1e-3, 90.0), (-110.0, -1e-40), (0.0, 1.0)]
    binary = name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
    graph = build((lambda b, x, y: b.op(name, x, y)) if binary else (lambda b, x, y: b.op(name, x)), *pairs)
    for low in intervals:
        for high in intervals if binary else intervals[:1]:
            given = {0: (*low, False, True), 1: (*high, False, True)}
            found = _of_result(graph, given)
            inside = [np.isinf(p) | ((p >= g[0]) & (p <= g[1])) for p, g in zip(pairs, given.values())]
            kept = inside[0] & (inside[1] | (not binary))
            result = interpret(graph, list(pairs))[0][kept].astype(np.float64)
            finite = result[np.isfinite(result)]
            assert found.nan or not np.isnan(result).any()
            assert found.infinite or not np.isinf(result).any()
            assert (finite >= found.low).all()
            assert (finite <= found.high).all()


@pytest.mark.parametrize("make", [Generator, WholeGenerator, FloatGenerator])
def test_intervals_of_random_graphs_hold(make):
    """Of every value of graphs of any ops, with hostile inputs."""
    for seed in range(25):
        generator = make(seed)
        graph, inputs = generator.graph(), generator.inputs()
        graph.outputs[:] = [v for op in graph.ops for v in op.results]
        known = Ranges(graph)
        with np.errstate(all="ignore"):
            results = interpret(graph, inputs)
        for value, result in zip(graph.outputs, results):
            x, array = known.of(value), np.asarray(result, np.float64)
            finite = array[np.isfinite(array)]
            assert x.nan or not np.isnan(array).any(), (seed, value.op)
            assert x.infinite or not np.isinf(array).any(), (seed, value.op)
            assert ((finite >= x.low) & (finite <= x.high)).all(), (seed, value.op, x)
            assert not x.whole or (finite == np.rint(finite)).all(), (seed, value.op)


def _of_result(graph, given) -> Interval:
    return Intervals(given).of(graph.outputs[0])
