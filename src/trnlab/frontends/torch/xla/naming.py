# SPDX-License-Identifier: Apache-2.0
"""The device by its older name: once torch_xla is imported, it is "xla" to a script and to its libraries.

PyTorch has one name for a device, and the simulated one's is "neuron". Code of torch_xla says "xla" in arguments, and
compares `tensor.device` with `xm.xla_device()` and `tensor.device.type` with "xla". So a mode of PyTorch's functions
takes "xla" in every argument for the device that there is, and has `tensor.device` say "xla:0", except to PyTorch's
own files and to ours, which ask for what they hand on to PyTorch's core (ADR 102).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from trnlab.frontends.torch.device.host_ops import Strideless
from trnlab.frontends.torch.pytorch.tensors import descriptor_of_tensors, wrap_backward

NEURON, XLA = torch.device("neuron"), torch.device("xla", 0)
_DEVICE, _IS_XLA = descriptor_of_tensors("device"), descriptor_of_tensors("is_xla")
_OWN = ("torch", "trnlab")


class XlaIsNeuron(TorchFunctionMode):
    """The device "xla" in an argument of a PyTorch function, and of a tensor where others ask."""

    active = False  # for the process

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        asked = getattr(func, "__self__", None)
        if asked is _DEVICE or asked is _IS_XLA:
            return _told(func(*args), asked)
        kwargs = kwargs or {}
        if func is torch.device:  # a script's own device("xla", 0) is what it compares with
            return func(*args, **kwargs)
        if any(map(is_xla, args)) or any(map(is_xla, kwargs.values())):
            args = tuple(map(renamed, args))
            kwargs = {name: renamed(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def device() -> torch.device:
    """What `xm.xla_device()` is: equal to the device of a tensor on it, as the caller sees that."""
    return XLA if XlaIsNeuron.active else NEURON


def _told(value: Any, asked: Any) -> Any:
    """A tensor's device, or whether it is XLA's, to whoever called what called this."""
    if (asked is _DEVICE and value.type != "neuron") or torch.compiler.is_compiling():
        return value
    caller = sys._getframe(2).f_globals.get("__name__") or ""
    if caller.partition(".")[0] in _OWN:
        return value
    return XLA if asked is _DEVICE else True


def is_xla(value: Any) -> bool:
    """Whether a value names that device."""
    if isinstance(value, torch.device):
        return value.type == "xla"
    return isinstance(value, str) and (value == "xla" or value.startswith("xla:"))


def renamed(value: Any) -> Any:
    """The device that there is, for one that is named so."""
    return NEURON if is_xla(value) else value


def _rename_in_autocast() -> None:
    """torch.autocast("xla") is the device's, too: it is a class, which modes of functions do not see."""
    init = torch.amp.autocast.__init__
    if not hasattr(init, "__wrapped__"):

        @functools.wraps(init)
        def renaming(self: Any, device_type: str, *args: Any, **named: Any) -> None:
            init(self, "neuron" if is_xla(device_type) else device_type, *args, **named)

        torch.amp.autocast.__init__ = renaming  # type: ignore[method-assign]


def _load_to(storage: Any, location: str) -> Any:
    """torch.load(map_location="xla")."""
    return torch.serialization.default_restore_location(storage, "neuron") if is_xla(location) else None


def _with_mode(run: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass runs in a thread that has the modes of its call, during which a mode of functions is off."""

    @functools.wraps(run)
    def with_mode(*args: Any, **named: Any) -> Any:
        with XlaIsNeuron() if XlaIsNeuron.active else nullcontext():
            return run(*args, **named)

    return with_mode


_mode = XlaIsNeuron()


def install() -> None:
    """For the rest of the process: only scripts that import torch_xla say "xla"."""
    if not XlaIsNeuron.active:
        _mode.__enter__()  # type: ignore[no-untyped-call]
        XlaIsNeuron.active = Strideless.wanted = True
        _rename_in_autocast()
        wrap_backward(_with_mode)
        torch.serialization.register_package(5, lambda storage: None, _load_to)


def uninstall() -> None:
    """Be as before, for tests."""
    if XlaIsNeuron.active:
        XlaIsNeuron.active = Strideless.wanted = False
        _mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
