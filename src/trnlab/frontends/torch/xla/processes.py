# SPDX-License-Identifier: Apache-2.0
"""torch_xla.distributed: one process, and a loader that puts batches on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from trnlab.frontends.torch.xla.names import refusing


class MpDeviceLoader:
    """The batches of a loader, moved to a device."""

    def __init__(self, loader: Iterable[Any], device: Any, **_: Any) -> None:
        self.loader, self.device = loader, device

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield _moved(batch, self.device)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]


class ParallelLoader(MpDeviceLoader):
    """The same for a list of devices, of which there is one."""

    def __init__(self, loader: Iterable[Any], devices: Any, **_: Any) -> None:
        super().__init__(loader, devices[0])

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """Itself, for another device."""
        return MpDeviceLoader(self.loader, device)


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return type(value)({name: _moved(part, device) for name, part in value.items()})
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_moved(part, device) for part in value)
    return value


def spawn(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int | None = None, **_: Any) -> None:
    """fn(0, *args) in this process, whatever nprocs is."""
    fn(0, *args)


launch = spawn

__getattr__ = refusing("torch_xla.distributed", "there is one process")
