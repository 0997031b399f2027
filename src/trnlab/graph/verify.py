# SPDX-License-Identifier: Apache-2.0
"""The rules that every graph obeys, as a table; `verify` raises GraphError at the first one broken."""

from __future__ import annotations

from trnlab.errors import GraphError
from trnlab.graph.infer import infer
from trnlab.graph.ir import Graph, Value


def verify(graph: Graph) -> None:
    """Raise GraphError (TRN30x) when the graph breaks a rule."""
    known: set[Value] = set(graph.inputs)
    for op in graph.ops:
        for operand in op.operands:
            if operand not in known:
                raise GraphError(f"{op.name} reads a value before it is made", code="TRN305", where=op.loc)
        types = infer(op.name, [v.type for v in op.operands], op.attrs)
        if types != tuple(v.type for v in op.results):
            raise GraphError(f"{op.name}: wrong result types", code="TRN305", limit=types, where=op.loc)
        known.update(op.results)
