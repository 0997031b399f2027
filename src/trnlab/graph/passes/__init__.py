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
from trnlab.graph.passes.shapes import compose_shapes
from trnlab.graph.passes.subexpressions import merge_equal_ops

Pass = Callable[[Graph], bool]

PASSES: tuple[Pass, ...] = (
    remove_dead_ops,
    fold_empty,
    fold_constants,
    compose_shapes,
    simplify_arithmetic,
    replace_indexing,
    fold_into_dots,
    merge_equal_ops,
    remove_dead_ops,
)
MAX_ROUNDS = 10


def simplify(graph: Graph, passes: Sequence[Pass] = PASSES) -> int:
    """Run the passes round by round until none changes anything; the number of rounds."""
    for done in range(1, MAX_ROUNDS + 1):
        changed = [run(graph) for run in passes]
        if not any(changed):
            return done
    return MAX_ROUNDS
