# SPDX-License-Identifier: Apache-2.0
"""`torch.distributed.fsdp.FullyShardedDataParallel` with `device_id`: the device of this process by any of its names.

It compares devices by number, and every process calls its only core neuron:0; scripts say neuron:LOCAL_RANK. And it
moves parameters by their `data`, which takes no tensor of another kind of device: they are exchanged as `Module.to`
does it. Whole parameters that are offloaded (`offload_to_cpu`) have views, which hold what they were views of; nobody
looks at those before they are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from trnlab.frontends.torch.device.numbers import only_device
from trnlab.frontends.torch.pytorch.tensors import swap_values

_device_of, _move = "_get_device_from_device_id", "_move_states_to_device"
_offloaded, _whole = "flat_param_to", "_use_unsharded_flat_param"
_gradients: WeakKeyDictionary[Any, list[tuple[nn.Parameter, Tensor]]] = WeakKeyDictionary()  # while on the host


def install() -> None:
    """Let it do so, once."""
    from trnlab.frontends.torch.pytorch.first_sharding import FlatParamHandle, start

    if not hasattr(getattr(start, _move), "__wrapped__"):
        setattr(start, _device_of, _only(getattr(start, _device_of)))
        setattr(start, _move, _exchanging(getattr(start, _move)))
        setattr(FlatParamHandle, _offloaded, _offloading(getattr(FlatParamHandle, _offloaded)))
        setattr(FlatParamHandle, _whole, _back(getattr(FlatParamHandle, _whole)))


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


def _offloading(move: Callable[..., None]) -> Callable[..., None]:
    @wraps(move)
    def moved(self: Any, *args: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            there = self.flat_param.to(*args, **kwargs)
        if (self.flat_param.device.type, there.device.type) != ("neuron", "cpu"):
            return move(self, *args, **kwargs)
        _gradients[self] = [(p, p.grad) for p in _parameters(self) if p.grad is not None]
        for parameter, _ in _gradients[self]:
            parameter.grad = None
        _exchange(self.flat_param, there)
        if self._use_orig_params:  # which are views of it
            self._use_sharded_views() if self.is_sharded(self.flat_param) else self._use_unsharded_views(True)
        return None

    return moved


def _back(use: Callable[..., None]) -> Callable[..., None]:
    @wraps(use)
    def used(self: Any, whole: Tensor) -> None:
        if self.flat_param.device.type == "cpu" and whole.device.type == "neuron":
            _exchange(self.flat_param, torch.empty_like(whole))
            for parameter, gradient in _gradients.pop(self, ()):  # of a part, while parameters are whole
                _exchange(parameter, torch.empty_like(gradient))
                parameter.grad = gradient
        use(self, whole)

    return used


def _parameters(handle: Any) -> list[nn.Parameter]:
    """The flat one, and those of the script."""
    return [handle.flat_param, *(handle.flat_param._params or ())]


def _exchange(parameter: nn.Parameter, other: Tensor) -> None:
    """The parameter is the other tensor from now on, whoever holds views of what it was."""
    swap_values(parameter, other.detach().requires_grad_(parameter.requires_grad))
