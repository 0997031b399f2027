# SPDX-License-Identifier: Apache-2.0
"""Rows and windows that are written by index: scatter, by the numbers of rows that `index` makes of windows.

Letters: V rows of a table, C columns, M updates."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.frontends.stablehlo.lowerings.control import simple_body
from trnlab.frontends.stablehlo.lowerings.index import _cut, _first_of_run, _placed, _Rows, _rows, take_rows
from trnlab.frontends.stablehlo.lowerings.products import transposed
from trnlab.frontends.stablehlo.lowerings.reduce import neutral
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm, lowers
from trnlab.numerics.dtypes import bool_, int32

_MOST_IN_TURN = 256  # updates that are combined one after the other
_MOST_COMPARED = 2**26  # rows times updates that an assignment compares
_COMBINED = ("multiply", "maximum", "minimum", "and", "or")


@lowers("stablehlo.scatter")
def scatter(site: OpSite) -> TracedValue:
    """Rows of updates, combined with rows of the table; windows that do not lie within the table are dropped."""
    if len(site.operands) != 3:
        raise UnsupportedForm("it scatters several tensors at once", "scatter them one by one")
    kind = simple_body(site)
    x, indices, update = site.operands
    if kind == "subtract" and _takes_away(site):  # x - u is x + -u, to the bit
        kind, update = "add", site.op("negate", update)
    numbers = mlir.scatter_numbers(site.raw)
    sizes = _window_sizes(x.shape, update.shape, numbers)
    rows = _rows(
        site,
        x.shape,
        sizes,
        indices,
        numbers["index_vector_dim"],
        numbers["scatter_dims_to_operand_dims"],
        numbers["input_batching_dims"],
        numbers["scatter_indices_batching_dims"],
        clamp=False,
    )
    if x.type.size == 0 or update.type.size == 0:
        return x
    count, width = rows.count(x.shape), prod(x.shape[d] for d in rows.rest)
    moved = transposed(site, x, (*rows.front, *rows.rest))
    table = site.op("reshape", moved, shape=(count, width))
    ids = rows.ids
    if rows.inside is not None:  # a number that is no row's
        ids = site.op("select", rows.inside, ids, site.t.number(count, int32, ids.shape))
    ids = site.op("reshape", ids, shape=(ids.type.size,))
    lines = site.op("reshape", _update_rows(site, update, rows, numbers), shape=(ids.type.size, width))
    changed = _combined(site, kind, table, ids, lines)
    back = site.op("reshape", changed, shape=moved.shape)
    return transposed(site, back, tuple(np.argsort((*rows.front, *rows.rest)).tolist()))


def _takes_away(site: OpSite) -> bool:
    """Whether the body subtracts the update from what is there, not the other way round."""
    block = site.raw.regions[0].blocks[0]
    return bool(next(iter(block.operations)).operands[0] == block.arguments[0])


def _window_sizes(shape: Sequence[int], update: Sequence[int], numbers: dict[str, Any]) -> tuple[int, ...]:
    dropped = (*numbers["inserted_window_dims"], *numbers["input_batching_dims"])
    window = iter([update[a] for a in numbers["update_window_dims"]])
    return tuple(1 if d in dropped else next(window) for d in range(len(shape)))


def _update_rows(site: OpSite, update: TracedValue, rows: _Rows, numbers: dict[str, Any]) -> TracedValue:
    """The update as [batch..., windows in front..., rest...]."""
    places = numbers["update_window_dims"]
    dropped = (*numbers["inserted_window_dims"], *numbers["input_batching_dims"])
    axis_of = dict(zip([d for d in range(len(rows.sizes)) if d not in dropped], places))
    batch = [a for a in range(len(update.shape)) if a not in places]
    front = [axis_of[d] for d in rows.front if d in axis_of]
    rest = [axis_of[d] for d in rows.rest if d in axis_of]
    return transposed(site, update, (*batch, *front, *rest))


def _combined(
    site: OpSite, kind: str | None, table: TracedValue, ids: TracedValue, lines: TracedValue
) -> TracedValue:
    """table [V, C] with lines [M, C] combined into the rows that ids [M] name, in order."""
    first = _first_of_run(ids)
    if first is not None and 0 <= first <= table.shape[0] - ids.shape[0] and kind in ("add", "assign"):
        begins = [site.t.number(n, int32) for n in (first, 0)]
        if kind == "add":
            lines = site.op("add", _cut(site, table, begins, lines.shape), lines)
        return _placed(site, table, lines, (first, 0))
    if kind == "add" and table.type.dtype.is_float:
        return _added(site, table, ids, lines)
    (rows, width), updates = table.shape, ids.shape[0]
    most = rows * updates * (1 if kind == "assign" else width)
    if most > _MOST_COMPARED:
        raise UnsupportedForm(
            f"{updates} rows of {width} by number among {rows} that are not sums", "add (.at[].add), or use jnp.where"
        )
    if kind == "assign":
        return _assigned(site, table, ids, lines)
    if kind == "add" or kind in _COMBINED:
        return _compared(site, kind, table, ids, lines)
    if mlir.flag(site.raw, "unique_indices"):
        hit, taken = _last_update(site, table, ids, lines)
        return site.op("select", hit, site.region(0, table, taken)[0], table)
    if updates > _MOST_IN_TURN:
        raise UnsupportedForm(
            f"its body is neither an assignment nor a sum, product or extreme, for {updates} rows that may "
            "be the same",
            "say unique_indices=True, or combine by .at[].add or .set",
        )
    return _in_turn(site, table, ids, lines)


def _added(site: OpSite, table: TracedValue, ids: TracedValue, lines: TracedValue) -> TracedValue:
    return site.op(
        "scatter",
        table,
        ids,
        lines,
        update_window_dims=(1,),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
        kind="add",
    )


def _hits(site: OpSite, table: TracedValue, ids: TracedValue) -> TracedValue:
    """bool [V, M]: which update goes to which row."""
    shape = (table.shape[0], ids.shape[0])
    line = site.op("broadcast_in_dim", ids, shape=shape, broadcast_dimensions=(1,))
    return site.op(
        "compare", site.op("iota", shape=shape, dtype=int32, iota_dimension=0), line, comparison_direction="EQ"
    )


def _in_turn(site: OpSite, table: TracedValue, ids: TracedValue, lines: TracedValue) -> TracedValue:
    """One update after the other, by any body: all rows are combined with it, and the one that is meant stays."""
    number = site.op("iota", shape=(table.shape[0],), dtype=int32, iota_dimension=0)
    for i in range(ids.shape[0]):
        place = site.op("slice", ids, start_indices=(i,), limit_indices=(i + 1,), strides=(1,))
        hit = site.op("compare", number, site.t.broadcast(place, number.shape), comparison_direction="EQ")
        hit = site.op("broadcast_in_dim", hit, shape=table.shape, broadcast_dimensions=(0,))
        line = _cut(site, lines, [site.t.number(n, int32) for n in (i, 0)], (1, table.shape[1]))
        found = site.region(0, table, site.t.broadcast(line, table.shape))[0]
        table = site.op("select", hit, found, table)
    return table


def _assigned(site: OpSite, table: TracedValue, ids: TracedValue, lines: TracedValue) -> TracedValue:
    """The last of the updates of each row."""
    hit, taken = _last_update(site, table, ids, lines)
    return site.op("select", hit, taken, table)


def _last_update(
    site: OpSite, table: TracedValue, ids: TracedValue, lines: TracedValue
) -> tuple[TracedValue, TracedValue]:
    """Which elements of the table are updated, and the last update of each."""
    hits = _hits(site, table, ids)
    number = site.op("iota", shape=hits.shape, dtype=int32, iota_dimension=1)
    last = site.op(
        "reduce",
        site.op("select", hits, number, site.t.number(-1, int32, hits.shape)),
        dimensions=(1,),
        kind="maximum",
    )
    zero = site.t.number(0, int32, last.shape)
    taken = take_rows(site, lines, site.op("maximum", last, zero))
    hit = site.op("compare", last, zero, comparison_direction="GE")
    return site.op("broadcast_in_dim", hit, shape=table.shape, broadcast_dimensions=(0,)), taken


def _compared(site: OpSite, kind: str, table: TracedValue, ids: TracedValue, lines: TracedValue) -> TracedValue:
    """All updates of each row, combined among the others' places that change nothing. [V, M, C]"""
    held = int32 if table.type.dtype is bool_ else table.type.dtype
    if table.type.dtype is bool_:
        kind = {"and": "minimum", "or": "maximum"}[kind]
    own, lines = (e if e.type.dtype is held else site.op("convert", e, dtype=held) for e in (table, lines))
    hits = _hits(site, table, ids)
    shape = (*hits.shape, table.shape[1])
    hits = site.op("broadcast_in_dim", hits, shape=shape, broadcast_dimensions=(0, 1))
    lines = site.op("broadcast_in_dim", lines, shape=shape, broadcast_dimensions=(1, 2))
    spread = site.op("select", hits, lines, site.t.number(neutral(kind, held), held, shape))
    found = site.op(kind, own, site.op("reduce", spread, dimensions=(1,), kind=kind))
    return found if held is table.type.dtype else site.op("convert", found, dtype=bool_)
