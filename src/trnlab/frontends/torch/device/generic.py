# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's device-generic code asks of an outside backend's C++ part, which this backend lacks.

Pinned memory, generators, events, statistics of memory and growing storages would be asked of C++ hooks, and
PyTorch's answer where there are none is an error: a script that pins its batches would fail merely because the device
is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trnlab.errors import UsageError
from trnlab.frontends.torch.device import module
from trnlab.frontends.torch.device.dispatch import implement
from trnlab.frontends.torch.device.dlpack import as_host
from trnlab.frontends.torch.device.numbers import only_device
from trnlab.frontends.torch.pytorch import tensors
from trnlab.frontends.torch.pytorch.dispatcher import mode_count

_LIBRARIES: list[torch.library.Library] = []
_OF_ACCELERATORS = (
    "empty_cache",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "get_memory_info",
    "synchronize",
    "get_device_capability",
    "set_device_index",
)


class _Storages:
    """Storages of which something is known as long as they are there."""

    def __init__(self) -> None:
        self._held: dict[
            int, StorageWeakRef
        ] = {}  # by address of PyTorch's record, which stays while it is referred to
        self._full = 64

    def add(self, storage: torch.UntypedStorage) -> None:
        """One more."""
        if len(self._held) >= self._full:
            self._held = {key: held for key, held in self._held.items() if not held.expired()}
            self._full = max(64, 2 * len(self._held))
        self._held[storage._cdata] = StorageWeakRef(storage)

    def discard(self, storage: torch.UntypedStorage) -> None:
        """It is none of them."""
        self._held.pop(storage._cdata, None)

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return bool(self._held) and storage._cdata in self._held


_pinned = _Storages()


def remember_pinned(storage: torch.UntypedStorage) -> None:
    """From now on tensors in this memory of the host count as pinned. It is ordinary memory: no copy to the simulated
    device is faster from there. But who asked for pinned memory and was told that this is none would ask again, and
    have another copy (FSDP2 did, with parameters that are offloaded)."""
    _pinned.add(storage)


def _is_pinned(self: Tensor, device: Any = None) -> bool:
    """Whether a tensor of the host counts as pinned."""
    return self.untyped_storage() in _pinned


def _pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """A copy, as a user of pinned memory expects: writing to it does not write to the original."""
    copy = self.clone()
    remember_pinned(copy.untyped_storage())
    return copy


class _GeneratorKind(type(tensors.Generator)):  # type: ignore[misc]
    """Makes `torch.Generator("neuron")` a generator of the CPU, from which operators on this device draw."""

    def __call__(cls, device: Any = "cpu") -> Any:
        from trnlab.frontends.torch.device.naming import renamed  # which needs the device to be registered

        chosen = renamed(torch.device(device))
        return tensors.Generator(device="cpu" if only_device(chosen).type == "neuron" else chosen)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, tensors.Generator)


class Generator(tensors.Generator, metaclass=_GeneratorKind):
    """Stands for `torch.Generator`."""


class _EventKind(type(torch.Event)):  # type: ignore[misc]
    """Makes `torch.Event()` one of this device where the accelerator is ours, or is named."""

    def __call__(cls, device: Any = None, **kwargs: Any) -> Any:
        found = torch.accelerator.current_accelerator() if device is None else torch.device(device)
        ours = found is not None and found.type == "neuron"
        return module.Event(**kwargs) if ours else _PLAIN_EVENT(device, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _PLAIN_EVENT)


_PLAIN_EVENT = torch.Event


class GenericEvent(torch.Event, metaclass=_EventKind):
    """Stands for `torch.Event`."""


def _aligned(self: Tensor, mask: Tensor) -> bool:
    """Whether `nn.TransformerEncoder` may make its batch a nested tensor: the device has dense ones only."""
    return False


def _on_neuron(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.accelerator.<name>`, which asks our module where the accelerator is ours."""
    ours = getattr(module, name)

    @wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        found = torch.accelerator.current_accelerator()
        return (ours if found is not None and found.type == "neuron" else original)(*args, **kwargs)

    return ask


def _printing(original: Callable[[Tensor, int], str]) -> Callable[[Tensor, int], str]:
    """The text of a tensor's values. PyTorch makes it with operators on the tensor: here the host runs them."""

    @wraps(original)
    def text(self: Tensor, indent: int) -> str:
        ours = self.device.type == "neuron" and not mode_count()
        return original(as_host(self) if ours else self, indent)

    return text


_given_back = _Storages()  # those without size


def _resizing(original: Any) -> Any:
    """Giving memory back (a size of 0, and later the old one again, as FSDP does) keeps it: nothing would be read
    from it in between. Its size is 0 meanwhile, from which FSDP knows that it has to gather the values again."""

    @wraps(original)
    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        if self.device.type != "neuron":
            return original(self, size)
        if size not in (0, _nbytes(self)):
            raise UsageError(
                "the memory of a tensor on the device cannot change its size",
                code="TRN153",
                limit=f"{_nbytes(self)} bytes",
                got=f"{size} bytes",
                remedy="make a new tensor",
            )
        _given_back.discard(self)
        if not size:
            _given_back.add(self)
        return self

    return resize_


_nbytes = torch.UntypedStorage.nbytes


@wraps(_nbytes)
def _nbytes_now(self: torch.UntypedStorage) -> int:
    return 0 if self in _given_back else _nbytes(self)


def register() -> None:
    """Install what is above. Called once."""
    if not torch.cuda.is_available():  # else memory is pinned for that, as ever
        aten = torch.library.Library("aten", "IMPL")
        implement(aten, "is_pinned", _is_pinned, "CPU")
        implement(aten, "_pin_memory", _pin_memory, "CPU")
        _LIBRARIES.append(aten)
    ours = torch.library.Library("aten", "IMPL")
    implement(ours, "_nested_tensor_from_mask_left_aligned", _aligned, "PrivateUse1")
    _LIBRARIES.append(ours)
    torch.Generator = Generator  # type: ignore[misc]
    torch.Event = GenericEvent  # type: ignore[misc]
    for name in _OF_ACCELERATORS:
        asking = _on_neuron(name, getattr(torch.accelerator, name))
        setattr(torch.accelerator, name, asking)
        if hasattr(torch.accelerator.memory, name):
            setattr(torch.accelerator.memory, name, asking)
    tensors.printed_by(_printing)
    torch.UntypedStorage.resize_ = _resizing(torch.UntypedStorage.resize_)  # type: ignore[method-assign]
    torch.UntypedStorage.nbytes = _nbytes_now  # type: ignore[method-assign]
