# SPDX-License-Identifier: Apache-2.0
"""Merge ops that compute the same: same name, same operands (in either order where order does not matter), same
attributes. What is to be computed twice, so as not to be kept meanwhile, reads through an `optimization_barrier`, of
which each is one by itself: two parts that are computed again at different times have one each."""

from __future__ import annotations

from trnlab.graph.canonical import attrs_key
from trnlab.graph.collectives import exchanges_own_parts
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import CALL, COLLECTIVE, OPS

Key = tuple[str, tuple[int, ...], str]
_ASKED = "asked"  # a product is the model's own, once of so many, or not at all: of equal ones the most counts


def merge_equal_ops(graph: Graph) -> bool:
    """Later ops give way to the first of their kind."""
    first: dict[Key, Op] = {}
    replaced: dict[Value, Value] = {}
    kept = []
    alone = (CALL, COLLECTIVE) if exchanges_own_parts(graph) else (CALL,)  # calls may draw random numbers
    for op in graph.ops:
        if replaced and any(v in replaced for v in op.operands):
            op.operands = tuple(replaced.get(v, v) for v in op.operands)
        own = OPS[op.name].kind in alone or op.name == "optimization_barrier"
        original = op if own else first.setdefault(_key(op), op)
        if original is op:
            kept.append(op)
        else:
            replaced.update(zip(op.results, original.results))
            if op.attrs.get(_ASKED) != original.attrs.get(_ASKED):
                both = (original.attrs[_ASKED], op.attrs[_ASKED])
                original.attrs = {**original.attrs, _ASKED: min(filter(None, both))}
    graph.ops = kept
    graph.outputs = [replaced.get(v, v) for v in graph.outputs]
    return bool(replaced)


def remove_barriers(graph: Graph) -> None:
    """Take out the barriers; after this nothing may be merged."""
    replaced: dict[Value, Value] = {}
    for op in graph.ops:
        op.operands = tuple(replaced.get(v, v) for v in op.operands)
        if op.name == "optimization_barrier":
            replaced[op.result] = op.operands[0]
    graph.ops = [op for op in graph.ops if op.name != "optimization_barrier"]
    graph.outputs = [replaced.get(v, v) for v in graph.outputs]


def _key(op: Op) -> Key:
    operands = [id(v) for v in op.operands]
    return op.name, tuple(sorted(operands) if OPS[op.name].commutative else operands), attrs_key(op, _ASKED)
