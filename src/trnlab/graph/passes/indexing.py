# SPDX-License-Identifier: Apache-2.0
"""Replace table look-ups at consecutive rows by slices, and their gradients by pads: positions 0, 1, 2, ... are
such."""

from __future__ import annotations

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.rewrite import made_by, rewrite, splat
from trnlab.graph.passes.shapes import holds_exactly


def replace_indexing(graph: Graph) -> bool:
    """One walk over gather and scatter of whole rows."""
    return rewrite(graph, {"gather": _gather, "scatter": _scatter})


def _gather(op: Op, b: GraphBuilder) -> Value | None:
    table, ids = op.operands
    first = _first_of_consecutive(ids)
    rows = ids.type.size
    whole_rows = op.attrs["slice_sizes"] == (1, *table.shape[1:])
    if first is None or not whole_rows or not _by_row(op, "start_index_map", "collapsed_slice_dims", "offset_dims"):
        return None
    if first + rows > table.shape[0]:
        return None
    return b.reshape(b.slice_dim(table, 0, first, first + rows), op.result.shape)


def _scatter(op: Op, b: GraphBuilder) -> Value | None:
    """Into zeros or not: the pad is added to what was there, unless that is zero."""
    into, ids, update = op.operands
    first = _first_of_consecutive(ids)
    names = ("scatter_dims_to_operand_dims", "inserted_window_dims", "update_window_dims")
    if first is None or op.attrs["kind"] != "add" or not _by_row(op, *names):
        return None
    rows, after = ids.type.size, into.shape[0] - first - ids.type.size
    if after < 0 or update.type.size != rows * into.type.size // max(into.shape[0], 1):
        return None
    flat = b.reshape(update, (rows, *into.shape[1:]))
    rest = (0,) * (len(into.shape) - 1)
    placed = b.pad(flat, (first, *rest), (after, *rest)) if first or after else flat
    return placed if splat(into) == 0 else b.add(into, placed)


def _by_row(op: Op, index_map: str, dropped: str, window: str) -> bool:
    """Whether each index picks one row: scalars as indices, the row dimension dropped, the other dimensions last."""
    ids, attrs = op.operands[1], op.attrs
    rank = len(ids.shape)
    last = tuple(range(rank, rank + len(op.operands[0].shape) - 1))
    found = attrs[index_map], attrs[dropped], attrs[window], attrs["index_vector_dim"]
    return found == ((0,), (0,), last, rank)


def _first_of_consecutive(ids: Value) -> int | None:
    """s where ids in row-major order are s, s+1, s+2, ...: an iota, reshaped or moved by a constant."""
    offset = 0
    while ids.op is not None:
        op = ids.op
        moved = made_by(ids, "add")
        number = splat(moved.operands[1]) if moved else None
        if number is not None and number >= 0:
            offset += number
        elif op.name not in ("reshape", "convert") or not holds_exactly(op.operands[0].dtype, ids.dtype):
            break
        ids = op.operands[0]
    count = made_by(ids, "iota")
    if count is None or ids.type.size != ids.shape[count.attrs["iota_dimension"]] or ids.dtype.itemsize < 4:
        return None
    return offset
