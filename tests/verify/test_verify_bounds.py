# SPDX-License-Identifier: Apache-2.0
"""Bounds, comparisons and conditions of `trnlab verify`, by numbers whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trnlab.verify import conditions
from trnlab.verify.bounds import EXACT, KINDS, SUM, kind_of, roundoff, table
from trnlab.verify.compare import relative, rounding_bound, within
from trnlab.verify.conditions import Situation, condition
from trnlab.verify.result import Curves


def test_u_is_half_the_distance_of_neighbours():
    for format, dtype in (("float32", np.float32), ("float16", np.float16)):
        assert roundoff(format) == np.finfo(dtype).eps / 2
    assert roundoff("bfloat16") == 2.0**-8


def test_every_kind_is_in_the_table_of_the_documentation():
    assert [row[0] for row in table()] == [kind.name for kind in KINDS]
    assert kind_of("aten.view.default") is EXACT
    assert kind_of("aten._foreach_add.List") is kind_of("aten.add.Tensor")
    assert SUM.c(100) == 40


def test_nan_agrees_with_nan_and_an_infinity_with_its_own_sign_only():
    chip = np.array([math.nan, math.inf, math.inf, 1.0])
    worst = within(chip, np.array([math.nan, math.inf, -math.inf, 1.0]), 1e9, "float32")
    assert (worst.index, worst.ratio, worst.wrong) == ((2,), math.inf, 1)


def test_one_unit_in_the_last_place_is_inside_and_four_are_not():
    want = np.array([1.0, 1.0])
    bound = rounding_bound(want, np.abs(want), 3, "float32")
    assert within(np.float32(1) + np.array([1, 0], np.float32) * np.float32(2**-23), want, bound, "float32").ratio < 1
    assert (
        within(np.float32(1) + np.array([0, 4], np.float32) * np.float32(2**-23), want, bound, "float32").wrong == 1
    )


def test_moves_are_compared_bit_by_bit():
    one = np.array([1.0], np.float32)
    assert within(np.nextafter(one, np.float32(2)), one.astype(np.float64), 0.0, "float32").ratio == math.inf


def test_an_error_against_zero_is_infinitely_large():
    assert relative(np.array([1e-30]), np.array([0.0])) == math.inf
    assert relative(np.array([0.0]), np.array([0.0])) == 0.0


@pytest.mark.parametrize(
    ("chip", "reference", "format", "more", "expected"),
    [
        (math.inf, 70000.0, "float16", {}, conditions.OVERFLOW),
        (math.nan, 1.0, "float32", {}, conditions.BORN),
        (0.0, 1e-9, "float16", {}, conditions.UNDERFLOW),
        (1.0 + 2**-9, 1.0, "float32", {"operand": 1.0}, conditions.NARROW),
        (-1.0, 1.0, "float32", {}, conditions.WRONG),
        (1.1920929e-07, 1.0e-7, "float32", {"operand": 1e-7}, conditions.INSIDE),
    ],
)
def test_conditions(chip, reference, format, more, expected):
    worst = within(np.array(chip), np.array(reference), 1e-12, format)
    assert condition(Situation(worst, format, **more)) == expected
    assert conditions.remedy(expected)


def test_the_band_is_as_wide_as_rounding_makes_it():
    curves = Curves([2.0, 1.5], [2.0, 1.5], [[2.001, 1.5], [1.999, 1.502]])
    (low, high), (low2, high2) = curves.band()
    assert (low, high) == pytest.approx((1.996, 2.004), abs=1e-5)
    assert (low2, high2) == pytest.approx((1.492, 1.508), abs=1e-5)
    assert curves.outside() is None
    curves.chip[1] = 1.51
    assert curves.outside() == 2
