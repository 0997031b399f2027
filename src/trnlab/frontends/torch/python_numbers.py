# SPDX-License-Identifier: Apache-2.0
"""Python's numbers in the graphs of `torch.compile`: floats arrive as float64 tensors without dimensions, integers
that are not the same at each call (counts of steps) as symbols.

What is computed from them alone is computed on the host as Python would, in float64; the program gets the results as
float32 inputs. (The chip has no float64, and Python did this arithmetic on the host in the first place.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx


class PythonNumbers:
    """Takes arithmetic on Python's numbers out of a graph, and does it at each call.

    Symbols that tensors' shapes hang on stay in the graph, which is for one value of them.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._given = {n: i for i, n in enumerate(placeholders) if _is_number(n.meta.get("val")) or _is_symbol(n)}
        self._steps: list[tuple[fx.Node, Any, Any]] = []  # with their arguments, which leave the graph
        self._results: dict[str, fx.Node] = {}
        if self._given:
            self._take_out(module)

    def known(self, args: Sequence[Any]) -> dict[fx.Node, Any]:
        """The number of each node that has one, from the graph's arguments."""
        known: dict[fx.Node, Any] = {n: args[i] for n, i in self._given.items()}
        for n, args_of, kwargs_of in self._steps:
            operands, options = fx.node.map_arg((args_of, kwargs_of), known.__getitem__)
            known[n] = n.target(*operands, **options)  # type: ignore[operator]
        return known

    def inputs(self, known: Mapping[fx.Node, Any]) -> dict[str, torch.Tensor]:
        """The inputs that stand for numbers, by the names of their placeholders."""
        return {name: _narrow(known[n]) for name, n in self._results.items()}

    def __contains__(self, node: object) -> bool:
        """Whether the number of a node is known at each call."""
        return node in self._given or any(node is step[0] for step in self._steps)

    def _take_out(self, module: fx.GraphModule) -> None:
        """Replace each number that the rest of the graph reads by a placeholder of float32."""
        known = set(self._given)
        for n in module.graph.nodes:
            if n.op == "call_function" and is_host_number(n) and known.issuperset(n.all_input_nodes):
                self._steps.append((n, n.args, n.kwargs))
                known.add(n)
        last = [n for n in module.graph.nodes if n.op == "placeholder"][-1]
        for n in (*self._given, *(step[0] for step in self._steps)):
            readers = [user for user in n.users if user not in known and user.op != "output"]
            if not readers or _is_symbol(n):
                continue
            with module.graph.inserting_after(last):
                number = module.graph.placeholder(f"number_{n.name}")
            number.meta["val"] = _narrow(n.meta["val"])
            for reader in readers:
                reader.replace_input_with(n, number)
            self._results[number.name] = n
        for n, *_ in reversed(self._steps):
            if not n.users:
                module.graph.erase_node(n)


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64 and value.dim() == 0 and value.is_cpu


def is_host_number(node: fx.Node) -> bool:
    """Whether a node computes a number of the host."""
    return _is_scalar(node) or _is_symbol(node)


def _is_scalar(node: fx.Node) -> bool:
    """Whether a node computes a single number of the host."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_cpu


def _is_symbol(node: fx.Node) -> bool:
    """Whether a node is an integer that may be another at the next call."""
    return isinstance(node.meta.get("val"), torch.SymInt)


def _narrow(number: torch.Tensor) -> torch.Tensor:
    """In a format of the chip."""
    return number.float() if number.dtype == torch.float64 else number
