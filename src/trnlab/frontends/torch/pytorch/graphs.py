# SPDX-License-Identifier: Apache-2.0
"""Tracing of operators into graphs, below Dynamo."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import (
    _ProxyTensor,
    get_proxy_mode,
    get_proxy_slot,
    make_fx,
    set_proxy_slot,
    snapshot_fake,
)
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "functions_wrapped",
    "get_proxy_mode",
    "get_proxy_slot",
    "make_fx",
    "module_of",
    "node_of",
    "not_compiled",
    "put_node",
    "with_parameters",
]

not_compiled: Any = _use_lazy_graph_module  # a context in which graphs become Python code when they are called
with_parameters: Any = _reparametrize_module  # a context in which a module has other parameters and buffers


def module_of(graph: fx.Graph) -> fx.GraphModule:
    """A module of a graph that holds nothing, which becomes Python code when it is called."""
    with _use_lazy_graph_module(True):
        return _make_graph_module({}, graph)


def node_of(tensor: torch.Tensor) -> fx.Node | None:
    """The node of the active trace that a tensor without data is the result of; None where there is neither."""
    mode = get_proxy_mode()
    if mode is None or type(tensor) is not FakeTensor:
        return None
    known = get_proxy_slot(tensor, mode.tracer, None)
    return None if known is None or known.constant is not None else known.proxy.node


def put_node(target: Any, args: tuple[Any, ...], result: torch.Tensor | None = None) -> fx.Node:
    """Put a call into the active trace, which is not run. result: a new tensor, which is its result from here on."""
    tracer = get_proxy_mode().tracer
    node: fx.Node = tracer.create_node("call_function", target, args, {})
    if result is not None:
        with _disable_current_modes():
            node.meta["val"] = snapshot_fake(result)
        set_proxy_slot(result, tracer, _ProxyTensor(fx.Proxy(node, tracer), None))
    return node


def functions_wrapped() -> dict[Any, Any]:
    """What `torch.fx.wrap` named: globals that FX replaces while it traces."""
    found: dict[Any, Any] = fx._symbolic_trace._wrapped_fns_to_patch
    return found
