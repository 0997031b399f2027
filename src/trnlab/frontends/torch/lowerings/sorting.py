# SPDX-License-Identifier: Apache-2.0
"""Sorting, and the largest or smallest k, along a dimension.

A sort compares every element with every other: how many come before it is its place, and equal elements keep their
order. The k best of many are found one after the other. NaN counts as larger than all, as on the CPU. Indices are
known to lie within the dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, dim_of, lowers
from trnlab.graph.formulas import running_sums
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import bool_, int32

MOST_COMPARED = 2**26  # pairs of elements that a sort compares
LONG, FEW = 1024, 8  # elements that are counted instead, where their numbers are known to be so many times fewer
_MOST_ROUNDS = 8  # for so few a search one after the other needs less than a sort


def moved_last(site: LoweringSite, x: Value, dim: int) -> Value:
    """x [..., N] with `dim` last; bools as numbers."""
    x = site.b.convert(x, int32) if x.dtype is bool_ else x
    x = x if x.shape else site.b.reshape(x, (1,))
    dim = dim_of(dim, len(x.shape))
    order = [*(d for d in range(len(x.shape)) if d != dim), dim]
    return x if dim == len(x.shape) - 1 else site.b.transpose(x, order)


def results_of(site: LoweringSite, values: Value, places: Value, dim: int) -> tuple[Value, Value]:
    """Both results with the last dimension back in its place, in the formats that PyTorch gives them."""
    rank = len(values.shape)
    order = list(range(rank - 1))
    order.insert(dim_of(dim, rank), rank - 1)
    if order != sorted(order):
        values, places = site.b.transpose(values, order), site.b.transpose(places, order)
    kinds = [t.dtype for t in site.types if t is not None]
    return site.shaped(site.b.convert(values, kinds[0])), site.shaped(site.b.convert(places, kinds[1]))


def is_nan(site: LoweringSite, x: Value) -> Value | None:
    """Where x is NaN; None for integers."""
    return site.b.compare(x, "NE", x) if x.dtype.is_float else None


def rank_of(site: LoweringSite, x: Value, descending: bool) -> Value:
    """How many elements of x [..., N] come before each. int32 [..., N]"""
    b, shape = site.b, (*x.shape, x.shape[-1])
    mine, other = b.reshape(x, (*x.shape, 1)), b.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    mine, other = b.broadcast_to(mine, shape), b.broadcast_to(other, shape)
    before, same = b.compare(other, "GT" if descending else "LT", mine), b.compare(other, "EQ", mine)
    if x.dtype.is_float:
        nan, other_nan = b.compare(mine, "NE", mine), b.compare(other, "NE", other)
        first, second = (other_nan, nan) if descending else (nan, other_nan)
        before = b.or_(before, b.and_(first, b.not_(second)))
        same = b.or_(same, b.and_(nan, other_nan))
    rank = len(shape)
    earlier = b.compare(b.iota(shape, int32, rank - 1), "LT", b.iota(shape, int32, rank - 2))
    return b.reduce(b.convert(b.or_(before, b.and_(same, earlier)), int32), (-1,))


def _ordered(site: LoweringSite, x: Value, descending: bool, count: int) -> tuple[Value, Value]:
    """The first `count` of the sorted x [..., N], and where they were."""
    b, size = site.b, x.shape[-1]
    least, kinds = _few_numbers(site, x)
    if kinds:
        values, places = _counted(site, b.reshape(x, (size,)), descending, least, kinds)
        if count < size:
            values, places = (b.slice_dim(v, 0, 0, count) for v in (values, places))
        return b.reshape(values, (*x.shape[:-1], count)), b.reshape(places, (*x.shape[:-1], count))
    if x.type.size * size > MOST_COMPARED:
        raise UnsupportedOperatorForm(
            f"a sort of {size} elements in {x.type.size // size} rows compares too many pairs",
            f"ask for at most {_MOST_ROUNDS} of them with topk, or sort on the host before the step",
        )
    ranks, shape = rank_of(site, x, descending), (*x.shape[:-1], count, size)
    ranks = b.broadcast_to(b.reshape(ranks, (*x.shape[:-1], 1, size)), shape)
    here = b.compare(ranks, "EQ", b.iota(shape, int32, len(shape) - 2))
    rows = b.broadcast_to(b.reshape(x, (*x.shape[:-1], 1, size)), shape)
    places = b.reduce(b.select(here, b.iota(shape, int32, len(shape) - 1), 0), (-1,))
    return the_one(site, here, rows), places


def _few_numbers(site: LoweringSite, x: Value) -> tuple[int, int]:
    """The least number that a long row of integers may have, and how many there are from there on, where these are
    few beside its elements; (0, 0) elsewhere."""
    size = x.shape[-1]
    if x.type.size != size or size < LONG or x.dtype.is_float:
        return 0, 0
    known = site.watch.bounds(x)
    kinds = known.high - known.low + 1
    return (known.low, kinds) if kinds <= size // FEW and 2 * size < 2**24 else (0, 0)


def _counted(site: LoweringSite, x: Value, descending: bool, least: int, kinds: int) -> tuple[Value, Value]:
    """Sorted integers x [N], each of `kinds` numbers from `least` on, and where they were: an element comes behind
    all smaller ones and those of its number that were before it."""
    b, (size,), shape = site.b, x.shape, (kinds, x.shape[0])
    number = b.subtract(x, least)
    if descending:
        number = b.subtract(kinds - 1, number)
    here = b.compare(b.iota(shape, int32, 0), "EQ", b.broadcast_in_dim(number, shape, (1,)))
    upto = running_sums(b, b.convert(here, int32))  # those of a number up to each place
    each = b.slice_dim(upto, 1, size - 1, size)
    ends = b.reshape(running_sums(b, b.reshape(each, (1, kinds))), (kinds, 1))  # up to each number
    rank = b.subtract(b.add(upto, b.subtract(ends, each)), 1)
    rank = b.clamp(0, b.reduce(b.select(here, rank, 0), (0,), "maximum"), size - 1)
    place = b.reshape(b.iota((size,), int32), (size, 1))
    places = b.put_rows(b.constant(0, int32, (size, 1)), rank, place)
    behind = b.compare(b.iota((size, kinds), int32, 0), "GE", b.reshape(ends, (1, kinds)))
    found = b.minimum(b.reduce(b.convert(behind, int32), (1,)), kinds - 1)
    if descending:
        found = b.subtract(kinds - 1, found)
    site.watch.note_order(places, rank)
    return b.convert(b.add(found, least), x.dtype), b.reshape(places, (size,))


def the_one(site: LoweringSite, here: Value, x: Value, keepdims: bool = False) -> Value:
    """The one element along the last dimension that `here` marks. (A maximum cannot leave the format.)"""
    return site.b.reduce(site.b.select(here, x, limit_of(x, largest=True)), (-1,), "maximum", keepdims)


def limit_of(x: Value, largest: bool) -> Any:
    """What no element lies beyond: where an element was taken already."""
    if x.dtype.is_float:
        return -np.inf if largest else np.inf
    return int(x.dtype.limits[0 if largest else 1])


def _searched(site: LoweringSite, x: Value, largest: bool, count: int) -> tuple[Value, Value]:
    """The `count` largest or smallest of x [..., N], one after the other, and where they were."""
    b, size, nan = site.b, x.shape[-1], is_nan(site, x)
    column, values, places = b.iota(x.shape, int32, len(x.shape) - 1), [], []
    left = b.compare(column, "GE", 0)
    for _ in range(count):
        open_ = left if nan is None or largest else b.and_(left, b.not_(nan))
        best = b.reduce(b.select(open_, x, limit_of(x, largest)), (-1,), "maximum" if largest else "minimum", True)
        there = b.compare(x, "EQ", best)
        if nan is not None and largest:
            there = b.or_(there, nan)
        place = b.reduce(b.select(b.and_(there, left), column, size), (-1,), "minimum", True)
        if nan is not None and not largest:  # only NaN is left
            rest = b.reduce(b.select(left, column, size), (-1,), "minimum", True)
            place = b.select(b.compare(place, "EQ", size), rest, place)
        taken = b.compare(column, "EQ", b.broadcast_to(place, x.shape))
        values.append(the_one(site, taken, x, keepdims=True))
        places.append(place)
        left = b.and_(left, b.not_(taken))
    return b.concatenate(values, len(x.shape) - 1), b.concatenate(places, len(x.shape) - 1)


@lowers("topk.default")
def topk(site, x, k, dim=-1, largest=True, sorted=True):
    """Sorted whether asked or not."""
    moved = moved_last(site, x, dim)
    if moved.type.size == 0 or k == 0:
        return tuple(site.b.constant(0, t.dtype, t.shape) for t in site.types)
    how = _searched if k <= _MOST_ROUNDS and k < moved.shape[-1] else _ordered
    return results_of(site, *how(site, moved, largest, k), dim)


@lowers("sort.default")
def sort(site, x, dim=-1, descending=False):
    """Equal elements keep their order, whether asked or not."""
    moved = moved_last(site, x, dim)
    if moved.type.size == 0:
        return tuple(site.b.constant(0, t.dtype, t.shape) for t in site.types)
    return results_of(site, *_ordered(site, moved, descending, moved.shape[-1]), dim)


@lowers("sort.stable")
def sort_stable(site, x, stable=True, dim=-1, descending=False):
    return sort(site, x, dim, descending)


@lowers("kthvalue.default")
def kthvalue(site, x, k, dim=-1, keepdim=False):
    """The k-th smallest, counted from one."""
    moved = moved_last(site, x, dim)
    if moved.type.size == 0:
        return tuple(site.b.constant(0, t.dtype, t.shape) for t in site.types)
    values, places = _ordered(site, moved, False, k)
    return tuple(
        site.b.convert(site.shaped(site.b.slice_dim(v, len(v.shape) - 1, k - 1, k)), t.dtype)
        for v, t in zip((values, places), site.types)
    )


@lowers("histc.default")
def histc(site, x, bins=100, min=0, max=0):
    """How many elements lie in each of `bins` equal parts from min to max, or of what there is where those are equal.

    As PyTorch counts: the largest value belongs to the last part, and what lies outside, or is NaN, to none.
    """
    b, count = site.b, x.type.size
    if count == 0:
        return b.constant(0, site.dtype, site.shape)
    if count * bins > MOST_COMPARED:
        raise UnsupportedOperatorForm(
            f"a histogram of {count} elements in {bins} parts", "use fewer parts, or count before the step"
        )
    line = b.reshape(site.wide(x), (count,))
    low, high = _range(site, line, float(min), float(max))
    scaled = b.divide(b.multiply(b.subtract(line, low), float(bins)), b.subtract(high, low))
    inside = b.and_(b.compare(line, "GE", low), b.compare(line, "LE", high))
    part = b.convert(b.floor(b.minimum(b.select(inside, scaled, -1.0), float(bins - 1))), int32)
    hits = b.compare(b.iota((count, bins), int32, 1), "EQ", b.reshape(part, (count, 1)))
    return b.convert(b.reduce(b.convert(hits, int32), (0,)), site.dtype)


def _range(site: LoweringSite, line: Value, low: float, high: float) -> tuple[Value, Value]:
    """The ends of a histogram, float32 each. Those of the elements where low equals high; one around if these do."""
    b = site.b
    if low != high:
        return b.broadcast_to(b.constant(low), line.shape), b.broadcast_to(b.constant(high), line.shape)
    least, most = b.reduce(line, (0,), "minimum", keepdims=True), b.reduce(line, (0,), "maximum", keepdims=True)
    same = b.compare(least, "EQ", most)
    ends = b.select(same, b.subtract(least, 1.0), least), b.select(same, b.add(most, 1.0), most)
    return b.broadcast_to(ends[0], line.shape), b.broadcast_to(ends[1], line.shape)
