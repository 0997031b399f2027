# SPDX-License-Identifier: Apache-2.0
"""Remove ops whose results nobody reads. Inputs stay: they are the graph's signature."""

from __future__ import annotations

from trnlab.graph.collectives import meets
from trnlab.graph.ir import Graph


def remove_dead_ops(graph: Graph) -> bool:
    """One walk backwards; ops are free of side effects, so unread means unneeded. Collectives are not: other ranks,
    which may read what they get, wait for them."""
    read = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if not read.isdisjoint(op.results) or meets(op):
            kept.append(op)
            read.update(op.operands)
    changed = len(kept) != len(graph.ops)
    graph.ops = kept[::-1]
    return changed
