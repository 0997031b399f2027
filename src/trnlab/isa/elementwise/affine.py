# SPDX-License-Identifier: Apache-2.0
"""Affine index patterns: offset + p * channel_multiplier + sum of index * step, shared by iota and affine_select."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Array, Instruction, Operand

MAX_PATTERN_DIMS = 4
_INT32 = range(-(1 << 31), 1 << 31)


def affine_values(attrs: Mapping[str, Any], partitions: int) -> Array:
    """int32 [P, F], wrapping as 32-bit arithmetic does; `pattern` is ((step, num), ...), outermost first."""
    values = attrs["offset"] + np.arange(partitions, dtype=np.int64)[:, None] * attrs["channel_multiplier"]
    for step, num in attrs["pattern"]:
        values = (values[:, :, None] + np.arange(num, dtype=np.int64) * step).reshape(partitions, -1)
    return np.asarray(values).astype(np.int32)


def check_pattern(instr: Instruction, dst: Operand, attrs: Mapping[str, Any], chip: Chip) -> None:
    """The pattern has one to four dimensions, 32-bit numbers, and as many elements as dst per partition."""
    pattern = attrs["pattern"]
    if not 1 <= len(pattern) <= MAX_PATTERN_DIMS:
        instr.refuse(
            "the pattern has a wrong number of dimensions",
            limit=f"1..{MAX_PATTERN_DIMS} of (step, num)",
            got=len(pattern),
            chip=chip,
            remedy="merge or split dimensions",
            code="TRN407",
        )
    numbers = (attrs["offset"], attrs["channel_multiplier"], *(step for step, _ in pattern))
    if any(number not in _INT32 for number in numbers):
        instr.refuse(
            "the pattern needs more than 32 bits",
            limit="-2**31..2**31 - 1",
            got=numbers,
            chip=chip,
            remedy="use smaller steps and offsets",
            code="TRN411",
        )
    count = prod(num for _, num in pattern)
    if count != dst.free:
        instr.refuse(
            "the pattern does not cover dst",
            limit=f"{dst.free} elements per partition",
            got=count,
            chip=chip,
            remedy="make the product of the pattern's counts equal to dst's free size",
            code="TRN409",
        )
