# SPDX-License-Identifier: Apache-2.0
"""Pieces of graphs: what an operator becomes is traced once for each form of it, and put in wherever the form comes.

A step has thousands of operators and few forms of them: layers repeat, and an optimizer does the same to each
parameter. Tracing takes a millisecond an operator; putting in nodes that are there takes a twentieth of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor, fx

from trnlab.frontends.torch.pytorch import pytree

Functional = Callable[[Callable[..., Any], Sequence[Tensor]], fx.GraphModule]


class NotPlainError(Exception):
    """A graph has something that no piece can be made of."""


@dataclass(frozen=True, eq=False)
class GraphTemplate:
    """The nodes that a function of tensors becomes: those of its arguments, those of operators, what it returns."""

    inputs: Sequence[fx.Node]
    nodes: Sequence[fx.Node]
    result: Any

    def put(self, graph: fx.Graph, given: Sequence[Any], meta: Mapping[str, Any]) -> Any:
        """Copy the nodes to the end of a graph, where `given` stand for the arguments; returns what is returned."""
        made = dict(zip(self.inputs, given, strict=True))
        for node in self.nodes:
            copied = graph.node_copy(node, made.__getitem__)
            copied.meta = {**meta, "val": node.meta.get("val")}
            made[node] = copied
        return fx.map_arg(self.result, made.__getitem__)


def pieces(
    functions: Sequence[Callable[[Sequence[Tensor]], Any]], likes: Sequence[Sequence[Tensor]], functional: Functional
) -> Iterator[GraphTemplate]:
    """The piece of each function, all traced in one pass. likes: tensors without data, of the forms that the function
    takes. functional: the graph of a function of new tensors like these.

    Raises NotPlainError where a function becomes more than operators on its arguments.
    """
    if not functions:
        return
    bounds = list(pairwise([0, *accumulate(map(len, likes))]))

    def run(*tensors: Tensor) -> list[Any]:
        return [function(tensors[a:b]) for function, (a, b) in zip(functions, bounds)]

    graph = functional(run, [x for each in likes for x in each]).graph
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    output = next(n for n in graph.nodes if n.op == "output")
    order = {node: i for i, node in enumerate(graph.nodes)}
    for (a, b), result in zip(bounds, output.args[0], strict=True):
        nodes = sorted(_behind(result), key=order.__getitem__)
        if not set(inputs[a:b]).issuperset(n for n in nodes if n.op == "placeholder"):
            raise NotPlainError
        yield GraphTemplate(inputs[a:b], [n for n in nodes if n.op == "call_function"], result)


def _behind(result: Any) -> set[fx.Node]:
    """The nodes that a result is made of."""
    wanted: set[fx.Node] = set()
    open_ = [x for x in pytree.tree_leaves(result) if isinstance(x, fx.Node)]
    while open_:
        node = open_.pop()
        if node not in wanted:
            wanted.add(node)
            open_ += node.all_input_nodes
    if any(node.op not in ("placeholder", "call_function") for node in wanted):
        raise NotPlainError
    return wanted
