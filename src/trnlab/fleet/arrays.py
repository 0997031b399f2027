# SPDX-License-Identifier: Apache-2.0
"""Arrays of figures of many layouts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_WIDEST = 1 << 62  # of what several columns make as one number


def distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """The rows [K, C] that C columns [N] of numbers from 0 on make, each once and in order, and [N] which each is.

    The columns are packed into one number a row, which sorts many times faster than rows do.
    """
    packed, span = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        digit, wide = column, int(column.max(initial=0)) + 1
        if span * wide > _WIDEST:
            packed, span = _ranked(packed)
            digit, wide = _ranked(column)
        packed, span = packed * wide + digit, span * wide
    _, first, which = np.unique(packed, return_index=True, return_inverse=True)
    return np.stack([column[first] for column in columns], axis=1), which.reshape(-1)


def _ranked(column: Ints) -> tuple[Ints, int]:
    """[N] the place of each number among all that there are, and how many there are."""
    each, which = np.unique(column, return_inverse=True)
    return which.reshape(-1), max(len(each), 1)


def rows_of(which: Ints) -> Iterator[Ints]:
    """The rows of 0, of 1, and so on, of [N] numbers of which none is left out."""
    if len(which):
        yield from np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
