# SPDX-License-Identifier: Apache-2.0
"""Graph to graph: a graph is copied op by op, and rules say what to put in an op's place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value

Rule = Callable[[GraphBuilder, Op, tuple[Value, ...]], "tuple[Value, ...] | None"]
"""rule(builder, op, operands): the values that replace the op's results, or None to keep the op."""


def rewrite(graph: Graph, rules: Mapping[str, Rule]) -> Graph:
    """A copy of `graph` in which ops named in `rules` are replaced as their rule says."""
    b = GraphBuilder(graph.name)
    new: dict[Value, Value] = {v: b.input(v.name, v.shape, v.dtype) for v in graph.inputs}
    for op in graph.ops:
        operands = tuple(new[v] for v in op.operands)
        with b.at(op.loc, op.origin):
            rule = rules.get(op.name)
            results = rule(b, op, operands) if rule is not None else None
            if results is None:
                results = b.append(op.name, operands, op.attrs).results
        for old, value in zip(op.results, results):
            value.name = value.name or old.name
            new[old] = value
    for index, value in enumerate(graph.outputs):
        source = graph.aliases.get(index)
        name = graph.output_names[index] if index < len(graph.output_names) else ""
        b.output(new[value], name, alias_of=None if source is None else new[graph.inputs[source]])
    return b.build()
