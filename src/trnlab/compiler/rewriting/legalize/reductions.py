# SPDX-License-Identifier: Apache-2.0
"""Reductions of integers: sums of limbs, extremes of upper and then of lower halves, products two by two."""

from __future__ import annotations

from math import prod

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.analysis.selection import SHORT
from trnlab.compiler.rewriting.legalize.casts import widen
from trnlab.compiler.rewriting.legalize.limbs import Limb, bits_for_sum, join, split
from trnlab.compiler.rules.conditions import reduces_rows
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.intervals import EXACT
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import bool_, float32, int32

HALF = 16


def reduce(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """By kind; narrow formats in 32 bits."""
    (x,), kind = op.operands, op.attrs["kind"]
    if x.dtype.is_float:
        return b.convert(b.reduce(b.convert(x, float32), op.attrs["dimensions"], kind), x.dtype)
    if x.dtype is bool_ or kind in ("and", "or"):
        return None
    if x.dtype in SHORT:
        return b.convert(b.reduce(widen(b, x), op.attrs["dimensions"], kind), x.dtype)
    return {"add": _sum, "maximum": _extreme, "minimum": _extreme, "multiply": _product}[kind](op, b, known)


def _sum(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """Sums of limbs, each below 2^24, shifted and added with wrap-around."""
    (x,), dims = op.operands, op.attrs["dimensions"]
    count = prod(x.shape[d] for d in dims)
    if count > EXACT:
        return None
    limbs = split(b, x, known.bounds(x), bits_for_sum(count))
    return join(b, [Limb(_sum_of_limb(b, limb.value, op, known), limb.shift) for limb in limbs])


def _sum_of_limb(b: GraphBuilder, limb: Value, op: Op, known: Ranges) -> Value:
    dims = op.attrs["dimensions"]
    if reduces_rows(op, known):
        return b.reduce(limb, dims)
    return b.convert(b.reduce(b.convert(limb, float32), dims), op.result.dtype)  # over rows: on the PE array


def _extreme(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """The extreme of the upper halves; of the lower halves where the upper is that."""
    (x,), dims, kind = op.operands, op.attrs["dimensions"], op.attrs["kind"]
    if not reduces_rows(op, known):
        return None
    upper = b.shift_right_arithmetic(x, HALF) if x.dtype is int32 else b.shift_right_logical(x, HALF)
    lower = b.and_(x, (1 << HALF) - 1)
    best = b.reduce(upper, dims, kind)
    kept = tuple(range(len(x.shape) - len(dims)))
    there = b.compare(upper, "EQ", b.broadcast_in_dim(best, x.shape, kept))
    beyond = 0 if kind == "maximum" else (1 << HALF) - 1
    return b.or_(b.shift_left(best, HALF), b.reduce(b.select(there, lower, beyond), dims, kind))


def _product(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """One half of each row times the other, until one number is left."""
    (x,) = op.operands
    if not reduces_rows(op, known):
        return None
    x = b.reshape(x, (*op.result.shape, prod(x.shape[d] for d in op.attrs["dimensions"])))
    last = len(x.shape) - 1
    while x.shape[last] > 1:
        half, odd = divmod(x.shape[last], 2)
        left, right = (b.slice_dim(x, last, start, start + half) for start in (0, half))
        pairs = b.multiply(left, right)
        x = b.concatenate([pairs, b.slice_dim(x, last, 2 * half, 2 * half + 1)], last) if odd else pairs
    return b.reshape(x, op.result.shape)
