# SPDX-License-Identifier: Apache-2.0
"""What is known of whole numbers in a graph: bounds of each value, by interval arithmetic.

The engines compute in float32, which holds whole numbers up to 2^24. Whether an op may run there is a question of
what its operands and its result can be at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from trnlab.compiler.analysis.intervals import Intervals
from trnlab.compiler.analysis.roles import find_updates
from trnlab.graph.ir import Graph, Op, Value
from trnlab.numerics.dtypes import DType, bool_, float32

EXACT = 2**24  # whole numbers up to here, and it, are float32 numbers
WHOLE = frozenset({"floor", "ceil", "round_nearest_even"})


@dataclass(frozen=True, slots=True)
class Range:
    """The whole numbers low..high."""

    low: int
    high: int

    @property
    def magnitude(self) -> int:
        """The largest distance from zero."""
        return max(abs(self.low), abs(self.high))

    def within(self, other: Range) -> bool:
        """Whether all of it lies in `other`."""
        return other.low <= self.low and self.high <= other.high

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


BOOL = Range(0, 1)


def limits(dtype: DType) -> Range:
    """All that an integer format holds."""
    low, high = dtype.limits
    return Range(int(low), int(high))


class Ranges:
    """Bounds of the values of a graph, computed when they are first asked for. `floats`: the same for any number.
    `updates`: the optimizer's ops."""

    def __init__(self, graph: Graph | None = None) -> None:
        self._known: dict[Value, Range | None] = {}
        self.floats = Intervals({} if graph is None else graph.bounds)
        self.updates: set[Op] = set() if graph is None else find_updates(graph)

    def of(self, value: Value) -> Range | None:
        """Bounds of a value, in its format; None for floats that may be no whole numbers."""
        todo = [value] if value not in self._known else []
        while todo:  # a graph may be deeper than Python's stack
            last = todo[-1]
            ruled = last.op is not None and last.op.name in _RULES
            missing = [v for v in last.op.operands if v not in self._known] if last.op is not None and ruled else []
            if missing and last not in self._known:
                todo += missing
                continue
            todo.pop()
            if last not in self._known:
                self._known[last] = self._find(last)
        return self._known[value]

    def bounds(self, value: Value) -> Range:
        """Bounds of an integer or truth value."""
        found = self.of(value)
        assert found is not None
        return found

    def exact(self, op: Op) -> Range | None:
        """Bounds of the result before it is wrapped or rounded; None when unknown."""
        rule = _RULES.get(op.name)
        return rule(self, op) if rule is not None else None

    def is_whole(self, value: Value) -> bool:
        """Whether every element is a whole number, infinite or NaN."""
        made = value.op.name if value.op is not None else ""
        return made in WHOLE or self.of(value) is not None

    def _find(self, value: Value) -> Range | None:
        full = None if value.dtype.is_float else limits(value.dtype)
        found = self.exact(value.op) if value.op is not None else None
        if found is None:
            return full
        if full is not None:
            return found if found.within(full) else full
        rounded = value.op is not None and value.op.name == "convert"  # to the nearest, which is whole as well
        return found if value.dtype is float32 and (found.magnitude <= EXACT or rounded) else None


Rule = Callable[[Ranges, Op], "Range | None"]


def _operands(known: Ranges, op: Op) -> list[Range] | None:
    found = [known.of(v) for v in op.operands]
    whole = [r for r in found if r is not None]
    return whole if len(whole) == len(found) else None


def _of_operands(function: Callable[..., Range | None]) -> Rule:
    """A rule that needs bounds of all operands."""

    def rule(known: Ranges, op: Op) -> Range | None:
        found = _operands(known, op)
        return None if found is None else function(*found)

    return rule


def _product(x: Range, y: Range) -> Range:
    corners = [a * c for a in (x.low, x.high) for c in (y.low, y.high)]
    return Range(min(corners), max(corners))


def _union(*ranges: Range) -> Range:
    return Range(min(r.low for r in ranges), max(r.high for r in ranges))


def _and(x: Range, y: Range) -> Range | None:
    """No more than the smaller of two operands that are not negative; one such is enough for a bound."""
    bounds = [r.high for r in (x, y) if r.low >= 0]
    return Range(0, min(bounds)) if bounds else None


def _or(x: Range, y: Range) -> Range | None:
    """Below the power of two above both."""
    if min(x.low, y.low) < 0:
        return None
    return Range(0, (1 << max(x.high, y.high).bit_length()) - 1)


