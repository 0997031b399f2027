# SPDX-License-Identifier: Apache-2.0
"""Rotary positions of the first columns of a head, the others left as they are (GPT-NeoX's rotary_pct).

Written out, a part of each row is turned and put beside the rest, in memory. Whole rows x c + rotate(x) s, with c one
and s zero where nothing turns, are computed as those of whole heads are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value
from trnlab.graph.passes.rewrite import is_zero, made_by


class _Columns(NamedTuple):
    """Columns [first, +width) of a value."""

    of: Value
    first: int
    width: int


class _Turned(NamedTuple):
    """Columns that are turned, or turned back, after a product with angles or before one."""

    x: _Columns
    back: bool
    sine: Value
    before: bool


def joined_pads(op: Op, b: GraphBuilder) -> Value | None:
    """The sum of two values padded with zeros to stand beside each other: both in one."""
    pads = [made_by(v, "pad") for v in op.operands]
    last = len(op.result.shape) - 1
    if any(p is None or not is_zero(p.operands[1]) for p in pads):
        return None
    found = [(p.attrs["edge_padding_low"][last], p.operands[0]) for p in pads if p is not None and _is_row(p)]
    parts = sorted(found, key=lambda part: part[0])
    if len(parts) != 2 or parts[0][0] != 0 or parts[1][0] != parts[0][1].shape[last]:
        return None
    whole = sum(value.shape[last] for _, value in parts) == op.result.shape[last]
    return b.concatenate([value for _, value in parts], last) if whole else None


def _is_row(op: Op) -> bool:
    """Whether a pad has more columns, and nothing between them."""
    low, high, between = (op.attrs[name] for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return not any(between) and not any((*low[:-1], *high[:-1])) and min(low[-1], high[-1]) >= 0


def partial_rotation(op: Op, b: GraphBuilder, size: int) -> Value | None:
    """Rows of `size` whose first columns are turned, as whole rows; None for anything else."""
    first, rest = op.operands
    width, after = first.shape[-1], _columns(rest)
    made = first.op
    if width % 2 or made is None or made.name not in ("add", "subtract") or after.first < width:
        return None
    x = _Columns(after.of, after.first - width, width)
    orders = [(made.operands, made.name == "subtract")]
    if made.name == "add":
        orders.append((made.operands[::-1], False))
    for (plain, turning), minus in orders:
        cosine, turned = _factor_of(plain, x), _turned(turning, x)
        if cosine is not None and turned is not None:
            return _whole(b, _Columns(x.of, x.first, size), cosine, turned, minus)
    return None


def _whole(b: GraphBuilder, rows: _Columns, cosine: Value, turned: _Turned, minus: bool) -> Value | None:
    x, width = _cut(b, rows), cosine.shape[-1]
    # What is not turned is x + (-0), which is x, minus zero too.
    c, s = (_extended(b, v, x.shape, n) for v, n in ((cosine, 1.0), (turned.sine, 0.0 if turned.before else -0.0)))
    if c is None or s is None:
        return None
    if turned.before:
        rotated = b.op("trn.rotate_half", b.multiply(x, s), width=width)
    else:
        rotated = b.multiply(b.op("trn.rotate_half", x, width=width), s)
    return b.binary("subtract" if minus is not turned.back else "add", b.multiply(x, c), rotated)


def _columns(x: Value) -> _Columns:
    """What a value is columns of."""
    found = _Columns(x, 0, x.shape[-1])
    while (op := made_by(found.of, "slice")) is not None:
        source, starts, ends = op.operands[0], op.attrs["start_indices"], op.attrs["limit_indices"]
        if any(starts[:-1]) or tuple(ends[:-1]) != source.shape[:-1] or set(op.attrs["strides"]) != {1}:
            break
        found = _Columns(source, found.first + starts[-1], found.width)
    return found


def _cut(b: GraphBuilder, rows: _Columns) -> Value:
    """The columns of a value, before it is transposed if it was."""
    last = len(rows.of.shape) - 1
    moved = made_by(rows.of, "transpose")
    if moved is not None and moved.attrs["permutation"][last] == last:
        part = b.slice_dim(moved.operands[0], last, rows.first, rows.first + rows.width)
        return b.transpose(part, moved.attrs["permutation"])
    return b.slice_dim(rows.of, last, rows.first, rows.first + rows.width)


def _factor_of(value: Value, x: _Columns) -> Value | None:
    """What x is multiplied with."""
    made = made_by(value, "multiply")
    pairs = () if made is None else (made.operands, made.operands[::-1])
    return next((factor for one, factor in pairs if _columns(one) == x), None)


def _turned(value: Value, x: _Columns) -> _Turned | None:
    """x turned, and multiplied before or after."""
    made = made_by(value, "multiply")
    for one, factor in () if made is None else (made.operands, made.operands[::-1]):
        for source, back in _halves(one):
            if source == x:
                return _Turned(x, back, factor, before=False)
    for source, back in _halves(value):
        sine = _factor_of(source.of, x) if source == _Columns(source.of, 0, x.width) else None
        if sine is not None:
            return _Turned(x, back, sine, before=True)
    return None


def _halves(value: Value) -> Iterator[tuple[_Columns, bool]]:
    """What the halves of are exchanged and one of them negated: (-b, a), or (b, -a), which is back."""
    made = made_by(value, "concatenate")
    if made is None or made.attrs["dimension"] != len(value.shape) - 1 or len(made.operands) != 2:
        return
    for back, (negated, kept) in ((False, made.operands), (True, made.operands[::-1])):
        minus = made_by(negated, "negate")
        if minus is None:
            continue
        one, other = _columns(minus.operands[0]), _columns(kept)
        high, low = (other, one) if back else (one, other)
        half = value.shape[-1] // 2
        if high.of is low.of and high.first == low.first + half and high.width == low.width == half:
            yield _Columns(low.of, low.first, 2 * half), back


def _extended(b: GraphBuilder, x: Value, shape: tuple[int, ...], number: float) -> Value | None:
    """Angles that vary along columns, with a number in all others."""

    def longer(source: Value) -> Value:
        others = b.constant(number, x.dtype, (*source.shape[:-1], shape[-1] - x.shape[-1]))
        return b.concatenate([source, others], len(source.shape) - 1)

    return widened(b, x, shape, longer)


def widened(b: GraphBuilder, x: Value, shape: tuple[int, ...], wide: Callable[[Value], Value]) -> Value | None:
    """Angles of some of a row's columns as those of all: `wide` of what they are a broadcast of; None where they are
    more than a broadcast."""
    made = made_by(x, "broadcast_in_dim")
    if made is None or made.operands[0].type.size == x.type.size:
        return None
    (source,), dims = made.operands, tuple(made.attrs["broadcast_dimensions"])
    if dims[-1:] != (len(shape) - 1,) or source.shape[-1] != x.shape[-1]:
        return None
    return b.broadcast_in_dim(wide(source), shape, dims)
