# SPDX-License-Identifier: Apache-2.0
"""The sum of the squares of all that a product makes, in one look at it: norms of gradients, by which they are
clipped.

The product's epilogue takes the sums of rows of each tile on its way out; what is left are as many numbers as rows.
"""

from __future__ import annotations

from math import prod

from trnlab.compiler.rewriting.canonical import reduce_all
from trnlab.compiler.rewriting.softmax import ends_product, unshaped
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, rewrite
from trnlab.numerics.dtypes import float32

LEAST = 1 << 16  # elements: fewer are read again in no time
LEAST_ROW = 128


def join_sums_of_squares(graph: Graph) -> None:
    """Replace sums of the squares of all elements of products; same meaning."""

    def total(op: Op, b: GraphBuilder) -> Value | None:
        x = _squared(op)
        if x is None:
            return None
        rows = b.append("trn.sum_of_squares", (x,), {"dimensions": (len(x.shape) - 1,)}).result
        return b.reshape(reduce_all(b, b.reshape(rows, (prod(rows.shape),)), "add"), op.result.shape)

    if rewrite(graph, {"reduce": total}):
        remove_dead_ops(graph)


def _squared(op: Op) -> Value | None:
    """The result of a product, the sum of whose squares an op is: perhaps of parts one by one, and then of these."""
    if op.attrs["kind"] != "add" or op.result.type.size != 1 or op.result.dtype is not float32:
        return None
    parts = made_by(op.operands[0], "reduce")
    summed = op if parts is None or parts.attrs["kind"] != "add" else parts
    squares = made_by(unshaped(summed.operands[0]), "multiply")
    if squares is None or squares.operands[0] is not squares.operands[1]:
        return None
    x = squares.operands[0]
    fits = x.dtype is float32 and len(x.shape) > 1 and x.shape[-1] >= LEAST_ROW and x.type.size >= LEAST
    return x if fits and ends_product(x) else None
