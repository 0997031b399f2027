# SPDX-License-Identifier: Apache-2.0
"""Two arrays that should agree within a bound: where they do not, and what that looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.verify.bounds import largest, roundoff, smallest

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Worst:
    """The element that lies farthest outside of its bound, in units of the bound (`ratio`; infinite for a NaN)."""

    index: tuple[int, ...]
    chip: float
    reference: float
    bound: float  # of that element, absolute
    ratio: float
    wrong: int  # how many elements lie outside


def within(chip: Array, reference: Array, bound: Array | float, format: str) -> Worst:
    """Compare element by element. `reference` is exact, in float64 (or as it is, for integers and bools).

    NaN agrees with NaN, and an infinity with one of its sign.
    """
    if chip.size == 0:
        return Worst((), 0.0, 0.0, 0.0, 0.0, 0)
    got = np.asarray(chip, np.float64) if chip.dtype.kind not in "iub" else chip
    want = np.asarray(reference)
    with np.errstate(all="ignore"):
        same = (got == want) | ((got != got) & (want != want))
        if got.dtype.kind != "f":
            ratio = np.where(same, 0.0, np.inf)
            allowed = np.zeros(got.shape)
        else:
            allowed = np.broadcast_to(np.asarray(bound, np.float64), got.shape)
            error = np.abs(got - want)
            floor = np.where(allowed > 0, smallest(format), 0.0)
            ratio = np.where(same, 0.0, np.where(np.isfinite(error), error / (allowed + floor), np.inf))
    at = np.unravel_index(int(np.argmax(ratio)), got.shape) if got.shape else ()
    return Worst(
        tuple(int(i) for i in at),
        float(got[at]),
        float(want[at]),
        float(allowed[at]),
        float(ratio[at]),
        int(np.count_nonzero(ratio > 1)),
    )


def relative(chip: Array, reference: Array) -> float:
    """Distance of two arrays as vectors, relative to the reference's length; infinite where one is not finite."""
    got, want = np.asarray(chip, np.float64), np.asarray(reference, np.float64)
    with np.errstate(all="ignore"):
        same = (got == want) | ((got != got) & (want != want))
        distance = float(np.linalg.norm(np.where(same, 0.0, got - want)))
        length = float(np.linalg.norm(np.where(np.isfinite(want), want, 0.0)))
    if distance == 0:
        return 0.0
    return distance / length if length > 0 and np.isfinite(distance) else float("inf")


def rounding_bound(reference: Array, scale: Array | float, c: float, format: str) -> Array:
    """The bound of `bounds`: for the format of the result, and c * u(float32) * scale for how it was computed."""
    narrow = 1.0001 * roundoff(format) if format != "float32" else 0.0
    with np.errstate(all="ignore"):
        found: Array = narrow * np.abs(np.asarray(reference, np.float64)) + c * roundoff("float32") * np.asarray(
            scale
        )
    return np.nan_to_num(found, nan=0.0, posinf=0.0)


def overflows(reference: float, format: str) -> bool:
    """Whether a finite number is beyond a format."""
    return bool(np.isfinite(reference)) and abs(reference) > largest(format) * (1 + roundoff(format))
