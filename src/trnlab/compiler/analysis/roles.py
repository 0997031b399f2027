# SPDX-License-Identifier: Apache-2.0
"""What ops are there for, where fusion treats them differently for it."""

from __future__ import annotations

from trnlab.compiler.analysis.strided import LOOK_OPS
from trnlab.graph.ir import Graph, Op
from trnlab.graph.ops import ELEMENTWISE, OPS


def find_updates(graph: Graph) -> set[Op]:
    """Elementwise ops whose results, through elementwise ops alone, reach only in-place outputs: the optimizer."""
    in_place = {graph.outputs[i] for i in graph.aliases}
    others = {v for i, v in enumerate(graph.outputs) if i not in graph.aliases}
    users = graph.users()
    found: set[Op] = set()
    for op in reversed(graph.ops):
        plain = op.name in LOOK_OPS or OPS[op.name].kind == ELEMENTWISE
        readers = users.get(op.result, [])
        if plain and op.result not in others and (readers or op.result in in_place) and found.issuperset(readers):
            found.add(op)
    return {op for op in found if op.result.type.size > 1}