def _shifted(known: Ranges, op: Op) -> Range | None:
    x, by = known.bounds(op.operands[0]), known.bounds(op.operands[1])
    width = 8 * op.result.dtype.itemsize
    if by.low < 0 or by.high >= width:
        return None
    if op.name == "shift_left":
        return _product(x, Range(1 << by.low, 1 << by.high))
    if op.name == "shift_right_arithmetic" or x.low >= 0:
        ends = [end >> d for end in (x.low, x.high) for d in (by.low, by.high)]
        return Range(min(ends), max(ends))
    return Range(0, (1 << (width - by.low)) - 1) if by.low > 0 else None


def _convert(known: Ranges, op: Op) -> Range | None:
    source = known.of(op.operands[0])
    if op.attrs["dtype"] is bool_:
        return BOOL
    if source is None or not op.attrs["dtype"].is_float:
        return source
    return Range(*(int(np.float32(end)) for end in (source.low, source.high)))


def _constant(known: Ranges, op: Op) -> Range | None:
    value: Any = np.asarray(op.attrs["value"])
    if op.result.dtype.is_float:
        value = value.astype(np.float64)
        if value.size == 0 or not np.isfinite(value).all() or (np.rint(value) != value).any():
            return None
    return Range(int(value.min()), int(value.max())) if value.size else Range(0, 0)


def _iota(known: Ranges, op: Op) -> Range:
    return Range(0, max(op.result.shape[op.attrs["iota_dimension"]] - 1, 0))


def _reduce(known: Ranges, op: Op) -> Range | None:
    x, kind = known.of(op.operands[0]), op.attrs["kind"]
    if x is None or kind == "multiply":
        return None
    if op.operands[0].type.size == 0:
        return None
    if kind == "add":
        count = prod(op.operands[0].shape[d] for d in op.attrs["dimensions"])
        return Range(count * x.low, count * x.high)
    return x if kind in ("maximum", "minimum") else _or(x, x)


def _dot_general(known: Ranges, op: Op) -> Range | None:
    found = _operands(known, op)
    if found is None:
        return None
    most = found[0].magnitude * found[1].magnitude
    most *= prod(op.operands[0].shape[d] for d in op.attrs["lhs_contracting_dimensions"])
    return Range(-most, most)


def _clamp(low: Range, x: Range, high: Range) -> Range:
    raised = Range(max(low.low, x.low), max(low.high, x.high))
    return Range(min(raised.low, high.low), min(raised.high, high.high))


def _remainder(known: Ranges, op: Op) -> Range | None:
    x, y = known.of(op.operands[0]), known.of(op.operands[1])
    if x is None or y is None or op.result.dtype.is_float:
        return None
    most = max(x.magnitude if y.low <= 0 <= y.high else 0, min(x.magnitude, y.magnitude - 1))
    return Range(-most if x.low < 0 else 0, most if x.high > 0 else 0)


def _first(known: Ranges, op: Op) -> Range | None:
    return known.of(op.operands[0])


_RULES: dict[str, Rule] = {
    "add": _of_operands(lambda x, y: Range(x.low + y.low, x.high + y.high)),
    "subtract": _of_operands(lambda x, y: Range(x.low - y.high, x.high - y.low)),
    "multiply": _of_operands(_product),
    "maximum": _of_operands(lambda x, y: Range(max(x.low, y.low), max(x.high, y.high))),
    "minimum": _of_operands(lambda x, y: Range(min(x.low, y.low), min(x.high, y.high))),
    "negate": _of_operands(lambda x: Range(-x.high, -x.low)),
    "sign": lambda known, op: Range(-1, 1) if not op.result.dtype.is_float else None,
    "clamp": _of_operands(_clamp),
    "select": _of_operands(lambda pred, x, y: x | y),
    "remainder": _remainder,
    "and": _of_operands(_and),
    "or": _of_operands(_or),
    "xor": _of_operands(_or),
    **dict.fromkeys(("shift_left", "shift_right_logical", "shift_right_arithmetic"), _shifted),
    "not": lambda known, op: BOOL if op.result.dtype is bool_ else None,
    "compare": lambda known, op: BOOL,
    "is_finite": lambda known, op: BOOL,
    "convert": _convert,
    "constant": _constant,
    "iota": _iota,
    **dict.fromkeys(("reshape", "transpose", "broadcast_in_dim", "slice", "gather", "optimization_barrier"), _first),
    **dict.fromkeys(("concatenate", "pad"), _of_operands(_union)),
    "reduce": _reduce,
    "dot_general": _dot_general,
}
