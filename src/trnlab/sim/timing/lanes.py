# SPDX-License-Identifier: Apache-2.0
"""What a transfer over all sixteen DMA engines ("lanes") does to them, as LLVM instructions on vectors of sixteen.

Addresses are those of rows of sixteen int64; times are picoseconds, see `order`. What each does to one lane is what
the loops of `order._append` and `order._backfill` do, which serve transfers on fewer lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from trnlab.loops import intrinsic

LANES = 16
_I64, _I16 = ir.IntType(64), ir.IntType(16)
_VECTOR = ir.VectorType(_I64, LANES)


class _Lanes:
    """Builds instructions on vectors."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def load(self, address: Any, row: int = 0) -> Any:
        """The row that is so many rows behind an address."""
        return self.b.load(self._place(address, row), align=8)

    def store(self, value: Any, address: Any, row: int = 0) -> None:
        """Overwrite a row."""
        self.b.store(value, self._place(address, row), align=8)

    def _place(self, address: Any, row: int) -> Any:
        return self.b.inttoptr(self.b.add(address, _I64(row * LANES * 8)), _VECTOR.as_pointer())

    def all(self, value: Any) -> Any:
        """The same number on all lanes."""
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        first = self.b.insert_element(nothing, value, ir.IntType(32)(0))
        return self.b.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

    def staggered(self, made: Any, stagger: Any) -> Any:
        """When the descriptors of a transfer reach each lane."""
        numbers = ir.Constant(_VECTOR, list(range(LANES)))
        return self.b.add(self.all(made), self.b.mul(numbers, self.all(stagger)))

    def later(self, x: Any, y: Any) -> Any:
        """The maximum of each lane."""
        return self.b.select(self.b.icmp_signed(">", x, y), x, y)

    def over(self, kind: str, x: Any) -> Any:
        """ "smax" or "smin" of all lanes."""
        from numba.core import cgutils

        of = ir.FunctionType(_I64, [_VECTOR])
        return self.b.call(
            cgutils.get_or_insert_function(self.b.module, of, f"llvm.vector.reduce.{kind}.v16i64"), [x]
        )

    def bits(self, mask: Any) -> Any:
        """A bit for each lane."""
        return self.b.zext(self.b.bitcast(mask, _I16), _I64)

    def first(self, mask: Any) -> Any:
        """Number of the first lane of a mask that is not empty."""
        return self.b.cttz(self.bits(mask), ir.IntType(1)(1))


