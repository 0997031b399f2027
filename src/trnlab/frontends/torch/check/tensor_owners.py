# SPDX-License-Identifier: Apache-2.0
"""Whose the memory of a script is: parameters, gradients, buffers of models and the state of optimizers, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trnlab.frontends.torch.check.live_objects import alive
from trnlab.frontends.torch.check.unmaterialized import memory_of


@dataclass(frozen=True)
class Owned:
    """A tensor that stays on the device between steps. kind: "parameter", "gradient", "state" or "buffer"."""

    kind: str
    name: str
    tensor: Tensor


def names_of() -> dict[int, str]:
    """The longest path of every parameter in a model."""
    found: dict[int, str] = {}
    for module in alive(nn.Module):
        for name, p in module.named_parameters():
            found[id(p)] = max(found.get(id(p), ""), name, key=len)
    return found


def owned() -> dict[int, Owned]:
    """All of the device by what their memory is known by."""
    found: dict[int, Owned] = {}
    for kind, name, tensor in _all(names_of()):
        if tensor.device.type == "neuron":
            found.setdefault(memory_of(tensor), Owned(kind, name, tensor))
    return found


def _all(names: dict[int, str]) -> Iterator[tuple[str, str, Tensor]]:
    optimizers = alive(torch.optim.Optimizer)
    parameters: dict[int, Tensor] = {id(p): p for p in alive(nn.Parameter)}
    parameters |= {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
    for key, p in parameters.items():
        yield "parameter", names.get(key, "parameter"), p
    for key, p in parameters.items():
        if p.is_leaf and p.grad is not None:
            yield "gradient", f"gradient of {names.get(key, 'a parameter')}", p.grad
    for optimizer in optimizers:
        for p, state in optimizer.state.items():
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, Tensor):
                    yield "state", f"{name} of {names.get(id(p), 'a parameter')}", value
    modules: list[Any] = alive(nn.Module)
    for module in modules:
        for name, buffer in module.named_buffers():
            yield "buffer", name, buffer
