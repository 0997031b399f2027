# SPDX-License-Identifier: Apache-2.0
"""Functions for compiled callers: their callers compute what Python would, and Python cannot call them."""

import numpy as np
import pytest
from numba import njit

from trnlab.sim.functional.linking import inline, jit


@inline
def _doubled(x):
    return x + x


@jit
def _sum_of_doubled(values, count):
    total = np.float32(0)
    for i in range(count):
        total += _doubled(values[i])
    return total


@jit
def _quotient(a, b):
    return a / b


@njit(error_model="numpy")
def _both(values):
    return _sum_of_doubled(values, len(values)) - _doubled(values[0]), _quotient(values[0], np.float32(0))


def test_callers_compute_what_python_would() -> None:
    values = np.arange(1, 8, dtype=np.float32)
    total, quotient = _both(values)
    assert total == 2 * values.sum() - 2 * values[0]
    assert quotient == np.inf


def test_python_cannot_call_one() -> None:
    with pytest.raises(ValueError, match="not in list"):
        _doubled(np.float32(1))
