# SPDX-License-Identifier: Apache-2.0
"""The walk that rewriting passes share: one look at each op, in order, with everything before it already
rewritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value

Rule = Callable[[Op, GraphBuilder], "Value | tuple[Value, ...] | None"]
"""Given an op and a builder that appends before it: what to use instead of its result or of all its results, or None
to keep the op."""


def rewrite(graph: Graph, rules: Mapping[str, Rule]) -> bool:
    """Apply to each op the rule of its name, once. New ops take the location and origin of the one they replace.

    A replaced op leaves the list; what only it has read is left to `remove_dead_ops`.
    """
    b = GraphBuilder(graph.name)
    old_ops, new_ops = graph.ops, b.graph.ops
    replaced: dict[Value, Value] = {}
    for op in old_ops:
        if replaced and not replaced.keys().isdisjoint(op.operands):
            op.operands = tuple(replaced.get(v, v) for v in op.operands)
        rule = rules.get(op.name)
        b.loc, b.origin = op.loc, op.origin
        instead = rule(op, b) if rule is not None else None
        if instead is None:
            new_ops.append(op)
            continue
        for old, value in zip(op.results, (instead,) if isinstance(instead, Value) else instead, strict=True):
            replaced[old] = value
            value.name = value.name or old.name
    graph.ops = new_ops
    graph.outputs = [replaced.get(v, v) for v in graph.outputs]
    return bool(replaced)


def splat(value: Value) -> Any:
    """The number that a constant is filled with, or None when `value` is anything else."""
    if value.op is None or value.op.name != "constant":
        return None
    number = value.op.attrs["value"]
    return None if isinstance(number, np.ndarray) else number


def is_zero(value: Value) -> bool:
    """Whether a value is zero throughout, and not minus zero."""
    while value.op is not None and value.op.name in ("broadcast_in_dim", "reshape"):
        value = value.op.operands[0]
    if value.op is None or value.op.name != "constant":
        return False
    number = value.op.attrs["value"]
    return not isinstance(number, np.ndarray) and number == 0 and not np.signbit(number)


def recomputed(
    b: GraphBuilder,
    x: Value,
    through: Callable[[Op], bool],
    leaf: Callable[[Value], Value | None],
    known: dict[Value, Value | None],
) -> Value | None:
    """x computed by the same ops from others in the place of what they begin with; None where `leaf` has none.

    through: whether an op is computed again; leaf: what stands for a value made by any other. known: what was
    recomputed before, which is added to.
    """
    if x not in known:
        if x.op is None or not through(x.op):
            known[x] = leaf(x)
        else:
            operands = [recomputed(b, v, through, leaf, known) for v in x.op.operands]
            known[x] = None if None in operands else b.op(x.op.name, *(v for v in operands if v), **x.op.attrs)
    return known[x]


def made_by(value: Value, name: str) -> Op | None:
    """The op that makes `value` when it is called `name`."""
    return value.op if value.op is not None and value.op.name == name else None
