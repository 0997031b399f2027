# SPDX-License-Identifier: Apache-2.0
"""Merge ops that compute the same: same name, same operands (in either order where order does not matter), same
attributes."""

from __future__ import annotations

from trnlab.graph.canonical import attrs_key
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import CALL, OPS

Key = tuple[str, tuple[int, ...], str]


def merge_equal_ops(graph: Graph) -> bool:
    """Later ops give way to the first of their kind."""
    first: dict[Key, Op] = {}
    replaced: dict[Value, Value] = {}
    kept = []
    for op in graph.ops:
        if replaced and any(v in replaced for v in op.operands):
            op.operands = tuple(replaced.get(v, v) for v in op.operands)
        original = op if OPS[op.name].kind == CALL else first.setdefault(_key(op), op)  # it may draw random numbers
        if original is op:
            kept.append(op)
        else:
            replaced.update(zip(op.results, original.results))
    graph.ops = kept
    graph.outputs = [replaced.get(v, v) for v in graph.outputs]
    return bool(replaced)


def _key(op: Op) -> Key:
    operands = [id(v) for v in op.operands]
    return op.name, tuple(sorted(operands) if OPS[op.name].commutative else operands), attrs_key(op)
