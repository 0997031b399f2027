# SPDX-License-Identifier: Apache-2.0
"""Tests that say `cuda` where they mean their device: within them it is `neuron`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

DEVICE = "neuron"


def ours(value: Any) -> Any:
    """A device of that name as ours, anything else as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device(DEVICE) if value.index is None else torch.device(DEVICE, value.index)
    return value.replace("cuda", DEVICE) if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


def renamed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called with devices of ours."""

    @wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        return function(*map(ours, args), **{name: ours(value) for name, value in named.items()})

    return called


class CudaIsNeuron(TorchFunctionMode):
    """While active, functions of PyTorch take one name for the other."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*map(ours, args), **{name: ours(value) for name, value in (kwargs or {}).items()})


def install() -> None:
    """Let modules and tensors move there by the name, in this process from now on."""
    if hasattr(torch.nn.Module.to, "__wrapped__"):
        return
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self.to(DEVICE)  # type: ignore[assignment,method-assign]
    torch.nn.Module.to = renamed(torch.nn.Module.to)  # type: ignore[method-assign]
    torch.cuda.current_device = lambda: 0
    torch.cuda.synchronize = lambda device=None: None
