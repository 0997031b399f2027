# SPDX-License-Identifier: Apache-2.0
"""What must hold of integers while a graph runs: 64-bit ones stay within 32 bits, indices within what they index.

The chip has no 64-bit integers. An op on them computes in int32, which is exact as long as the result fits. Where
`interval_analysis` cannot show that it does, the graph computes a flag beside the result; all flags leave as one more
output, which `engine` reads after the run.

    add, subtract           exact: the signs of operands and result
    negate, abs             exact: the one value without a counterpart
    multiply, power, sums   in float32, and on the safe side: a result within 2^-20 of the limit counts as beyond it
    conversion of floats    exact: NaN counts as beyond, too

An index that is an input of the graph is looked at before the graph runs; one that is computed has a flag.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from math import prod

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interval_analysis import Intervals
from trnlab.graph.intervals import ANY, Interval, Range, limits
from trnlab.graph.ir import Check, Op, Value
from trnlab.numerics.dtypes import float32, int32

_PICKED_BY = {"gather": 1, "scatter": 1, "select": 0}  # the operand that says which elements
_LIMIT = 2.0**31
_SAFE = _LIMIT * (1 - 2.0**-20)
_STEP = 2.0**-23  # float32's relative rounding error, doubled


class _OfIntegers(Intervals):
    """Facts about integers alone: what products of floats are rounded to is chosen when a graph is compiled."""

    def _find(self, value: Value) -> Interval:
        return ANY if value.dtype.is_float else super()._find(value)


class OverflowFlags:
    """Collects the flags of one graph while it is being built."""

    def __init__(self, b: GraphBuilder) -> None:
        self._b = b
        self._known = _OfIntegers()
        self._flags: list[tuple[Value, Op | None]] = []  # beside each the op that it is about
        self.checks: list[Check] = []
        self._inverse: dict[Value, Value] = {}  # of the numbers from 0 on in some order, where each of them is

    def follow(self, ops: Iterable[Op], given: Iterable[Value], wide: bool) -> Op | None:
        """Take note of ops that were just appended, of values that stand for 64-bit integers.

        given: which of the values that they start from are such. wide: all that they compute is; else what they
        compute of these is, though not what they only pick with them. Returns the first op whose result may leave 32
        bits without a way to see it, else None.
        """
        of_64_bits = set(given)
        for op in list(ops):
            counts = wide or any(v in of_64_bits for v in _data(op))
            for v in op.results if counts else ():
                if v.dtype is int32:
                    of_64_bits.add(v)
                    found = self._known.exact(op) if v is op.result else None
                    inside = found is not None and found.within(limits(int32))
                    if not inside and not self._watched(op):
                        return op
        return None

    def _watched(self, op: Op) -> bool:
        make = _FLAGS.get(op.name)
        flag = make(self._b, op) if make is not None else None
        if flag is None:
            return op.name in _CANNOT_LEAVE
        self._flag(flag, Check(op.origin or op.name, op.loc), op)
        return True

    def demand(self, flag: Value, check: Check, of: Op | None) -> None:
        """See to it that `flag` is nowhere true, where the result of the op that it is about is needed."""
        self._flag(flag, check, of)

    def _flag(self, flag: Value, check: Check, op: Op | None = None) -> None:
        if flag.shape:
            flag = self._b.reduce(flag, range(len(flag.shape)), "or")
        self._flags.append((flag, op))
        self.checks.append(check)

    def index(self, ids: Value, low: int, high: int, exempt: int | None = None) -> None:
        """Require low <= ids < high of every element that is not `exempt`."""
        if ids.type.size == 0 or self._known.bounds(ids).within(Range(low, high - 1)):
            return
        b = self._b
        check = Check(b.origin, b.loc, "index", low, high, exempt)
        source = _all_of(ids)
        if source.op is None:
            held = b.graph.limits.setdefault(b.graph.inputs.index(source), [])
            if check not in held:
                held.append(check)
            return
        flag = b.or_(b.compare(ids, "LT", low), b.compare(ids, "GE", high))
        self._flag(flag if exempt is None else b.and_(flag, b.compare(ids, "NE", exempt)), check)

    def note_order(self, order: Value, places: Value) -> None:
        """Take note that `order` [N] has each of 0, 1, ... N - 1 once, number n at places[n]: so has the other."""
        one, other = _all_of(order), _all_of(places)
        self._inverse[one], self._inverse[other] = other, one

    def inverse(self, order: Value) -> Value | None:
        """Where each number is in a vector of which that was noted; None for others."""
        found = self._inverse.get(_all_of(order)) if order.type.size == _all_of(order).type.size else None
        return None if found is None else self._b.reshape(found, (found.type.size,))

    def bounds(self, value: Value) -> Range:
        """The whole numbers that the elements of an integer lie between."""
        return self._known.bounds(value)

    def require(self, condition: Value, message: str) -> None:
        """Require that `condition` holds; `message` is what to say where it does not."""
        b = self._b
        self._flag(b.not_(condition), Check(message, b.loc, "holds"))

    def finish(self, needed: Container[Value] | None = None) -> None:
        """Append the flags, one int32 per check, as the graph's last output.

        needed: the values that matter; results of others may be anything. Without it all matter.
        """
        matter = [op is None or needed is None or op.result in needed for _, op in self._flags]
        flags = [flag for (flag, _), kept in zip(self._flags, matter) if kept]
        self.checks = [check for check, kept in zip(self.checks, matter) if kept]
        if flags:
            b = self._b
            lines = [b.reshape(b.convert(flag, int32), (1,)) for flag in flags]
            b.output(lines[0] if len(lines) == 1 else b.concatenate(lines, 0), "overflow")
            b.graph.checks = tuple(self.checks)


def _data(op: Op) -> list[Value]:
    """The operands that a result is made of, without those that say which elements."""
    return [v for i, v in enumerate(op.operands) if i != _PICKED_BY.get(op.name)]


def _all_of(value: Value) -> Value:
    """The value that `value` has all elements of, in whatever order and how often."""
    while value.op is not None and value.op.name in ("reshape", "transpose", "broadcast_in_dim"):
        if 0 in value.shape:
            break
        value = value.op.operands[0]
    return value


# -- flags: true where a result left 32 bits -----------------------------------------------------------------------


def _add(b: GraphBuilder, op: Op) -> Value:
    x, y = op.operands
    return b.compare(b.and_(b.xor(x, op.result), b.xor(y, op.result)), "LT", 0)


def _subtract(b: GraphBuilder, op: Op) -> Value:
    x, y = op.operands
    return b.compare(b.and_(b.xor(x, y), b.xor(x, op.result)), "LT", 0)


def _lowest(b: GraphBuilder, op: Op) -> Value:
    return b.compare(op.operands[0], "EQ", -(2**31))


def _beyond(b: GraphBuilder, size: Value) -> Value:
    """Whether a magnitude in float32 may be one of more than 32 bits."""
    return b.compare(size, "GE", _SAFE)


def _multiply(b: GraphBuilder, op: Op) -> Value:
    x, y = (b.abs(b.convert(v, float32)) for v in op.operands)
    return _beyond(b, b.multiply(x, y))


def _reduce(b: GraphBuilder, op: Op) -> Value | None:
    """|sum in float32| and what its rounding may have hidden: sum |x| times the relative error of its additions."""
    x, dims = b.convert(op.operands[0], float32), op.attrs["dimensions"]
    if op.attrs["kind"] == "multiply":
        return _beyond(b, b.abs(b.reduce(x, dims, "multiply")))
    if op.attrs["kind"] != "add":
        return None
    count = prod(op.operands[0].shape[a] for a in dims)
    hidden = b.multiply(b.reduce(b.abs(x), dims), min(count * _STEP, 1.0))
    return _beyond(b, b.add(b.abs(b.reduce(x, dims)), hidden))


def _dot(b: GraphBuilder, op: Op) -> Value:
    """The product of magnitudes, which no partial sum exceeds."""
    x, y = (b.abs(b.convert(v, float32)) for v in op.operands)
    attrs = {**op.attrs, "dtype": float32}
    return _beyond(b, b.append(op.name, (x, y), attrs).result)


def _convert(b: GraphBuilder, op: Op) -> Value | None:
    """What int64 holds and int32 does not. Infinities, NaN and what is beyond int64 PyTorch leaves undefined."""
    x = op.operands[0]
    if not x.dtype.is_float:
        return None
    x = b.convert(x, float32)
    inside = b.and_(b.compare(x, "GE", -_LIMIT), b.compare(x, "LT", _LIMIT))
    return b.and_(b.not_(inside), b.compare(b.abs(x), "LT", 2.0**63))


def _shift_left(b: GraphBuilder, op: Op) -> Value:
    x, by = op.operands
    return b.compare(b.op("shift_right_arithmetic", op.result, by), "NE", x)


def _power(b: GraphBuilder, op: Op) -> Value:
    x, y = (b.convert(v, float32) for v in op.operands)
    return _beyond(b, b.power(b.abs(x), y))


def _scatter(b: GraphBuilder, op: Op) -> Value | None:
    """The sum of all magnitudes, wherever they go."""
    if op.attrs["kind"] != "add":
        return None
    into, _, update = op.operands
    most = b.reduce(b.abs(b.convert(into, float32)), range(len(into.shape)), "maximum")
    added = b.reduce(b.abs(b.convert(update, float32)), range(len(update.shape)))
    return _beyond(b, b.add(most, added))


def _divide(b: GraphBuilder, op: Op) -> Value:
    """Only the lowest number by -1 has a quotient that does not fit."""
    x, y = op.operands
    return b.and_(b.compare(x, "EQ", -(2**31)), b.compare(y, "EQ", -1))


def _summed(b: GraphBuilder, op: Op) -> Value | None:
    """The sum of all ranks' magnitudes, which no partial sum exceeds."""
    if op.attrs["kind"] != "add" or len(op.operands) > 1:
        return None
    return _beyond(b, b.append(op.name, [b.abs(b.convert(op.operands[0], float32))], op.attrs).result)


_FLAGS: dict[str, Callable[[GraphBuilder, Op], Value | None]] = {
    "add": _add,
    "subtract": _subtract,
    "negate": _lowest,
    "abs": _lowest,
    "multiply": _multiply,
    "divide": _divide,
    "reduce": _reduce,
    "dot_general": _dot,
    "all_reduce": _summed,
    "reduce_scatter": _summed,
    "convert": _convert,
    "shift_left": _shift_left,
    "power": _power,
    "scatter": _scatter,
}
_CANNOT_LEAVE = frozenset({"gather", "remainder", "shift_right_logical"})
