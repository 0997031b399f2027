# SPDX-License-Identifier: Apache-2.0
"""Rotary positions whose neighbours turn together (GPT-J, RoFormer, EVA-02, Flux): (a, b) becomes (-b, a).

Written out, the elements in odd places, negated, and those in even places are stacked, on whatever way through views
and transposes each of them comes. Both lead back to one slice of a value, but for the place in its pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value
from trnlab.graph.passes.rewrite import is_zero

Bounds = tuple[tuple[int, int], ...]
WAYS = frozenset({"reshape", "transpose", "negate", "add"})  # between a slice and the stack


class _Pairs(NamedTuple):
    """Pairs of a value: all of a last dimension of two, or so many neighbours along the last."""

    source: Value
    bounds: Bounds  # of all dimensions but the last
    length: int  # pairs of a row
    apart: bool  # whether two are a dimension
    order: tuple[int, ...]  # of all other dimensions, afterwards
    added: bool  # whether zero is added to them


class _Half(NamedTuple):
    """One of each pair: every second element of the last dimension, from `start` on."""

    pairs: _Pairs
    start: int
    negated: bool
    is_column: bool  # [..., 1], to be stacked


def is_stack(op: Op) -> bool:
    """Whether a concatenation puts two values side by side along a last dimension of their own."""
    *lead, last = op.result.shape
    return op.attrs["dimension"] == len(lead) and len(op.operands) == last == 2 and len(lead) > 0


def pair_rotation(op: Op, b: GraphBuilder) -> Value | None:
    """What a stack of two halves of pairs is as one op; None for anything else."""
    first, second = (_half(v) for v in op.operands)
    if first is None or second is None or not (first.is_column and second.is_column):
        return None
    x = _whole(b, first, second)
    if x is None or first.negated is second.negated:
        return None
    found = b.op("trn.rotate_half", x, pairs=True)
    found = found if first.negated else b.negate(found)
    if first.pairs.added:
        found = b.add(found, b.constant(0.0, found.dtype, found.shape))
    return b.reshape(found, op.result.shape)


def is_half(value: Value) -> bool:
    """Whether a value is one of each pair of another, on whatever way."""
    return _half(value) is not None


def of_neighbours(b: GraphBuilder, odd: Value, even: Value) -> Value | None:
    """The value whose elements in odd and in even places these are, in each row."""
    first, second = _half(odd), _half(even)
    if first is None or second is None or first.negated or second.negated or first.pairs.added:
        return None
    return _whole(b, first, second)


def _whole(b: GraphBuilder, odd: _Half, even: _Half) -> Value | None:
    """The value whose rows are pairs side by side; None where these are not of the same pairs."""
    pairs = odd.pairs
    if pairs != even.pairs or odd.start != even.start + 1:
        return None
    end = even.start + 2 * (1 if pairs.apart else pairs.length)
    x = b.slice(pairs.source, *zip(*pairs.bounds, (even.start, end)))
    order = (*pairs.order, len(pairs.order)) if pairs.apart else pairs.order
    x = b.transpose(x, order) if list(order) != sorted(order) else x
    return b.reshape(x, (*x.shape[:-2], x.shape[-2] * 2)) if pairs.apart else x


class _Taken(NamedTuple):
    """One of each pair, as a slice takes it: bounds are of all dimensions but the last."""

    source: Value
    bounds: Bounds
    start: int
    length: int  # pairs of a row
    apart: bool  # whether pairs are a dimension


class _Way(NamedTuple):
    """What became of a slice on its way to the stack."""

    order: tuple[int, ...]  # of its dimensions but that of one element
    is_column: bool
    negated: bool
    added: bool


def _half(value: Value) -> _Half | None:
    """Which half of which pairs a value is."""
    ways: list[Op] = []
    while value.op is not None and value.op.name in WAYS:
        ways.append(value.op)
        value = value.op.operands[0]
    taken = None if value.op is None or value.op.name != "slice" else _taken(value.op)
    way = _followed(ways[::-1], value.shape, taken.apart) if taken is not None else None
    if taken is None or way is None or way.order[-1] != len(way.order) - 1:
        return None
    pairs = _Pairs(taken.source, taken.bounds, taken.length, taken.apart, way.order, way.added)
    return _Half(pairs, taken.start, way.negated, way.is_column)


def _taken(op: Op) -> _Taken | None:
    """What a slice takes one of each pair of; None where it takes something else."""
    (x,), shape = op.operands, op.result.shape
    *bounds, (start, _) = zip(op.attrs["start_indices"], op.attrs["limit_indices"])
    *steps, step = op.attrs["strides"]
    apart = len(shape) > 1 and x.shape[-1] == 2 and shape[-1] == step == 1
    if any(n != 1 for n in steps) or not (apart or step == 2):
        return None
    return _Taken(x, tuple(bounds), start, shape[-2] if apart else shape[-1], apart)


def _followed(ways: Sequence[Op], shape: tuple[int, ...], is_column: bool) -> _Way | None:
    """Where ops lead that change no element but its sign."""
    order = list(range(len(shape) - is_column))
    negated = added = False
    for op in ways:
        if op.name == "reshape":
            squeezed = _squeezed(shape, op.result.shape, is_column)
            if squeezed is None:
                return None
            is_column = squeezed
        elif op.name == "transpose":
            if is_column and op.attrs["permutation"][-1] != len(shape) - 1:
                return None
            order = [order[i] for i in op.attrs["permutation"][: len(order)]]
        elif op.name == "negate" and not added:
            negated = not negated
        elif op.name == "add" and is_zero(op.operands[1]):
            added = True
        else:
            return None
        shape = op.result.shape
    return _Way(tuple(order), is_column, negated, added)


def _squeezed(old: Sequence[int], new: Sequence[int], is_column: bool) -> bool | None:
    """Whether there is a last dimension of one after a reshape that makes or drops nothing else."""
    if tuple(old) == tuple(new):
        return is_column
    if is_column and tuple(old[:-1]) == tuple(new):
        return False
    return True if not is_column and (*old, 1) == tuple(new) else None
