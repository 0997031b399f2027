# SPDX-License-Identifier: Apache-2.0
"""The device by other names: "xla" to what was written for torch_xla, "cuda" to scripts for graphics cards.

PyTorch has one name for a device, and the simulated one's is "neuron". While another name is taken for it, a mode of
PyTorch's functions takes that in every argument for the device that there is. What a tensor says of its own device is
changed for torch_xla alone, whose libraries compare it, and not to PyTorch's own files and ours, which ask for what
they hand on to PyTorch's core (ADR 102).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device as default_device

from trnlab.frontends.torch.device.tensor_types import CudaTensorType
from trnlab.frontends.torch.pytorch.tensors import descriptor_of_tensors, wrap_backward

NEURON = torch.device("neuron")
_DEVICE = descriptor_of_tensors("device")
_ASKED = {_DEVICE: "", **{descriptor_of_tensors(f"is_{name}"): name for name in ("xla", "cuda")}}
_OWN = ("torch", "trnlab")


class DeviceNames(TorchFunctionMode):
    """Other names of the device, in an argument of a PyTorch function and of a tensor where others ask."""

    taken: ClassVar[set[str]] = set()  # for the process: types of devices that are this one
    met: ClassVar[set[str]] = set()  # those that came in an argument
    on_first: ClassVar[list[Callable[[str], None]]] = []  # called with a type that comes for the first time
    told: ClassVar[torch.device | None] = None  # what a tensor says its device is; None for the truth

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        asked = getattr(func, "__self__", None)
        if asked in _ASKED and not (torch.compiler.is_compiling() or _is_own(sys._getframe(1))):
            return _told(asked, func(*args), args[0])
        if func is torch.device:  # a script's own device("xla", 0) is what it compares with
            return func(*args, **kwargs)
        if func is torch.Tensor.cuda and "cuda" in self.taken:
            note("cuda")
            return _moved(*args, **kwargs)
        if func is torch.Tensor.type and len(args) == 2 and isinstance(args[1], CudaTensorType):
            return args[0].to(NEURON, args[1].dtype)
        if any(map(is_taken, args)) or any(map(is_taken, kwargs.values())):
            args = tuple(map(renamed, args))
            kwargs = {name: renamed(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _told(asked: Any, value: Any, tensor: torch.Tensor) -> Any:
    """What a tensor says of its device to others than PyTorch and trnlab. value: the truth."""
    if not tensor.is_neuron:
        return value
    return (DeviceNames.told or value) if asked is _DEVICE else _ASKED[asked] in DeviceNames.taken


def _is_own(caller: FrameType) -> bool:
    """Whether PyTorch or trnlab asks; a mode above this one, such as `with torch.device(...)`, only hands on."""
    while caller.f_code.co_name == "__torch_function__" and caller.f_back is not None:
        caller = caller.f_back
    return (caller.f_globals.get("__name__") or "").partition(".")[0] in _OWN


def _moved(
    tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> torch.Tensor:
    """`tensor.cuda()`, of whatever device it names."""
    return tensor.to(NEURON, non_blocking=non_blocking, memory_format=memory_format)


def is_taken(value: Any) -> bool:
    """Whether a value names the device by another name."""
    if isinstance(value, torch.device):
        return value.type in DeviceNames.taken
    return isinstance(value, str) and value.partition(":")[0] in DeviceNames.taken


def renamed(value: Any) -> Any:
    """The device that there is, for one that is named otherwise."""
    if not is_taken(value):
        return value
    note(value.type if isinstance(value, torch.device) else value.partition(":")[0])
    return NEURON


def note(name: str) -> None:
    """A device came by this name."""
    if name not in DeviceNames.met:
        DeviceNames.met.add(name)
        for callback in DeviceNames.on_first:
            callback(name)


def _rename_in_classes() -> None:
    """torch.autocast("xla"), torch.amp.GradScaler("cuda"), and devices as contexts: modes of functions do not see
    that classes are called."""
    for made in (torch.amp.autocast, torch.amp.GradScaler, default_device.DeviceContext):
        init = made.__init__
        if not hasattr(init, "__wrapped__"):
            made.__init__ = renaming(init)  # type: ignore[method-assign]


def renaming(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function or constructor that takes devices, which a mode of functions does not see."""

    @functools.wraps(function)
    def with_renamed(*args: Any, **named: Any) -> Any:
        return function(*map(renamed_type, args), **{name: renamed_type(value) for name, value in named.items()})

    return with_renamed


def renamed_type(value: Any) -> Any:
    """As `renamed`, a text for a text."""
    known = renamed(value)
    return known.type if isinstance(value, str) and known is not value else known


def _load_to(storage: Any, location: str) -> Any:
    """torch.load(map_location="xla"), and files of tensors that lay there."""
    return torch.serialization.default_restore_location(storage, "neuron") if is_taken(location) else None


def _with_mode(run: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass runs in a thread that has the modes of its call, during which a mode of functions is off."""

    @functools.wraps(run)
    def with_mode(*args: Any, **named: Any) -> Any:
        with DeviceNames() if DeviceNames.taken else nullcontext():
            return run(*args, **named)

    return with_mode


_mode = DeviceNames()


def take(name: str) -> None:
    """Take a type of devices for this one, for the rest of the process."""
    if not DeviceNames.taken:
        _mode.__enter__()  # type: ignore[no-untyped-call]
    DeviceNames.taken.add(name)
    _rename_in_classes()
    wrap_backward(_with_mode)
    register_loading()


@functools.cache
def register_loading() -> None:
    """Once for each process."""
    torch.serialization.register_package(5, lambda storage: None, _load_to)


def leave(name: str) -> None:
    """Be as before."""
    if name in DeviceNames.taken:
        DeviceNames.taken.discard(name)
        DeviceNames.met.discard(name)
        if not DeviceNames.taken:
            _mode.__exit__(None, None, None)
