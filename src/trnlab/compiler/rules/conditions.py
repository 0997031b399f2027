# SPDX-License-Identifier: Apache-2.0
"""Conditions under which float32 arithmetic on whole numbers is exact."""

from __future__ import annotations

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.graph.intervals import EXACT, Range, limits
from trnlab.graph.ir import Op
from trnlab.numerics.dtypes import bfloat16, float32

_FLOAT32_HOLDS = Range(-EXACT, EXACT)
_ROUNDED_APART = Range(-EXACT + 1, EXACT - 1)  # no other whole number rounds to one of these


def fits_float32(op: Op, known: Ranges) -> bool:
    """Operands and result, before it wraps, are whole numbers of float32 and of the result's format."""
    result = known.exact(op)
    if result is None or not result.within(limits(op.result.dtype)):
        return False
    return result.within(_FLOAT32_HOLDS) and operands_fit_float32(op, known)


def operands_fit_float32(op: Op, known: Ranges) -> bool:
    """All operands are whole numbers of float32."""
    return all(known.bounds(v).within(_FLOAT32_HOLDS) for v in op.operands)


def comparable_in_float32(op: Op, known: Ranges) -> bool:
    """One operand is below 2^24: rounding the other, which keeps the order, never makes them equal."""
    return any(known.bounds(v).within(_ROUNDED_APART) for v in op.operands)


def bounds_fit_float32(op: Op, known: Ranges) -> bool:
    """The bounds of a clamp are below 2^24: whatever else is rounded is beyond them."""
    low, _, high = op.operands
    return all(known.bounds(v).within(_ROUNDED_APART) for v in (low, high))


def fits_target(op: Op, known: Ranges) -> bool:
    """A cast changes no number: the target holds all of them, and so does float32 where the format changes."""
    bounds = known.bounds(op.operands[0])
    exact = op.operands[0].dtype is op.result.dtype or bounds.within(_FLOAT32_HOLDS)
    return exact and bounds.within(limits(op.result.dtype))


def is_whole(op: Op, known: Ranges) -> bool:
    """The operand has no fraction: rounding it is truncating it."""
    return known.of(op.operands[0]).whole


def distance_is_legal(op: Op, known: Ranges) -> bool:
    """A shift by less than the width, and not by less than nothing."""
    by = known.bounds(op.operands[1])
    return by.low >= 0 and by.high < 8 * op.result.dtype.itemsize


def reduces_rows(op: Op, known: Ranges) -> bool:
    """Over trailing dimensions: along the free dimension of an engine."""
    dims, rank = op.attrs["dimensions"], len(op.operands[0].shape)
    return sorted(dims) == list(range(rank - len(dims), rank))


def sum_fits_float32(op: Op, known: Ranges) -> bool:
    """No partial sum along a row is beyond 2^24."""
    return op.attrs["kind"] == "add" and reduces_rows(op, known) and fits_float32(op, known)


def extreme_fits_float32(op: Op, known: Ranges) -> bool:
    """The largest or smallest of whole numbers of float32 in each row."""
    wanted = op.attrs["kind"] in ("maximum", "minimum") and reduces_rows(op, known)
    return wanted and operands_fit_float32(op, known)


def is_bitwise(op: Op, known: Ranges) -> bool:
    """A reduction of bits along rows."""
    return op.attrs["kind"] in ("and", "or") and reduces_rows(op, known)


def is_float_reduction(op: Op, known: Ranges) -> bool:
    """Anything along rows; over rows the PE array sums float32 and bfloat16."""
    if reduces_rows(op, known):
        return True
    return op.attrs["kind"] == "add" and op.operands[0].dtype in SUMMED_OVER_ROWS


SUMMED_OVER_ROWS = frozenset({float32, bfloat16})


def indices_are_words(op: Op, known: Ranges) -> bool:
    """What picks rows is a 32-bit number."""
    return op.operands[1].dtype.itemsize == 4


def sums_whole_numbers(op: Op, known: Ranges) -> bool:
    """Sums of rows by index: what is added is known to be no NaN and not infinite, as whole numbers are."""
    added = known.of(op.operands[2])
    return indices_are_words(op, known) and not (added.infinite or added.nan)


MOST_MARKED = 1920
"""Rows that one sum by index may have where what is not finite is marked: their marks are counted in base 4096, each
count below half of it (`lowerings.scatter`). A multiple of the 128 rows of a tile."""


SMALL_TABLE = 1024
"""Rows of a result up to which sums by index are one product on the PE array. It takes time for each pair of an
update and a row; adding in memory takes some 6 us for 128 updates, as much as the product with a thousand rows."""


def sums_few_rows(op: Op, known: Ranges) -> bool:
    """Sums of so few rows by index that their marks can be counted, for a small table."""
    few = op.operands[1].type.size <= MOST_MARKED and op.result.shape[0] <= SMALL_TABLE
    return indices_are_words(op, known) and few


def sums_rows(op: Op, known: Ranges) -> bool:
    """Sums by index of the rows that are named; rows are numbered in float32."""
    return indices_are_words(op, known) and op.operands[0].dtype is float32 and op.attrs["rows"] < EXACT


def sums_in_memory(op: Op, known: Ranges) -> bool:
    """Sums by index for a table that is worth adding to where it lies; its rows are numbered in float32."""
    plain = op.operands[2].dtype is float32 and op.result.dtype is float32
    return indices_are_words(op, known) and plain and SMALL_TABLE < op.result.shape[0] < EXACT
