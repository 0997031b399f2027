# SPDX-License-Identifier: Apache-2.0
"""Bias corrections 1 - beta^t keep their digits: in every way in which optimizers write them, and only there."""

import numpy as np
import pytest

from trnlab.compiler.rewriting.recognize import recognize_powers
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.powers import beside_one
from trnlab.numerics.dtypes import float32

FORMS = {
    "1 - p": (1, lambda b, p: ("subtract", 1.0, p)),
    "p - 1": (-1, lambda b, p: ("subtract", p, 1.0)),
    "-p + 1": (1, lambda b, p: ("add", b.negate(p), 1.0)),
    "1 + -p": (1, lambda b, p: ("add", b.constant(1.0), b.negate(p))),
    "p + -1": (-1, lambda b, p: ("add", p, -1.0)),
    "-1 - -p": (-1, lambda b, p: ("subtract", -1.0, b.negate(p))),
    "-p - -1": (1, lambda b, p: ("subtract", b.negate(p), -1.0)),
}
OTHERS = {
    "1 + p": lambda b, p: ("add", 1.0, p),
    "-1 - p": lambda b, p: ("subtract", -1.0, p),
    "2 - p": lambda b, p: ("subtract", 2.0, p),
    "p - -1": lambda b, p: ("subtract", p, -1.0),
    "t - p": lambda b, p: ("subtract", p.op.operands[1], p),
}
BOUND = 3  # ulp: of log(beta), of its product and of the exponential a rounding each, half to one ulp
STEPS = [1, 2, 3, 7, 10, 100, 1000, 12_345, 10**6]


def ulps(got, exact):
    return np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("beta", [0.5, 0.9, 0.999, 0.9999, 1.001])
def test_corrections_are_right_to_three_ulp(form, beta):
    """By the base as written, 0.999, and not by the nearest float32, which alone is a hundred ulp off."""
    sign, write = FORMS[form]
    b = GraphBuilder("correction")
    t = b.input("t", (), float32)
    name, x, y = write(b, b.power(beta, t))
    found = beside_one(b, name, x, y)
    assert found is not None
    b.output(found)
    for step in STEPS if beta < 1 else STEPS[:5]:
        exact = np.float64(-sign * np.expm1(step * np.log(np.float64(beta))))
        assert ulps(interpret(b.graph, [np.float32(step)])[0], exact) <= BOUND


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_of_any_front_end_is_rewritten(form):
    """There the base is what the graph says, a float32."""
    sign, write = FORMS[form]
    b = GraphBuilder("correction")
    t = b.input("t", (), float32)
    name, x, y = write(b, b.power(0.999, t))
    b.output(b.binary(name, x, y))
    recognize_powers(b.graph)
    assert {"power", "subtract", "add"}.isdisjoint(op.name for op in b.graph.ops)
    for step in STEPS:
        exact = np.float64(-sign * np.expm1(step * np.log(np.float64(np.float32(0.999)))))
        assert ulps(interpret(b.graph, [np.float32(step)])[0], exact) <= BOUND


@pytest.mark.parametrize("form", OTHERS)
def test_other_sums_stay(form):
    b = GraphBuilder("other")
    name, x, y = OTHERS[form](b, b.power(0.9, b.input("t", (), float32)))
    assert beside_one(b, name, x, y) is None


@pytest.mark.parametrize(("base", "shape"), [(1.0, ()), (-0.5, ()), (0.0, ()), (0.9, (4,))])
def test_powers_without_that_form_stay(base, shape):
    """1^inf is one and inf * log(1) is not; a negative base has no logarithm; whole tensors cost more so."""
    b = GraphBuilder("other")
    assert beside_one(b, "subtract", 1.0, b.power(base, b.input("t", shape, float32))) is None


def test_the_ends_of_the_range():
    """Infinite exponents and NaN give what the difference gives."""
    b = GraphBuilder("ends")
    t = b.input("t", (), float32)
    power = b.power(0.9, t)
    plain = b.subtract(1.0, power)
    b.output(plain)
    b.output(beside_one(b, "subtract", 1.0, power))
    for value in (np.inf, -np.inf, np.nan, 0.0):
        with np.errstate(all="ignore"):
            want, got = interpret(b.graph, [np.float32(value)])
        np.testing.assert_array_equal(got, want)
