# SPDX-License-Identifier: Apache-2.0
"""Rows of a table by distance: the number of a row hangs on s - t alone, as T5's relative positions are looked up.

Of T x S places only T + S distances are looked up. The rest is a look at what is found, repeated: with the rows of
all distances one behind the other, M = T + S of them, element t (M - 1) + s of their repetition is that of distance
s - t.
"""

from __future__ import annotations

import numpy as np

from trnlab.compiler.rewriting.recognize.masks import KnownValues
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import rewrite

LEAST = 1 << 14  # places from which on moving what was found is less than looking all of it up


def recognize_distances(graph: Graph) -> bool:
    """Look rows up by distance where they hang on nothing else; whether there were any."""
    known = KnownValues()
    found = rewrite(graph, {"gather": lambda op, b: _by_distance(op, b, known)})
    if found:
        remove_dead_ops(graph)
    return found


def _by_distance(op: Op, b: GraphBuilder, known: KnownValues) -> Value | None:
    table, ids = op.operands
    if not _is_of_rows(op, table, ids) or ids.type.size < LEAST:
        return None
    (queries, keys), columns = ids.shape, table.shape[1]
    numbers = known.get(ids) if keys >= queries - 1 else None
    if numbers is None or not np.array_equal(numbers[1:, 1:], numbers[:-1, :-1]):
        return None
    ahead, behind = b.slice(ids, (0, 0), (1, keys)), b.slice(ids, (queries - 1, 0), (queries, queries - 1))
    line = b.concatenate([ahead, b.slice(ids, (0, 0), (1, 1)), behind], 1)
    count = queries + keys
    rows = b.transpose(b.take_rows(table, b.reshape(line, (count,))), (1, 0))
    flat = b.reshape(b.broadcast_in_dim(rows, (columns, queries, count), (0, 2)), (columns, queries * count))
    skewed = b.reshape(b.slice_dim(flat, 1, 0, queries * (count - 1)), (columns, queries, count - 1))
    return b.transpose(b.slice_dim(skewed, 2, 0, keys), (1, 2, 0))


def _is_of_rows(op: Op, table: Value, ids: Value) -> bool:
    """Whether a gather takes whole rows of a table [V, C] at [T, S]."""
    wanted = {
        "offset_dims": (2,),
        "collapsed_slice_dims": (0,),
        "start_index_map": (0,),
        "index_vector_dim": 2,
        "slice_sizes": (1, table.shape[-1]),
    }
    plain = len(table.shape) == 2 == len(ids.shape) and not op.attrs["operand_batching_dims"]
    return plain and all(op.attrs[name] == value for name, value in wanted.items())
