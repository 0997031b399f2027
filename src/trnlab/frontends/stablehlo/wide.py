# SPDX-License-Identifier: Apache-2.0
"""Unsigned integers of 64 bits at run time: pairs of words. Random generators reckon keys and counters in them.

A `WideValue` stands for a value of the module; its halves are entries of uint32, so that halves which are known stay
so (a converted word has a high half of zeros, and products of such cost little). Pairs are never arguments, results
or states of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.frontends.stablehlo.entries import TracedValue, known
from trnlab.frontends.stablehlo.mlir import INT64, UINT64
from trnlab.frontends.stablehlo.registry import UnsupportedForm
from trnlab.graph.ir import Check, TensorType
from trnlab.numerics.dtypes import DType, bool_, int32, uint32

Tracer = Any  # the one of `tracer`, which imports this module
Half = tuple[TracedValue, TracedValue]
_WORD = 32


@dataclass(eq=False)
class WideValue(TracedValue):
    """A value of 64 bits that is not known: its low and its high words."""

    low: Any = None
    high: Any = None


def pair(low: TracedValue, high: TracedValue) -> WideValue:
    """Two words as one value."""
    return WideValue(TensorType(low.shape, UINT64), low=low, high=high)


def halves(entry: TracedValue) -> Half:
    """The low and high words of a value of 64 bits, known or not."""
    if isinstance(entry, WideValue):
        return entry.low, entry.high
    assert entry.known is not None
    kind = TensorType(entry.shape, uint32)
    words = (entry.known & np.uint64(0xFFFFFFFF), entry.known >> np.uint64(_WORD))
    low, high = (known(np.asarray(w).astype(np.uint32), kind) for w in words)
    return low, high


def lowered(
    t: Tracer, name: str, operands: tuple[TracedValue, ...], attrs: Mapping[str, Any], kind: TensorType
) -> TracedValue:
    """An op of which an operand or the result has 64 bits without a sign. Raises Refused for what has no form."""
    if name == "convert":
        return _converted(t, operands[0], kind.dtype)
    if name in _MOVES:
        parts = [halves(e) if e.type.dtype is UINT64 else (e, e) for e in operands]
        low, high = (t.op(name, *(p[i] for p in parts), **attrs) for i in (0, 1))
        return pair(low, high)
    if name == "compare":
        return _compared(t, halves(operands[0]), halves(operands[1]), attrs["comparison_direction"])
    rule = _RULES.get(name)
    if rule is None:
        raise UnsupportedForm(f"{name} of 64-bit integers without a sign", "compute it in 32 bits", "TRN232")
    return pair(*rule(t, *map(halves, operands)))


def split(t: Tracer, x: TracedValue) -> TracedValue:
    """bitcast_convert to words: [...] becomes [..., 2], the low words first."""
    shape = (*x.shape, 1)
    return t.op("concatenate", *(t.op("reshape", e, shape=shape) for e in halves(x)), dimension=len(x.shape))


def joined(t: Tracer, x: TracedValue) -> TracedValue:
    """bitcast_convert from words: [..., 2] becomes [...]."""
    low, high = (_taken(t, x, i) for i in (0, 1))
    return pair(low, high)


def _taken(t: Tracer, x: TracedValue, place: int) -> TracedValue:
    outer, zeros = x.shape[:-1], (0,) * (len(x.shape) - 1)
    bounds = {"start_indices": (*zeros, place), "limit_indices": (*outer, place + 1)}
    return t.op("reshape", t.op("slice", x, strides=(1,) * len(x.shape), **bounds), shape=outer)


_MOVES = frozenset({"reshape", "slice", "broadcast_in_dim", "transpose", "concatenate", "pad", "select"})


def _zero(t: Tracer, like: TracedValue) -> TracedValue:
    return t.number(0, uint32, like.shape)


def _is_zero(entry: TracedValue) -> bool:
    return entry.known is not None and not entry.known.any()


def _converted(t: Tracer, x: TracedValue, target: DType) -> TracedValue:
    if target is INT64:
        return _signed(t, *halves(x))
    if target is not UINT64:
        low, high = halves(x)
        if target.is_float and not _is_zero(high):
            raise UnsupportedForm("64-bit integers as floats", "convert the words one by one", "TRN232")
        if target is bool_:
            return t.op("convert", t.op("or", low, high), dtype=target)
        return t.op("convert", low, dtype=target)
    if x.type.dtype.is_float:
        raise UnsupportedForm("floats as 64-bit integers", "convert to 32 bits", "TRN232")
    low = x if x.type.dtype is uint32 else t.op("convert", x, dtype=uint32)
    if x.type.dtype.kind != "i":
        return pair(low, _zero(t, low))
    sign = t.op("shift_right_arithmetic", t.op("convert", x, dtype=int32), t.number(31, int32, x.shape))
    return pair(low, t.op("convert", sign, dtype=uint32))


def _signed(t: Tracer, low: TracedValue, high: TracedValue) -> TracedValue:
    """The same bits with a sign: 64-bit integers with one lie in 32 bits, so the program sees to it that they fit."""
    word, above = (t.use(t.op("bitcast_convert", e, dtype=int32)) for e in (low, high))
    b = t.segment.b
    lost = b.compare(above, "NE", b.shift_right_arithmetic(word, 31))
    t.segment.watch.demand(lost, Check(t.place[1], t.place[0]), word.op)
    return t.entry(word, TensorType(low.shape, INT64))


def _compared(t: Tracer, x: Half, y: Half, direction: str) -> TracedValue:
    if direction in ("EQ", "NE"):
        parts = [t.op("compare", a, b, comparison_direction=direction) for a, b in zip(x, y)]
        return t.op("and" if direction == "EQ" else "or", *parts)
    low = t.op("compare", x[0], y[0], comparison_direction=direction)
    high = t.op("compare", x[1], y[1], comparison_direction=direction[0] + "T")
    same = t.op("compare", x[1], y[1], comparison_direction="EQ")
    return t.op("or", high, t.op("and", same, low))


def _sum(t: Tracer, x: Half, y: Half) -> Half:
    low = _added(t, x[0], y[0])
    high = _added(t, x[1], y[1])
    if _is_zero(x[0]) or _is_zero(y[0]):
        return low, high
    carried = t.op("compare", low, x[0], comparison_direction="LT")
    return low, _added(t, high, t.op("convert", carried, dtype=uint32))


def _difference(t: Tracer, x: Half, y: Half) -> Half:
    borrowed = t.op("convert", t.op("compare", x[0], y[0], comparison_direction="LT"), dtype=uint32)
    return t.op("subtract", x[0], y[0]), t.op("subtract", t.op("subtract", x[1], y[1]), borrowed)


def _added(t: Tracer, x: TracedValue, y: TracedValue) -> TracedValue:
    return y if _is_zero(x) else x if _is_zero(y) else t.op("add", x, y)


def _times(t: Tracer, x: TracedValue, y: TracedValue) -> TracedValue:
    return x if _is_zero(x) else y if _is_zero(y) else t.op("multiply", x, y)


def _product(t: Tracer, x: Half, y: Half) -> Half:
    crossed = _added(t, _times(t, x[0], y[1]), _times(t, x[1], y[0]))
    return _times(t, x[0], y[0]), _added(t, _high_product(t, x[0], y[0]), crossed)


def _high_product(t: Tracer, x: TracedValue, y: TracedValue) -> TracedValue:
    """The high word of a product of two words, from products of their halves."""
    if _is_zero(x) or _is_zero(y):
        return _zero(t, x)
    mask, width = (t.number(n, uint32, x.shape) for n in (0xFFFF, 16))
    (xl, xh), (yl, yh) = ((t.op("and", e, mask), t.op("shift_right_logical", e, width)) for e in (x, y))
    low, left, right = _times(t, xl, yl), _times(t, xh, yl), _times(t, xl, yh)
    middle = _added(t, t.op("and", left, mask), t.op("and", right, mask))
    middle = _added(t, middle, t.op("shift_right_logical", low, width))
    high = _added(t, _times(t, xh, yh), t.op("shift_right_logical", middle, width))
    return _added(t, high, _added(t, *(t.op("shift_right_logical", e, width) for e in (left, right))))


def _shifted(left: bool) -> Callable[..., Half]:
    """By a known distance, the same for all elements."""

    def rule(t: Tracer, x: Half, by: Half) -> Half:
        distances = set() if by[0].known is None else set(by[0].known.reshape(-1).tolist())
        if len(distances) != 1:
            raise UnsupportedForm(
                "a shift of 64-bit integers by a distance that is computed", "shift by a number", "TRN232"
            )
        distance, away = int(distances.pop()), "shift_left" if left else "shift_right_logical"
        back = "shift_right_logical" if left else "shift_left"
        near, far = x if left else x[::-1]  # bits leave `near` for `far`
        if distance == 0:
            return x
        if distance >= _WORD:
            moved = near if distance == _WORD else t.op(away, near, t.number(distance - _WORD, uint32, near.shape))
            near, far = _zero(t, near), _zero(t, near) if distance >= 2 * _WORD else moved
        else:
            over = t.op(back, near, t.number(_WORD - distance, uint32, near.shape))
            by_distance = t.number(distance, uint32, near.shape)
            near, far = t.op(away, near, by_distance), t.op("or", t.op(away, far, by_distance), over)
        return (near, far) if left else (far, near)

    return rule


def _by_halves(name: str) -> Callable[..., Half]:
    def rule(t: Tracer, *operands: Half) -> Half:
        return t.op(name, *(o[0] for o in operands)), t.op(name, *(o[1] for o in operands))

    return rule


_RULES: dict[str, Callable[..., Half]] = {
    "add": _sum,
    "subtract": _difference,
    "multiply": _product,
    "shift_left": _shifted(True),
    "shift_right_logical": _shifted(False),
    **{name: _by_halves(name) for name in ("and", "or", "xor", "not")},
}
