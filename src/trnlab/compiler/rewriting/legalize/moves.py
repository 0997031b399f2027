# SPDX-License-Identifier: Apache-2.0
"""Pads that crop, or whose filler is computed, and indices of narrow formats."""

from __future__ import annotations

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value
from trnlab.graph.passes.rewrite import splat
from trnlab.numerics.dtypes import int32


def gather(op: Op, b: GraphBuilder, known: Ranges) -> Value | None:
    """Indices as int32."""
    table, ids = op.operands
    if ids.dtype.itemsize >= int32.itemsize:
        return None
    return b.append("gather", (table, b.convert(ids, int32)), op.attrs).results[0]


def pad(op: Op, b: GraphBuilder) -> Value | None:
    """Padding by less than nothing crops what was padded; a filler that is computed is put where no element is."""
    (x, filler), attrs = op.operands, op.attrs
    low, high, inside = (attrs[k] for k in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    if min((*low, *high), default=0) < 0:
        whole = b.pad(x, [max(n, 0) for n in low], [max(n, 0) for n in high], inside, filler)
        whole = pad(whole.op, b) or whole if whole.op is not None else whole
        start = [max(-n, 0) for n in low]
        limit = [n - max(-m, 0) for n, m in zip(whole.shape, high)]
        return b.slice(whole, start, limit)
    if splat(filler) is not None:
        return None
    given = b.pad(b.constant(True, shape=x.shape), low, high, inside, False)
    return b.select(given, b.pad(x, low, high, inside, 0), b.broadcast_to(filler, op.result.shape))
