# SPDX-License-Identifier: Apache-2.0
"""Every function of floats keeps its bound in units in the last place, over its whole range, on both engines."""

from __future__ import annotations

import numpy as np
import pytest
from accuracy import CHIPS, FUNCTIONS, bound, errors, grid, measured

pytestmark = pytest.mark.torch
NAMES = [function.name for function in FUNCTIONS]


@pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)
def test_in_fp32_on_every_chip(function):
    for engine in ("interpreter", *CHIPS):
        assert measured(function, "float32", engine).max() <= bound(function, "float32"), engine


@pytest.mark.parametrize("format", ["bfloat16", "float16"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)
def test_in_16_bits(function, format):
    """Computed in fp32 and rounded once: nearly the nearest number of the format."""
    for engine in ("interpreter", "trn2"):
        assert measured(function, format, engine).max() <= bound(function, format), engine


def test_grid_is_hostile():
    """Each exponent of the format, subnormals included, both signs, and what is no number."""
    for format, exponents in (("float32", 277), ("bfloat16", 261), ("float16", 40)):
        x = grid(format).double().numpy()
        finite = np.abs(x[np.isfinite(x) & (x != 0)])
        assert len(np.unique(np.floor(np.log2(finite)))) == exponents
        assert {np.inf, -np.inf} <= set(x[np.isinf(x)])
        assert np.isnan(x).any()
        assert len(np.unique(np.signbit(x[x == 0]))) == 2
    assert grid("float32").numel() > 50_000


def test_errors_are_counted_in_steps():
    """One step off is one; NaN, infinities and signs of zeros that differ are infinitely wrong."""
    sine = next(f for f in FUNCTIONS if f.name == "sin")
    want = np.array([1.0, 2.0**-130, np.nan, np.inf, 0.0, 1.0, -np.inf, 4e38, 1.0])
    got = np.array([1 + 2.0**-22, 2.0**-130 + 2.0**-149, np.nan, np.inf, -0.0, np.nan, np.inf, np.inf, np.inf])
    found = errors(got, want, sine, "float32", np.zeros(9))
    np.testing.assert_array_equal(found, [2, 1, 0, 0, np.inf, np.inf, np.inf, 0, np.inf])
