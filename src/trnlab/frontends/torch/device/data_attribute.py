# SPDX-License-Identifier: Apache-2.0
"""`p.data = p.data.to("neuron")`: a tensor that gets data of another device in its place, and stays the object it is.

PyTorch does this among the devices that it knows itself and refuses it for those registered from outside. What the
tensor is, is exchanged with a new one of the other device instead; optimizers and modules see the same object.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from trnlab.frontends.torch.pytorch.tensors import data_of_tensors


def _set(tensor: Any, value: Any) -> None:
    if not (isinstance(value, torch.Tensor) and _moves(tensor, value)):
        engine = sys.modules.get("trnlab.frontends.common.engine")  # of a walk, if one is under way
        told = getattr(engine.current(), "exchanges", None) if engine is not None else None
        if told is not None:
            told(tensor)
        data_of_tensors.__set__(tensor, value)
        return
    given, gradient = value.detach(), tensor.grad
    if isinstance(tensor, nn.Parameter):
        other: torch.Tensor = nn.Parameter(given, requires_grad=tensor.requires_grad)
    else:
        other = given.requires_grad_(tensor.requires_grad)
    other.__dict__.update(tensor.__dict__)
    tensor.grad = None
    torch.utils.swap_tensors(tensor, other)
    if gradient is not None:  # which PyTorch would leave where it was, and no optimizer could use
        tensor.grad = gradient.to(value.device)


def _moves(tensor: Any, value: torch.Tensor) -> bool:
    """Whether data comes from the device to another or the other way; results of operators stay PyTorch's."""
    kinds = {tensor.device.type, value.device.type}
    return len(kinds) == 2 and "neuron" in kinds and "meta" not in kinds and bool(tensor.is_leaf)


def register() -> None:
    """Let tensors take such data. Called once."""
    torch.Tensor.data = property(data_of_tensors.__get__, _set, data_of_tensors.__delete__)  # type: ignore[assignment,method-assign]
