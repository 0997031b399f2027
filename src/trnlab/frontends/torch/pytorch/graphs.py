# SPDX-License-Identifier: Apache-2.0
"""Tracing of operators into graphs, below Dynamo."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.nn.utils.stateless import _reparametrize_module

__all__ = [
    "functions_wrapped",
    "get_proxy_mode",
    "get_proxy_slot",
    "make_fx",
    "module_of",
    "not_compiled",
    "with_parameters",
]

not_compiled: Any = _use_lazy_graph_module  # a context in which graphs become Python code when they are called
with_parameters: Any = _reparametrize_module  # a context in which a module has other parameters and buffers


def module_of(graph: fx.Graph) -> fx.GraphModule:
    """A module of a graph that holds nothing, which becomes Python code when it is called."""
    with _use_lazy_graph_module(True):
        return _make_graph_module({}, graph)


def functions_wrapped() -> dict[Any, Any]:
    """What `torch.fx.wrap` named: globals that FX replaces while it traces."""
    found: dict[Any, Any] = fx._symbolic_trace._wrapped_fns_to_patch
    return found
