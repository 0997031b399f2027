# SPDX-License-Identifier: Apache-2.0
"""Shifts: the engines have left and logical right by less than the width."""

from __future__ import annotations

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.analysis.selection import SHORT
from trnlab.compiler.rewriting.legalize.casts import widen
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.intervals import Range
from trnlab.graph.ir import Op, Value
from trnlab.graph.passes.rewrite import splat
from trnlab.numerics.dtypes import uint32


def logical(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """Zero where the distance is negative, or the width or more."""
    x, distance = op.operands
    width = 8 * x.dtype.itemsize
    if splat(distance) is not None:
        return b.constant(0, x.dtype, x.shape)
    inside = _inside(b, distance, width)
    nearest = b.minimum(distance, width - 1) if distance.dtype.kind == "u" else b.clamp(0, distance, width - 1)
    return b.select(inside, b.append(op.name, (x, nearest), {}).results[0], 0)


def _inside(b: GraphBuilder, distance: Value, width: int) -> Value:
    below = b.compare(distance, "LT", width)
    return below if distance.dtype.kind == "u" else b.and_(b.compare(distance, "GE", 0), below)


def arithmetic(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """A logical shift, then the sign brought back: of ~x where x is negative."""
    x, distance = op.operands
    if known.bounds(x).low >= 0 and x.dtype is not uint32 and x.dtype not in SHORT:
        return b.shift_right_logical(x, distance)
    if x.dtype.kind == "u":
        return b.shift_right_logical(x, distance)
    if x.dtype in SHORT:
        wide = b.shift_right_arithmetic(widen(b, x), _within(b, widen(b, distance), 31))
        return b.convert(wide, x.dtype)
    number = splat(distance)
    if number is not None:
        return _by_number(b, x, int(number) if 0 <= number < 32 else 31, known.bounds(x))
    sign = _by_number(b, x, 31, known.bounds(x))
    return b.xor(b.shift_right_logical(b.xor(x, sign), _within(b, distance, 31)), sign)


def _within(b: GraphBuilder, distance: Value, most: int) -> Value:
    """The distance, or `most` for one that is negative or more."""
    number = splat(distance)
    if number is not None:
        return b.constant(int(number) if 0 <= number <= most else most, distance.dtype, distance.shape)
    return b.clamp(0, b.select(b.compare(distance, "LT", 0), most, distance), most)


def _by_number(b: GraphBuilder, x: Value, distance: int, bounds: Range) -> Value:
    """A logical shift of x moved up by a power of two above all of it, which is taken off afterwards.

    Of all 32 bits that power is the sign bit, and moving up is flipping it.
    """
    if distance == 0:
        return x
    above = max((-bounds.low - 1).bit_length(), distance)
    if bounds.high + (1 << above) < 1 << 31:
        return b.subtract(b.shift_right_logical(b.add(x, 1 << above), distance), 1 << (above - distance))
    sign = 1 << (31 - distance)
    return b.subtract(b.xor(b.shift_right_logical(x, distance), sign), sign)
