# SPDX-License-Identifier: Apache-2.0
"""Integers of 64 bits at the border of the chip, which holds 32 of them (ADR 24)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trnlab.errors import NumericsError

_INT32 = np.iinfo(np.int32)


def check_fits(array: npt.NDArray[Any], name: str) -> None:
    """Raise NumericsError (TRN211) with the place of the first number that does not fit in 32 bits.

    Two passes without a temporary; a place is looked for only when there is one.
    """
    if array.size == 0 or (array.min() >= _INT32.min and array.max() <= _INT32.max):
        return
    place = tuple(int(i) for i in np.argwhere((array < _INT32.min) | (array > _INT32.max))[0])
    raise NumericsError(
        f"{name} has a 64-bit integer that does not fit in the 32 bits that the chip has",
        code="TRN211",
        limit=f"{_INT32.min} to {_INT32.max}",
        got=f"{array[place]} at {list(place)}",
        remedy="keep such numbers out of compiled code, or map them to smaller ones before the step",
    )
