# SPDX-License-Identifier: Apache-2.0
"""`fully_shard` of a model that is still on the host: its parameters move to the device, as PyTorch's own do.

PyTorch gives a parameter the data of a tensor on another device, which C++ allows for the devices that it knows. Here
the two tensors change places instead. There is no hook for that, so PyTorch's function is wrapped, once it is loaded:
it asks for the current device first.
"""

from __future__ import annotations

import sys
from itertools import chain
from typing import Any

import torch
from torch import nn

from trnlab.frontends.torch.pytorch.places import FULLY_SHARDED_START


def allow() -> None:
    """Wrap PyTorch's function, if it is loaded and not wrapped yet."""
    module = sys.modules.get(FULLY_SHARDED_START)
    original = getattr(module, "_move_states_to_device", None)
    if original is None or hasattr(original, "swaps"):
        return

    def move(params: list[Any], buffers: list[Any], device: torch.device) -> Any:
        for tensor in chain(params, buffers):
            if device.type == "neuron" and tensor.device.type == "cpu" and not hasattr(tensor, "_local_tensor"):
                _move(tensor, device)
        return original(params, buffers, device)

    move.swaps = True  # type: ignore[attr-defined]
    module._move_states_to_device = move  # type: ignore[union-attr]


def _move(tensor: torch.Tensor, device: torch.device) -> None:
    moved = tensor.detach().to(device)
    if isinstance(tensor, nn.Parameter):
        moved = nn.Parameter(moved, tensor.requires_grad)
    torch.utils.swap_tensors(tensor, moved)
