# SPDX-License-Identifier: Apache-2.0
"""Storages of `neuron` tensors: saving, loading and copying them.

PyTorch would make a new storage by asking the device's allocator, and an allocator cannot be written in Python
(asking for it crashes the process). Here host memory is filled first and relabelled after, so a checkpoint loads onto
the device it was saved from without being told, and `copy.deepcopy` and `pickle` work.
"""

from __future__ import annotations

from typing import Any

import torch

from trnlab.frontends.torch.device.dlpack import as_host, as_neuron

_BEFORE_BUILT_IN = 1  # PyTorch's own rule for outside backends has a higher number, and the lowest is asked first


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage's bytes as a CPU tensor over the same memory."""
    return as_host(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))


def _tag(storage: Any) -> str | None:
    return "neuron:0" if storage.device.type == "neuron" else None


def _restore(storage: Any, location: str) -> Any:
    if not str(location).startswith("neuron"):
        return None
    raw = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    return as_neuron(_bytes(raw)).untyped_storage()


def _cloning(original: Any) -> Any:
    def clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return a copy of this storage."""
        if self.device.type != "neuron":
            return original(self)
        return as_neuron(_bytes(self).clone()).untyped_storage()

    return clone


def register() -> None:
    """Teach `torch.serialization` and `torch.UntypedStorage.clone` the device. Called once."""
    torch.serialization.register_package(_BEFORE_BUILT_IN, _tag, _restore)
    torch.UntypedStorage.clone = _cloning(torch.UntypedStorage.clone)  # type: ignore[method-assign]
