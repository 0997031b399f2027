# SPDX-License-Identifier: Apache-2.0
"""Products and sums of rows by index, of integers: the PE array multiplies limbs, whose sums are exact in float32."""

from __future__ import annotations

from math import prod

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.analysis.selection import SHORT
from trnlab.compiler.rewriting.legalize.casts import widen
from trnlab.compiler.rewriting.legalize.limbs import WORD, Limb, bits_for_sum, count_of, join, split, width_of
from trnlab.compiler.rules.conditions import MOST_MARKED, SMALL_TABLE
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.intervals import EXACT, Range
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import bfloat16, float32, int32

WIDEST = 24  # bits of a limb that float32 holds
BFLOAT16_BITS = 8
FEW_ROWS, MANY = 128, 8
"""Rows of a table up to which, and runs of rows from which on, a sum by index is one product of three times the
columns: each run takes some 14 us by itself, whatever it adds up."""
_ENDS = (("LT", float("inf")), ("GT", -float("inf")))


def dot_general(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """The sum of the products of all pairs of limbs, wrapping at 32 bits."""
    if op.operands[0].dtype.is_float or op.operands[1].dtype.is_float:
        return None
    count = prod(op.operands[0].shape[d] for d in op.attrs["lhs_contracting_dimensions"])
    sides = [widen(b, v) if v.dtype in SHORT else v for v in op.operands]
    bounds = [known.bounds(v) for v in sides]
    best = _cheapest(bounds[0], bounds[1], count)
    if best is None:
        return None
    limbs = [split(b, v, r, bits) for v, r, bits in zip(sides, bounds, best)]
    kind = bfloat16 if max(best) <= BFLOAT16_BITS else float32
    attrs = {**op.attrs, "dtype": float32, "precision": "HIGHEST"}
    found = []
    for x in limbs[0]:
        for y in limbs[1]:
            if x.shift + y.shift < WORD:
                operands = b.convert(x.value, kind), b.convert(y.value, kind)
                product = b.append("dot_general", operands, attrs).results[0]
                found.append(Limb(b.convert(product, int32), x.shift + y.shift))
    return b.convert(join(b, found), op.result.dtype)


def _cheapest(x: Range, y: Range, count: int) -> tuple[int, int] | None:
    """Bits of the limbs of both sides, with the fewest products of which `count` add up exactly."""
    choices = [
        (count_of(x, i) * count_of(y, j), max(i, j), (i, j))
        for i in range(1, min(WIDEST, width_of(x)) + 1)
        for j in range(1, min(WIDEST, width_of(y)) + 1)
        if count * _most(x, i) * _most(y, j) <= EXACT
    ]
    return min(choices)[2] if choices else None


def _most(bounds: Range, bits: int) -> int:
    """The largest magnitude of a limb."""
    return bounds.magnitude if bits >= width_of(bounds) else (1 << bits) - 1


def scatter(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """The sums of all limbs, of floats those of runs of rows; indices of any format."""
    into, ids, update = op.operands
    if ids.dtype.itemsize < int32.itemsize:
        return b.append("scatter", (into, b.convert(ids, int32), update), op.attrs).results[0]
    if op.attrs["kind"] != "add":
        return None
    if update.dtype.is_float:
        return _in_parts(op, b)
    rows = ids.type.size
    if rows > EXACT:
        return None
    wide = widen(b, update) if update.dtype in SHORT else update
    zeros = b.constant(0.0, float32, into.shape)
    found = []
    for limb in split(b, wide, known.bounds(wide), min(bits_for_sum(rows), WIDEST)):
        part = b.convert(limb.value, float32)
        summed = b.append("scatter", (zeros, ids, part), op.attrs).results[0]
        found.append(Limb(b.convert(summed, int32), limb.shift))
    return b.convert(join(b, found), into.dtype)


def _in_parts(op: Op, b: GraphBuilder) -> Value | None:
    """The sum over runs of rows, each short enough; in float32, of a large table over all rows."""
    into, ids, update = op.operands
    if op.attrs["scatter_dims_to_operand_dims"] != (0,):
        return None
    count, places = ids.type.size, (*into.shape[1:],)
    ids, update = b.reshape(ids, (count,)), b.convert(b.reshape(update, (count, *places)), float32)
    total = b.convert(into, float32)
    if into.shape[0] <= FEW_ROWS and count >= MANY * MOST_MARKED and len(places) == 1:
        return b.convert(b.add(total, _counted_apart(b, ids, update, into.shape[0])), into.dtype)
    most = MOST_MARKED if into.shape[0] <= SMALL_TABLE else count
    for start in range(0, count, most):
        rows = [b.slice_dim(v, 0, start, min(start + most, count)) for v in (ids, update)]
        total = b.add(total, b.scatter_add_rows(rows[0], rows[1], into.shape[0]))
    return b.convert(total, into.dtype)


def _counted_apart(b: GraphBuilder, ids: Value, update: Value, rows: int) -> Value:
    """The sum over any number of rows, for a table of a few: what is finite, and how many are infinite with either
    sign, which NaN counts as both. Counts are not zero where they should not be, whatever they are rounded to."""
    cols = update.shape[1]
    finite = b.select(b.is_finite(update), update, 0.0)
    # neither comparison holds for NaN
    marks = [b.select(b.compare(update, way, end), 0.0, b.constant(1.0, float32, update.shape)) for way, end in _ENDS]
    sums = b.scatter_add_rows(ids, b.concatenate([finite, *marks], 1), rows)
    total, above, below = (b.slice_dim(sums, 1, i * cols, (i + 1) * cols) for i in range(3))
    total = b.add(total, b.select(b.compare(above, "GT", 0.0), float("inf"), b.constant(0.0, float32, total.shape)))
    return b.add(total, b.select(b.compare(below, "GT", 0.0), -float("inf"), b.constant(0.0, float32, total.shape)))
