# SPDX-License-Identifier: Apache-2.0
"""Values that are known while a step is captured: of tensors that depend on no input, such as masks made in the step.

`nn.Transformer` compares a mask with the causal one, and asks Python for the answer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from trnlab.frontends.torch.pytorch.dispatcher import OpOverload, modes_off
from trnlab.frontends.torch.pytorch.graphs import get_proxy_mode, get_proxy_slot

_CPU = torch.device("cpu")
_UNKNOWN = object()


def known_value(tensor: Tensor) -> Tensor | None:
    """What a tensor of the trace holds, on the CPU.

    None where that depends on inputs, on random numbers, or on memory that nobody wrote (which is how inputs found on
    the way begin).
    """
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    proxy = getattr(slot, "proxy", None)
    if mode is None or not isinstance(proxy, fx.Proxy):
        return None
    with modes_off(), torch.no_grad():
        value = _computed(proxy.node.graph, proxy.node)
    return value if isinstance(value, Tensor) else None


def _computed(graph: fx.Graph, wanted: fx.Node) -> Any:
    """The value of a node, all that is known before it computed in order: writes reach views as they do in eager."""
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        known = _repeatable(node) and all(values[n] is not _UNKNOWN for n in node.all_input_nodes)
        if not known and _writes(node) and any(values[n] is not _UNKNOWN for n in node.all_input_nodes):
            return _UNKNOWN  # what was known holds something else from here on
        values[node] = _called(node, values) if known else _UNKNOWN
        if node is wanted:
            break
    return values.get(wanted, _UNKNOWN)


def _repeatable(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    op = node.target
    if not isinstance(op, OpOverload):
        return True  # picks one of several results
    return op.namespace == "aten" and "empty" not in op.name() and torch.Tag.nondeterministic_seeded not in op.tags


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _called(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    placed = {k: _CPU if k == "device" and v is not None else v for k, v in kwargs.items()}
    return node.target(*args, **placed)  # type: ignore[operator]
