# SPDX-License-Identifier: Apache-2.0
"""Casts between integers: an engine saturates, the lowest bits have to be picked out."""

from __future__ import annotations

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.analysis.selection import SHORT, WORDS
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value
from trnlab.graph.passes.rewrite import splat
from trnlab.numerics.dtypes import DType, float32, int32


def convert(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """To narrow formats by way of int32; from int32 by its lowest bits."""
    (x,), target = op.operands, op.attrs["dtype"]
    if target in SHORT and x.dtype.is_float:
        beyond = b.compare(b.abs(b.convert(x, float32)), "GE", 2.0**31)
        return b.convert(b.convert(b.select(beyond, 0.0, x), int32), target)
    if target in SHORT and x.dtype is not int32:
        return b.convert(b.convert(x, int32), target)
    if target in SHORT:
        return b.convert(lowest_bits(b, x, target), target)
    if target in WORDS and not x.dtype.is_float:
        return b.convert(b.convert(x, int32), target)
    return None


def lowest_bits(b: GraphBuilder, x: Value, target: DType) -> Value:
    """int32 numbers that `target` holds, with the same lowest bits."""
    width = 8 * target.itemsize
    low = b.and_(x, (1 << width) - 1)
    if target.kind == "u":
        return low
    sign = 1 << (width - 1)
    return b.subtract(b.xor(low, sign), sign)


def widen(b: GraphBuilder, x: Value) -> Value:
    """A narrow integer as int32; numbers stay numbers."""
    number = splat(x)
    return b.convert(x, int32) if number is None else b.constant(int(number), int32, x.shape)
