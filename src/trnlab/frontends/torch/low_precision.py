# SPDX-License-Identifier: Apache-2.0
"""What the session's precision makes of an imported graph: which format the products of which module get.

The module of an operator is the layer of its location; a value is a gradient where the operator was met on the way
back through the model, or in a backward graph of AOTAutograd, where it hangs on an incoming gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx

from trnlab.frontends.common.formats import choose_formats
from trnlab.frontends.torch.device.types import session
from trnlab.frontends.torch.findings.locations import is_gradient
from trnlab.graph.ir import Graph, Value
from trnlab.graph.passes.quantize import Quantized
from trnlab.runtime.notices import say

_TANGENT = "tangents"  # how AOTAutograd calls the incoming gradients of a backward graph


def apply(module: fx.GraphModule, graph: Graph, values: Mapping[fx.Node, Any]) -> Quantized:
    """Give the products of a graph their formats; `values` are those of the nodes that it was imported from."""
    now = session()
    if now is None:
        return Quantized()
    back = gradients(module, values)
    return choose_formats(graph, now, lambda op: op.loc.layer if op.loc is not None else "", back.__contains__)


def gradients(module: fx.GraphModule, values: Mapping[fx.Node, Any]) -> set[Value]:
    """Values of the backward pass."""
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        incoming = node.op == "placeholder" and node.name.startswith(_TANGENT)
        back = node.op == "call_function" and is_gradient(node.meta.get("stack_trace") or "")
        if incoming or back or any(n in found for n in node.all_input_nodes):
            found.add(node)
    first: dict[Value, bool] = {}  # whether the node that made a value is of the backward pass: others pass it on
    for node in module.graph.nodes:
        for value in _flat(values.get(node)):
            first.setdefault(value, node in found)
    return {value for value, back in first.items() if back}


def _flat(held: Any) -> Iterable[Value]:
    items = held if isinstance(held, (tuple, list)) else (held,)
    return [v for v in items if isinstance(v, Value)]


def say_unused(modules: Iterable[str]) -> None:
    """Name the patterns of rules that fit no module, once each."""
    now = session()
    if now is None or not now.rules.rules:
        return
    for name in modules:
        now.rules.choose(f"model.{name}" if name else "model", now.precision)
    for pattern in now.rules.unused:
        now.rules.used.add(pattern)
        say(f"precision rule {pattern!r} names no module of the model; names are those of model.named_modules()")
