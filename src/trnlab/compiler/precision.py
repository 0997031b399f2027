# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: what the PE array reads is cast to bfloat16; sums, statistics, state and everything else stay fp32.

The same rule as the vendor compiler's `--auto-cast matmult --auto-cast-type bf16`.
"""

from __future__ import annotations

from trnlab.compiler.rewrite import Rule, rewrite
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.numerics.dtypes import bfloat16, float32


def cast_matmuls(graph: Graph) -> Graph:
    """Insert casts before every op that the PE array computes. Results keep their formats."""
    cast: dict[Value, Value] = {}

    def low(b: GraphBuilder, value: Value) -> Value:
        if value.dtype is not float32:
            return value
        if value not in cast:
            cast[value] = b.convert(value, bfloat16)
        return cast[value]

    def dot(b: GraphBuilder, op: Op, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        return b.append(op.name, tuple(low(b, v) for v in operands), op.attrs).results

    def scatter(b: GraphBuilder, op: Op, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        into, ids, update = operands
        if update.dtype is not float32:
            return b.append(op.name, operands, op.attrs).results
        summed = b.append(op.name, (b.convert(into, bfloat16), ids, low(b, update)), op.attrs)
        return (b.convert(summed.results[0], into.dtype),)

    def attention(b: GraphBuilder, op: Op, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        wide = ("lse", "bias")
        names = ("q", "k", "v", "bias") if op.name == "trn.attention" else ("dout", "q", "k", "v", "out", "lse", "bias")
        given = tuple(v if name in wide else low(b, v) for name, v in zip(names, operands))
        results = b.append(op.name, given, op.attrs).results
        return tuple(
            r if r.dtype is old.dtype else b.convert(r, old.dtype) for r, old in zip(results, op.results)
        )

    rules: dict[str, Rule] = {
        "dot_general": dot,
        "scatter": scatter,
        "trn.attention": attention,
        "trn.attention_backward": attention,
    }
    return rewrite(graph, rules)
