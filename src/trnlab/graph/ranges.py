# SPDX-License-Identifier: Apache-2.0
"""Interval analysis of integers: the smallest and largest value that each integer of a graph can have.

The intervals are those of the numbers that the user means, before any wrapping: where one leaves the format, the
result may wrap. Inputs have all of their format's values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import Any

import numpy as np

from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import DType, bool_

Interval = tuple[int, int]
Known = Mapping[Value, Interval]


def of_format(dtype: DType) -> Interval:
    """All values of an integer format; bools are 0 and 1."""
    if dtype is bool_:
        return 0, 1
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def fits(interval: Interval, dtype: DType) -> bool:
    """Whether all of an interval lies in the format."""
    low, high = of_format(dtype)
    return low <= interval[0] and interval[1] <= high


def interval_of(op: Op, known: Known) -> Interval | None:
    """The interval of an op's first result from those of its operands; None where nothing is known of it.

    `known` has the interval of every operand that is an integer or bool. Nothing is clipped to the format.
    """
    if op.result.dtype.is_float:
        return None
    if op.result.dtype is bool_:
        return 0, 1
    rule = _RULES.get(op.name)
    return rule(op, [known.get(v, (0, 1)) if not v.dtype.is_float else None for v in op.operands]) if rule else None


def _hull(*intervals: Interval) -> Interval:
    return min(i[0] for i in intervals), max(i[1] for i in intervals)


def _first(op: Op, given: list[Any]) -> Interval:
    return given[0]  # type: ignore[no-any-return]


def _constant(op: Op, given: list[Any]) -> Interval:
    value = np.asarray(op.attrs["value"])
    return (int(value.min()), int(value.max())) if value.size else (0, 0)


def _iota(op: Op, given: list[Any]) -> Interval:
    return 0, max(op.attrs["shape"][op.attrs["iota_dimension"]] - 1, 0)


def _convert(op: Op, given: list[Any]) -> Interval | None:
    """Bounds of a conversion. Of floats nothing is known; narrower formats keep what fits."""
    return given[0]  # type: ignore[no-any-return]


def _corners(function: Callable[[int, int], int]) -> Callable[[Op, list[Any]], Interval]:
    """For functions that are monotone in each operand by itself: the extremes lie at the corners."""

    def rule(op: Op, given: list[Any]) -> Interval:
        found = [function(x, y) for x, y in product(given[0], given[1])]
        return min(found), max(found)

    return rule


def _magnitude(op: Op, given: list[Any]) -> Interval:
    """A quotient that truncates: no larger than the dividend, of either sign."""
    most = max(map(abs, given[0]))
    low = 0 if given[0][0] >= 0 and given[1][0] >= 0 else -most
    return low, most


def _remainder(op: Op, given: list[Any]) -> Interval:
    """The dividend's sign; smaller than the divisor, no larger than the dividend."""
    low, high = given[0]
    return min(low, 0), max(high, 0)


def _bits(op: Op, given: list[Any]) -> Interval:
    """Bitwise operations stay within the bits that their operands have."""
    low, high = _hull(*given)
    bits = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)
    return (0 if low >= 0 else -(1 << bits)), (1 << bits) - 1


def _abs(op: Op, given: list[Any]) -> Interval:
    low, high = given[0]
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _reduce(op: Op, given: list[Any]) -> Interval | None:
    kind, operand = op.attrs["kind"], op.operands[0]
    count = prod(operand.shape[a] for a in op.attrs["dimensions"])
    low, high = given[0]
    if kind == "add":
        return min(low * count, 0), max(high * count, 0)
    if kind in ("maximum", "minimum"):
        return low, high
    if kind == "multiply":
        most = max(abs(low), abs(high), 1) ** min(count, 64)
        return (1 if low > 0 else 0 if low >= 0 else -most), most
    return _bits(op, given)


def _dot(op: Op, given: list[Any]) -> Interval:
    count = prod(op.operands[0].shape[a] for a in op.attrs["lhs_contracting_dimensions"])
    low, high = _corners(lambda x, y: x * y)(op, given)
    return min(low * count, 0), max(high * count, 0)


def _shift_left(op: Op, given: list[Any]) -> Interval:
    most = min(max(given[1][1], 0), 64)
    return min(given[0][0] << most, given[0][0], 0), max(given[0][1] << most, given[0][1], 0)


def _power(op: Op, given: list[Any]) -> Interval:
    most = max(map(abs, given[0])) ** min(max(given[1][1], 1), 64)
    return (0 if given[0][0] >= 0 else -most), max(most, 1)


def _scatter(op: Op, given: list[Any]) -> Interval:
    into, update = given[0], given[2]
    if op.attrs["kind"] != "add":
        return _hull(into, update)
    count = op.operands[1].type.size
    return into[0] + min(update[0] * count, 0), into[1] + max(update[1] * count, 0)


def _whole(op: Op, given: list[Any]) -> Interval:
    """Code from elsewhere computes in the 32 bits that it was written for."""
    return -(2**31), 2**31 - 1


def _summed(op: Op, given: list[Any]) -> Interval:
    """What ranks add up to; extremes stay within."""
    count = op.attrs["group_size"]
    low, high = given[0]
    if op.attrs["kind"] != "add":
        return _whole(op, given) if op.attrs["kind"] == "multiply" else (low, high)
    return min(low * count, 0), max(high * count, 0)


_RULES: dict[str, Callable[[Op, list[Any]], Interval | None]] = {
    "constant": _constant,
    "custom_call": _whole,
    **dict.fromkeys(("all_gather", "all_to_all", "collective_broadcast"), _first),
    "collective_permute": lambda op, given: _hull(given[0], (0, 0)),
    **dict.fromkeys(("all_reduce", "reduce_scatter"), _summed),
    "loop": _whole,
    "iota": _iota,
    "convert": _convert,
    **dict.fromkeys(("broadcast_in_dim", "reshape", "transpose", "slice", "gather", "optimization_barrier"), _first),
    "concatenate": lambda op, given: _hull(*given),
    "pad": lambda op, given: _hull(*given),
    "select": lambda op, given: _hull(given[1], given[2]),
    "clamp": lambda op, given: (
        min(max(given[1][0], given[0][0]), given[2][1]),
        max(min(given[1][1], given[2][1]), given[0][0]),
    ),
    "maximum": _corners(max),
    "minimum": _corners(min),
    "add": _corners(lambda x, y: x + y),
    "subtract": _corners(lambda x, y: x - y),
    "multiply": _corners(lambda x, y: x * y),
    "divide": _magnitude,
    "remainder": _remainder,
    "shift_left": _shift_left,
    "shift_right_arithmetic": lambda op, given: (
        _hull(given[0], (0, 0), (-1, -1)) if given[0][0] < 0 else _hull(given[0], (0, 0))
    ),
    "power": _power,
    **dict.fromkeys(("and", "or", "xor"), _bits),
    "not": lambda op, given: (-given[0][1] - 1, -given[0][0] - 1),
    "negate": lambda op, given: (-given[0][1], -given[0][0]),
    "abs": _abs,
    "sign": lambda op, given: (-1 if given[0][0] < 0 else 0, 1 if given[0][1] > 0 else 0),
    "reduce": _reduce,
    "dot_general": _dot,
    "scatter": _scatter,
}