def _on_lanes(results: int, arguments: int) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: an intrinsic of so many numbers, which returns a tuple of `results`, or nothing."""

    def made(build: Callable[..., Any]) -> Any:
        def typed() -> Any:
            from numba import types

            return (types.UniTuple(types.int64, results) if results else types.void)(*[types.int64] * arguments)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = build(_Lanes(builder), *args)
            if not results:
                return context.get_dummy_value()
            return context.make_tuple(builder, signature.return_type, found)

        return intrinsic(_WITH[arguments](typed, codegen))

    return made


# Numba asks how many arguments an intrinsic has.
_WITH: dict[int, Any] = {
    1: lambda typed, codegen: lambda context, a: (typed(), codegen),
    4: lambda typed, codegen: lambda context, a, b, c, d: (typed(), codegen),
    7: lambda typed, codegen: lambda context, a, b, c, d, e, f, g: (typed(), codegen),
    8: lambda typed, codegen: lambda context, a, b, c, d, e, f, g, h: (typed(), codegen),
    12: lambda typed, codegen: lambda context, a, b, c, d, e, f, g, h, i, j, k, l: (typed(), codegen),
}


@_on_lanes(4, 4)
def begins(on: _Lanes, lane: Any, made: Any, stagger: Any, turn: Any) -> Any:
    """When a transfer begins behind all others: on the first lane, on the last, which that is, and whether some lane
    idles before."""
    free = on.b.add(on.load(lane), on.all(turn))
    begin = on.later(on.staggered(made, stagger), free)
    last = on.over("smax", begin)
    idle = on.bits(on.b.icmp_signed(">", begin, free))
    return on.over("smin", begin), last, on.first(on.b.icmp_signed("==", begin, on.all(last))), idle


@_on_lanes(1, 4)
def remember(on: _Lanes, lane: Any, gap: Any, made: Any, stagger: Any) -> Any:
    """Note the gaps that such a transfer leaves; returns how long the longest is."""
    free = on.load(lane)
    at = on.later(on.staggered(made, stagger), free)
    on.store(free, gap, 0)
    on.store(at, gap, 1)
    on.store(on.load(lane, 1), gap, 2)
    return (on.over("smax", on.b.sub(at, free)),)


@_on_lanes(0, 8)
def occupy(
    on: _Lanes, lane: Any, ring: Any, made: Any, stagger: Any, share: Any, turn: Any, index: Any, way: Any
) -> None:
    """Let such a transfer have the lanes."""
    begin = on.later(on.staggered(made, stagger), on.b.add(on.load(lane), on.all(turn)))
    until = on.b.add(begin, on.all(share))
    for value, place in ((until, ring), (until, lane)):
        on.store(value, place)
    on.store(on.all(index), lane, 1)
    on.store(on.all(way), lane, 2)


@_on_lanes(1, 7)
def fill(on: _Lanes, gap: Any, ring: Any, found: Any, made: Any, stagger: Any, share: Any, index: Any) -> Any:
    """Use the gaps of a set on lanes that have none yet. found: rows of when each lane begins, negative where it does
    not yet, and of who ends where its gap begins. Returns which lanes have found one, as bits."""
    b = on.b
    earliest = on.later(on.staggered(made, stagger), on.load(ring))
    since, until, whose, at = on.load(gap), on.load(gap, 1), on.load(gap, 2), on.load(found)
    begin = on.later(earliest, since)
    end = b.add(begin, on.all(share))
    fits = b.and_(b.icmp_signed("<", at, on.all(_I64(0))), b.icmp_signed("<=", end, until))
    before = b.and_(fits, b.icmp_signed(">", b.sub(begin, since), b.sub(until, end)))  # the longer rest is kept
    behind = b.xor(fits, before)
    on.store(b.select(behind, end, since), gap)
    on.store(b.select(before, begin, until), gap, 1)
    on.store(b.select(behind, on.all(index), whose), gap, 2)
    on.store(b.select(fits, begin, at), found)
    on.store(b.select(fits, whose, on.load(found, 1)), found, 1)
    return (on.bits(fits),)


@_on_lanes(1, 12)
def follow(
    on: _Lanes,
    lane: Any,
    ring: Any,
    found: Any,
    gap: Any,
    made: Any,
    stagger: Any,
    share: Any,
    turn: Any,
    way: Any,
    both: Any,
    index: Any,
    never: Any,
) -> Any:
    """Begin behind all others on lanes that have found no gap. gap: a set for what is left idle before, which is
    overwritten if there is any; returns the lanes with such, as bits. both: a load and a store."""
    b = on.b
    earliest = on.later(on.staggered(made, stagger), on.load(ring))
    free, last, went, at = on.load(lane), on.load(lane, 1), on.load(lane, 2), on.load(found)
    alone = b.icmp_signed("<", at, on.all(_I64(0)))
    turns = b.icmp_signed("==", b.add(went, on.all(way)), on.all(both))
    ready = b.add(free, b.select(turns, on.all(turn), on.all(_I64(0))))
    begin = on.later(earliest, ready)
    idle = b.and_(alone, b.icmp_signed(">", begin, ready))
    opened = on.bits(idle)
    with b.if_then(b.icmp_signed("!=", opened, _I64(0))):
        on.store(b.select(idle, free, on.all(never)), gap)
        on.store(b.select(idle, begin, on.all(never)), gap, 1)
        on.store(b.select(idle, last, on.load(gap, 2)), gap, 2)
    on.store(b.select(alone, b.add(begin, on.all(share)), free), lane)
    on.store(b.select(alone, on.all(index), last), lane, 1)
    on.store(b.select(alone, on.all(way), went), lane, 2)
    on.store(b.select(alone, begin, at), found)
    on.store(b.select(alone, last, on.load(found, 1)), found, 1)
    return (opened,)


@_on_lanes(3, 7)
def settle(on: _Lanes, ring: Any, found: Any, made: Any, stagger: Any, share: Any, by: Any, before: Any) -> Any:
    """Let the queue have what was found: when the first lane begins, when the last one ends, what held that back."""
    b = on.b
    own, queue, at = on.staggered(made, stagger), on.load(ring), on.load(found)
    waits = b.icmp_signed(">", queue, own)
    earliest = b.select(waits, queue, own)
    cause = b.select(waits, on.all(before), on.all(by))
    cause = b.select(b.icmp_signed(">", at, earliest), on.load(found, 1), cause)
    until = b.add(at, on.all(share))
    on.store(until, ring)
    last = on.over("smax", until)
    final = on.first(b.icmp_signed("==", until, on.all(last)))
    return on.over("smin", at), last, b.extract_element(cause, b.trunc(final, ir.IntType(32)))


@_on_lanes(2, 1)
def measure(on: _Lanes, gap: Any) -> Any:
    """The latest end and the longest of a set of gaps."""
    until = on.load(gap, 1)
    return on.over("smax", until), on.over("smax", on.b.sub(until, on.load(gap)))
