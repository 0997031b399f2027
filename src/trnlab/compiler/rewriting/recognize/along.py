# SPDX-License-Identifier: Apache-2.0
"""One element of each row, picked by a number: JAX's `take_along_axis` counts through the whole table for it, and its
gradient adds into a table of as many rows as there are elements.

Index r * C + c, for row r of C columns, is column c of row r. Picking it is a look at all rows, its gradient a
choice of the column; no index is left.
"""

from __future__ import annotations

import math

import numpy as np

from trnlab.compiler.rewriting.recognize.masks import KnownValues
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, rewrite, splat
from trnlab.numerics.dtypes import int32


def recognize_picks(graph: Graph) -> bool:
    """Replace gathers and scatters of one element of each row; whether there were any."""
    known = KnownValues()
    rules = {"gather": lambda op, b: _gather(op, b, known), "scatter": lambda op, b: _scatter(op, b, known)}
    found = rewrite(graph, rules)
    if found:
        remove_dead_ops(graph)
    return found


def _gather(op: Op, b: GraphBuilder, known: KnownValues) -> Value | None:
    table, ids = op.operands
    if not _single(op, table) or op.attrs["operand_batching_dims"] or op.attrs["index_vector_dim"] != len(ids.shape):
        return None
    found = _columns(ids, table.shape[0], known)
    if found is None:
        return None
    columns, size = found
    rows = b.reshape(table, (table.shape[0] // size, size))
    return b.reshape(b.take_along(rows, b.reshape(columns, (rows.shape[0],))), op.result.shape)


def _scatter(op: Op, b: GraphBuilder, known: KnownValues) -> Value | None:
    """Into zeros; an index beyond the table, which a select gives some rows, changes nothing."""
    into, ids, update = op.operands
    plain = op.attrs["kind"] == "add" and not op.attrs["input_batching_dims"] and splat(into) == 0
    if not plain or not _single(op, into) or op.attrs["index_vector_dim"] != len(ids.shape):
        return None
    inside, flat = None, ids
    while (moved := made_by(flat, "reshape")) is not None:
        flat = moved.operands[0]
    chosen = made_by(flat, "select")
    if chosen is not None and (splat(chosen.operands[2]) or 0) >= into.shape[0]:
        inside, flat = chosen.operands[:2]
    found = _columns(flat, into.shape[0], known)
    if found is None:
        return None
    columns, size = found
    if inside is not None:
        columns = b.select(inside, columns, b.constant(-1, columns.dtype, columns.shape))
    shape = into.shape[0] // size, size
    here = b.compare(b.iota(shape, int32, 1), "EQ", b.broadcast_in_dim(b.reshape(columns, shape[:1]), shape, (0,)))
    lines = b.broadcast_in_dim(b.reshape(update, shape[:1]), shape, (0,))
    return b.reshape(b.select(here, lines, b.constant(0, update.dtype, shape)), op.result.shape)


def _single(op: Op, table: Value) -> bool:
    """Whether each index is one element of a table of elements."""
    return len(table.shape) >= 1 and table.type.size == table.shape[0] > 1 and all(n == 1 for n in _sizes(op))


def _sizes(op: Op) -> tuple[int, ...]:
    if op.name == "gather":
        return tuple(op.attrs["slice_sizes"]) if op.attrs["start_index_map"] == (0,) else (0,)
    first = op.attrs["scatter_dims_to_operand_dims"] == (0,)
    return (1,) if first and op.operands[2].type.size == op.operands[1].type.size else (0,)


def _columns(ids: Value, elements: int, known: KnownValues) -> tuple[Value, int] | None:
    """(c, C) where the indices are r * C + c, for all rows r in order, and c is a column."""
    while (moved := made_by(ids, "reshape")) is not None:
        ids = moved.operands[0]
    total, count = made_by(ids, "add"), ids.type.size
    if total is None or ids.dtype is not int32 or count == 0 or elements % count:
        return None
    size = elements // count
    for begins, columns in (total.operands, total.operands[::-1]):
        clamp = made_by(columns, "clamp")
        bounds = _bounds(clamp) if clamp is not None else None
        if bounds is None or not 0 <= bounds[0] <= bounds[1] < size:
            continue
        array = known.get(begins)
        if array is not None and np.array_equal(array.reshape(-1), np.arange(count) * size):
            return columns, size
    return None


def _bounds(clamp: Op) -> tuple[float, float] | None:
    low, high = splat(clamp.operands[0]), splat(clamp.operands[2])
    return None if low is None or high is None or math.isnan(low) or math.isnan(high) else (low, high)
