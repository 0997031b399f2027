# SPDX-License-Identifier: Apache-2.0
"""Clean-up of graphs: the list of passes, in the order in which they run.

A pass changes a graph in place, keeps its meaning, inputs, output names and aliases, and returns whether it changed
anything. Adding one means writing a function and putting it into PASSES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trnlab.graph.ir import Graph
from trnlab.graph.passes.algebra import simplify_arithmetic
from trnlab.graph.passes.constants import fold_constants
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.dots import fold_into_dots
from trnlab.graph.passes.empty import fold_empty
from trnlab.graph.passes.indexing import replace_indexing
from trnlab.graph.passes.parts import join_parts
from trnlab.graph.passes.shapes import compose_shapes
from trnlab.graph.passes.subexpressions import merge_equal_ops

Pass = Callable[[Graph], bool]

PASSES: tuple[Pass, ...] = (
    remove_dead_ops,
    fold_empty,
    fold_constants,
    compose_shapes,
    simplify_arithmetic,
    join_parts,
    replace_indexing,
    fold_into_dots,
    merge_equal_ops,
    remove_dead_ops,
)
MAX_ROUNDS = 10


def simplify(graph: Graph, passes: Sequence[Pass] = PASSES) -> int:
    """Run the passes round by round until none changes anything; the number of rounds.

    A pass that finds the graph as it left it, without having changed anything, would do so again and is left out.
    """
    changes, seen = 0, [-1] * len(passes)  # changes so far, and before each pass ran last
    for done in range(1, MAX_ROUNDS + 1):
        before = changes
        for number, run in enumerate(passes):
            if seen[number] != changes:
                seen[number] = changes
                changes += run(graph)
        if changes == before:
            return done
    return MAX_ROUNDS
