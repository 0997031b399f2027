# SPDX-License-Identifier: Apache-2.0
"""torch_xla: the device under its older name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from trnlab.frontends.torch.xla.model import mark_step, xla_device
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.processes import launch

__all__ = ["device", "device_count", "devices", "launch", "manual_seed", "step", "sync"]
__version__ = "0+trnlab"

device, sync = xla_device, mark_step
step = mark_step


def devices() -> list[torch.device]:
    """The one there is."""
    return [xla_device()]


def device_count() -> int:
    """One."""
    return 1


def manual_seed(seed: int, device: Any = None) -> None:
    """Seed PyTorch's generators."""
    torch.manual_seed(seed)


class _XlaIsNeuron(TorchFunctionMode):
    """The device "xla" in an argument of a PyTorch function becomes the device that there is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        if any(map(_is_xla, args)) or any(map(_is_xla, kwargs.values())):
            args = tuple(map(_renamed, args))
            kwargs = {name: _renamed(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _is_xla(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "xla"
    return isinstance(value, str) and (value == "xla" or value.startswith("xla:"))


def _renamed(value: Any) -> Any:
    return xla_device() if _is_xla(value) else value


_XlaIsNeuron().__enter__()  # for the rest of the process: only scripts that import torch_xla say "xla"

__getattr__ = refusing("torch_xla", "of torch_xla there are the device, steps and one process")
