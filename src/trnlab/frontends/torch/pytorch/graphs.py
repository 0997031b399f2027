# SPDX-License-Identifier: Apache-2.0
"""Tracing of operators into graphs, below Dynamo."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.nn.utils.stateless import _reparametrize_module

__all__ = ["functions_wrapped", "get_proxy_mode", "get_proxy_slot", "make_fx", "with_parameters"]

with_parameters: Any = _reparametrize_module  # a context in which a module has other parameters and buffers


def functions_wrapped() -> dict[Any, Any]:
    """What `torch.fx.wrap` named: globals that FX replaces while it traces."""
    found: dict[Any, Any] = fx._symbolic_trace._wrapped_fns_to_patch
    return found
