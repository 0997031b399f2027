# SPDX-License-Identifier: Apache-2.0
"""`torch.distributed.fsdp.FullyShardedDataParallel` with `device_id`: the device of this process by any of its names.

It compares devices by number, and every process calls its only core neuron:0; scripts say neuron:LOCAL_RANK. And it
moves parameters by their `data`, which takes no tensor of another kind of device: they are exchanged as `Module.to`
does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from trnlab.frontends.torch.device.host_ops import only_device

_device_of, _move = "_get_device_from_device_id", "_move_states_to_device"


def install() -> None:
    """Let it do so, once."""
    from trnlab.frontends.torch.pytorch.first_sharding import start

    if not hasattr(getattr(start, _move), "__wrapped__"):
        setattr(start, _device_of, _only(getattr(start, _device_of)))
        setattr(start, _move, _exchanging(getattr(start, _move)))


def _only(device_of: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(device_of)
    def found(device_id: Any, *args: Any) -> Any:
        chosen = torch.device(device_id) if isinstance(device_id, (int, str)) else device_id
        if chosen is None or chosen.type != "neuron":
            return device_of(device_id, *args)
        only_device(chosen)
        return torch.device("neuron", 0)

    return found


def _exchanging(move: Callable[..., None]) -> Callable[..., None]:
    @wraps(move)
    def moved(params: Sequence[nn.Parameter], buffers: Sequence[Tensor], device: Any) -> None:
        if device is None or device.type != "neuron":
            return move(params, buffers, device)
        with torch.no_grad():
            for old in params:
                new = nn.Parameter(old.to(device), old.requires_grad)
                new.grad = None if old.grad is None else old.grad.to(device)
                torch.utils.swap_tensors(old, new)
            for buffer in buffers:
                torch.utils.swap_tensors(buffer, buffer.to(device))
        return None

    return moved
