# SPDX-License-Identifier: Apache-2.0
"""Sorting by any comparison, and the largest k.

A sort compares every element with every other: how many come before it is its place; equal elements keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.frontends.stablehlo.lowerings.elementwise import total_less
from trnlab.frontends.stablehlo.lowerings.index import take_rows
from trnlab.frontends.stablehlo.lowerings.products import transposed
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm, lowers
from trnlab.numerics.dtypes import int32

_MOST_COMPARED = 2**26  # pairs of elements


@lowers("stablehlo.sort")
def sort(site: OpSite) -> list[TracedValue]:
    """All operands in the order that the comparison gives."""
    rank = len(site.operands[0].shape)
    dim = mlir.int_(site.raw, "dimension", rank - 1) % max(rank, 1)
    if site.operands[0].shape[dim] < 2:
        return site.operands
    order = (*(d for d in range(rank) if d != dim), dim)
    moved = [transposed(site, x, order) for x in site.operands]

    def before(first: Sequence[TracedValue], second: Sequence[TracedValue]) -> TracedValue:
        arguments = [e for pair in zip(first, second) for e in pair]
        return site.region(0, *arguments)[0]

    places = _places(site, moved, before)
    back = tuple(order.index(d) for d in range(rank))
    return [transposed(site, p, back) for p in _permuted(site, moved, places, moved[0].shape[-1])]


def _places(site: OpSite, xs: Sequence[TracedValue], before) -> TracedValue:  # type: ignore[no-untyped-def]
    """How many elements of xs [..., N] come before each: int32 [..., N]."""
    *lead, size = xs[0].shape
    if xs[0].type.size * size > _MOST_COMPARED:
        raise UnsupportedForm(
            f"a sort of {size} elements in {xs[0].type.size // size} rows compares too many pairs",
            "sort fewer elements, or on the host before the step",
        )
    mine = [site.op("reshape", x, shape=(*lead, size, 1)) for x in xs]
    other = [site.op("reshape", x, shape=(*lead, 1, size)) for x in xs]
    shape = (*lead, size, size)
    earlier, later = (site.t.broadcast(e, shape) for e in (before(other, mine), before(mine, other)))
    number = [site.op("iota", shape=shape, dtype=int32, iota_dimension=len(lead) + i) for i in (0, 1)]
    first = site.op("compare", number[1], number[0], comparison_direction="LT")
    tie = site.op("and", site.op("not", site.op("or", earlier, later)), first)
    counted = site.op("convert", site.op("or", earlier, tie), dtype=int32)
    return site.op("reduce", counted, dimensions=(len(shape) - 1,), kind="add")


def _permuted(site: OpSite, xs: Sequence[TracedValue], places: TracedValue, count: int) -> list[TracedValue]:
    """The first `count` of xs [..., N], each element at its place."""
    *lead, size = places.shape
    shape = (*lead, count, size)
    spread = site.t.broadcast(site.op("reshape", places, shape=(*lead, 1, size)), shape)
    wanted = site.op("iota", shape=shape, dtype=int32, iota_dimension=len(lead))
    here = site.op("compare", spread, wanted, comparison_direction="EQ")
    number = site.op("iota", shape=shape, dtype=int32, iota_dimension=len(lead) + 1)
    source = site.op("select", here, number, site.t.number(0, int32, shape))
    ids = site.op("reduce", source, dimensions=(len(shape) - 1,), kind="add")
    return [along(site, x, ids) for x in xs]


def along(site: OpSite, x: TracedValue, ids: TracedValue) -> TracedValue:
    """x [..., N] at ids [..., J] of each row: [..., J]."""
    *lead, size = x.shape
    rows = 1
    for n in lead:
        rows *= n
    flat = site.op("reshape", ids, shape=(rows, ids.shape[-1]))
    if rows > 1:
        begin = site.op("iota", shape=flat.shape, dtype=int32, iota_dimension=0)
        flat = site.op("add", flat, site.op("multiply", begin, site.t.number(size, int32, flat.shape)))
    table = site.op("reshape", x, shape=(rows * size, 1))
    return site.op("reshape", take_rows(site, table, flat), shape=ids.shape)


@lowers("chlo.top_k")
def top_k(site: OpSite) -> list[TracedValue]:
    """The k largest of each row and where they are, the largest first; NaN is larger than all."""
    (x,), k = site.operands, mlir.int_(site.raw, "k")
    if x.shape[-1] == 0 or k == 0:
        return [site.t.number(0, t.dtype, t.shape) for t in site.types]

    def before(first: Sequence[TracedValue], second: Sequence[TracedValue]) -> TracedValue:
        if not x.type.dtype.is_float:
            return site.op("compare", first[0], second[0], comparison_direction="GT")
        return total_less(site, second[0], first[0])

    places = _places(site, [x], before)
    number = site.op("iota", shape=x.shape, dtype=int32, iota_dimension=len(x.shape) - 1)
    return _permuted(site, [x, number], places, k)
