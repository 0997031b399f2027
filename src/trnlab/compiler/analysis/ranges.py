# SPDX-License-Identifier: Apache-2.0
"""What decides between the forms of an op: intervals of its operands, and whether it is the optimizer's."""

from __future__ import annotations

from trnlab.compiler.analysis.roles import find_updates
from trnlab.graph.interval_analysis import Intervals
from trnlab.graph.ir import Graph, Op


class Ranges(Intervals):
    """Intervals of the values of a graph, whose inputs keep `Graph.bounds`. `updates`: the optimizer's ops."""

    def __init__(self, graph: Graph | None = None) -> None:
        super().__init__({} if graph is None else graph.bounds)
        self.updates: set[Op] = set() if graph is None else find_updates(graph)
