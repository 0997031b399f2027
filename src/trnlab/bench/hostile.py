# SPDX-License-Identifier: Apache-2.0
"""Inputs that kernels meet once in a while: made from usual ones, floats alone, shapes and formats kept.

Integers are left as they are, for nobody knows what they count or point at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
LARGE, TINY, RARE = 2.0**10, 2.0**-20, 512  # factors; one element of so many is an outlier

# Of each: what it is for, and what becomes of one array.
FAMILIES: dict[str, tuple[str, Callable[[Array, Generator], Array]]] = {
    "zeros": ("divisions, logarithms, norms of nothing", lambda a, rng: np.zeros_like(a)),
    "large": ("overflow of exponentials and squares", lambda a, rng: (a.astype(np.float64) * LARGE).astype(a.dtype)),
    "tiny": ("underflow, epsilons that matter", lambda a, rng: (a.astype(np.float64) * TINY).astype(a.dtype)),
    "outliers": ("maxima of rows, accumulation of unequal terms", lambda a, rng: _outliers(a, rng)),
    "equal": ("ties, variances of nothing", lambda a, rng: np.full_like(a, a.flat[0] if a.size else 0)),
    "alternating": ("cancellation", lambda a, rng: _alternating(a)),
    "ordered": ("places that are mixed up", lambda a, rng: _ordered(a)),
}


def made(family: str, arrays: list[Any], rng: Generator) -> list[Any]:
    """The arguments with each array of floats made hostile; all others as they are."""
    function = FAMILIES[family][1]
    return [function(a, rng) if is_float(a) else a for a in arrays]


def is_float(value: Any) -> bool:
    """Whether it is an array of floats, those of ml_dtypes among them."""
    if not isinstance(value, np.ndarray):
        return False
    return bool(value.dtype.kind == "f" or value.dtype.name.startswith(("bfloat", "float")))


def _outliers(a: Array, rng: Generator) -> Array:
    where = rng.integers(0, RARE, a.shape) == 0
    return np.where(where, a.astype(np.float64) * LARGE, a.astype(np.float64)).astype(a.dtype)


def _alternating(a: Array) -> Array:
    signs = np.where(np.arange(a.shape[-1] if a.ndim else 1) % 2, -1.0, 1.0)
    size = np.abs(a.astype(np.float64)).mean() if a.size else 0.0
    return np.broadcast_to(signs * size, a.shape).astype(a.dtype)


def _ordered(a: Array) -> Array:
    """Each element another, so that one in the wrong place is a wrong value: from -2 to 2."""
    return np.linspace(-2.0, 2.0, max(a.size, 1)).reshape(a.shape if a.size else (1,)).astype(a.dtype)
