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
    """Pairs of a value: all of a last dimension of two, or neighbours along the last."""

    source: Value
    bounds: Bounds  # of all dimensions
    apart: bool  # whether two are a dimension
    order: tuple[int, ...]  # of all other dimensions, afterwards
    added: bool  # whether zero is added to them


class _Half(NamedTuple):
    """One of each pair."""

    pairs: _Pairs
    place: int
    negated: bool


def pair_rotation(op: Op, b: GraphBuilder, sizes: frozenset[int]) -> Value | None:
    """What a stack of two halves of pairs is as one op; None for anything else. sizes: of rows that may turn."""
    *lead, last = op.result.shape
    stacked = op.attrs["dimension"] == len(lead) and len(op.operands) == last == 2
    if not stacked or not lead or 2 * lead[-1] not in sizes:
        return None
    first, second = (_half(v) for v in op.operands)
    if first is None or second is None or first.pairs != second.pairs or (first.place, second.place) != (1, 0):
        return None
    if first.negated is second.negated or not op.result.dtype.is_float:
        return None
    found = b.op("trn.rotate_half", _rows(b, first.pairs), pairs=True)
    found = found if first.negated else b.negate(found)
    if first.pairs.added:
        found = b.add(found, b.constant(0.0, found.dtype, found.shape))
    return b.reshape(found, op.result.shape)


def _rows(b: GraphBuilder, pairs: _Pairs) -> Value:
    """The value whose rows are pairs side by side."""
    x = b.slice(pairs.source, *zip(*pairs.bounds))
    order = (*pairs.order, len(pairs.order)) if pairs.apart else pairs.order
    x = b.transpose(x, order) if list(order) != sorted(order) else x
    return b.reshape(x, (*x.shape[:-2], x.shape[-2] * 2)) if pairs.apart else x


def _half(value: Value) -> _Half | None:
    """Which half of which pairs a value [..., 1] is."""
    ways: list[Op] = []
    while value.op is not None and value.op.name in WAYS:
        ways.append(value.op)
        value = value.op.operands[0]
    taken = None if value.op is None or value.op.name != "slice" else _taken(value.op)
    if taken is None:
        return None
    (source, bounds, apart, place), shape = taken, value.shape
    order: list[int] | None = list(range(len(shape) - apart))
    is_pair: bool | None = apart
    negated = added = False
    for op in reversed(ways):
        if op.name == "reshape":
            is_pair = _squeezed(shape, op.result.shape, is_pair)
        elif op.name == "transpose":
            order = _moved(order, op.attrs["permutation"], is_pair)
        elif op.name == "negate" and not added:
            negated = not negated
        elif op.name == "add" and is_zero(op.operands[1]):
            added = True
        else:
            return None
        if order is None or is_pair is None:
            return None
        shape = op.result.shape
    if not is_pair or order is None or order[-1] != len(order) - 1:
        return None
    return _Half(_Pairs(source, bounds, apart, tuple(order), added), place, negated)


def _taken(op: Op) -> tuple[Value, Bounds, bool, int] | None:
    """Which pairs a slice takes one of: a value, its bounds, whether pairs are a dimension, and the place taken."""
    (x,), last = op.operands, len(op.result.shape) - 1
    bounds = list(zip(op.attrs["start_indices"], op.attrs["limit_indices"]))
    *steps, step = op.attrs["strides"]
    place, size = bounds[last][0], x.shape[last]
    if any(n != 1 for n in steps) or place > 1:
        return None
    apart = size == 2 and step == 1 and bounds[last] == (place, place + 1)
    if not apart and not (step == 2 and size % 2 == 0 and 2 * op.result.shape[last] == size):
        return None
    return x, (*bounds[:last], (0, size)), apart, place


def _squeezed(old: Sequence[int], new: Sequence[int], is_pair: bool | None) -> bool | None:
    """Whether there is a last dimension of one after a reshape that makes or drops nothing else."""
    if tuple(old) == tuple(new):
        return is_pair
    if is_pair and tuple(old[:-1]) == tuple(new):
        return False
    return True if not is_pair and (*old, 1) == tuple(new) else None


def _moved(order: list[int] | None, permutation: Sequence[int], is_pair: bool | None) -> list[int] | None:
    """The order of dimensions after a transpose which leaves that of one the last."""
    if order is None or (is_pair and permutation[-1] != len(permutation) - 1):
        return None
    return [order[i] for i in (permutation[:-1] if is_pair else permutation)]
