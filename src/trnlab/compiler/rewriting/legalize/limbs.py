# SPDX-License-Identifier: Apache-2.0
"""Integers as sums of limbs, small numbers times powers of two, so that sums of many limbs are exact in float32."""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.intervals import EXACT, Range
from trnlab.graph.ir import Value

WORD = 32


@dataclass(frozen=True, slots=True)
class Limb:
    """A part of an integer: `value` times 2^shift."""

    value: Value
    shift: int


def bits_for_sum(count: int) -> int:
    """Most bits of a limb of which `count` may be added. At least one: up to 2^24 numbers."""
    return max((EXACT // max(count, 1) + 1).bit_length() - 1, 1)


def width_of(bounds: Range) -> int:
    """Bits of two's complement that hold these numbers; without a sign bit when none is negative."""
    if bounds.low >= 0:
        return max(bounds.high.bit_length(), 1)
    return max(bounds.high.bit_length(), (-bounds.low - 1).bit_length()) + 1


def count_of(bounds: Range, bits: int) -> int:
    """How many limbs `split` makes."""
    return -(-width_of(bounds) // bits)


def split(b: GraphBuilder, x: Value, bounds: Range, bits: int) -> list[Limb]:
    """Limbs of int32 or uint32 numbers within `bounds`, modulo 2^32: unsigned ones of `bits` bits, and the last one.

    The last takes the sign along when the numbers need no more than their own width.
    """
    width = width_of(bounds)
    found = []
    for shift in range(0, width, bits):
        last = shift + bits >= width
        signed = last and bounds.low < 0 and width < WORD
        if shift:
            part = b.shift_right_arithmetic(x, shift) if signed else b.shift_right_logical(x, shift)
        else:
            part = x
        found.append(Limb(part if last else b.and_(part, (1 << bits) - 1), shift))
    return found


def join(b: GraphBuilder, parts: list[Limb]) -> Value:
    """The sum of all limbs, wrapping at 32 bits."""
    total: Value | None = None
    for part in parts:
        if part.shift < WORD:
            moved = b.shift_left(part.value, part.shift) if part.shift else part.value
            total = moved if total is None else b.add(total, moved)
    assert total is not None
    return total
