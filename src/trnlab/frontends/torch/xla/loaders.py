# SPDX-License-Identifier: Apache-2.0
"""torch_xla.distributed.parallel_loader: batches on the device, and the end of a step before each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from trnlab.frontends.torch.xla.arena import rewritten
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.steps import mark_step

__all__ = ["MpDeviceLoader", "ParallelLoader", "PerDeviceLoader"]


class PerDeviceLoader:
    """The batches of a loader on a device, once. A step ends before a batch, and after the last one."""

    def __init__(self, loader: ParallelLoader, device: Any) -> None:
        self._loader, self._device = loader, device
        self._batches = iter(loader.cpu_loader)
        self._since = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __next__(self) -> Any:
        self._since += 1
        if self._since >= self._loader.batches_per_execution:
            self._since = 0
            mark_step()
        if self._loader.closed:
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            mark_step()
            raise
        return rewritten(batch, _is_tensor, lambda tensor: tensor.to(self._device))

    next = __next__


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class ParallelLoader:
    """A loader for some devices, of which there is one. Sizes of queues and numbers of threads change nothing."""

    def __init__(
        self,
        cpu_loader: Iterable[Any],
        devices: Sequence[Any],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        **_: Any,
    ) -> None:
        self.cpu_loader, self.devices = cpu_loader, [torch.device(device) for device in devices]
        self.batchdim, self.batches_per_execution = batchdim, batches_per_execution
        self.closed = False

    def per_device_loader(self, device: Any) -> PerDeviceLoader:
        """Its batches on a device."""
        return PerDeviceLoader(self, device)

    def per_device_samples(self) -> int:
        """How many batches a device gets."""
        return len(self.cpu_loader) // max(len(self.devices), 1)  # type: ignore[arg-type]

    def close(self) -> None:
        """No more batches."""
        self.closed = True


class MpDeviceLoader:
    """The batches of a loader on the device of this rank; the arguments are those of `ParallelLoader`."""

    def __init__(self, loader: Iterable[Any], device: Any, **named: Any) -> None:
        self._loader, self._device, self._parallel_loader_kwargs = loader, device, named
        self._parallel_loader: ParallelLoader | None = None

    def __iter__(self) -> PerDeviceLoader:
        if self._parallel_loader is not None:
            self._parallel_loader.close()
        self._parallel_loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        return self._parallel_loader.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]


__getattr__ = refusing("torch_xla.distributed.parallel_loader", "there are MpDeviceLoader and ParallelLoader")
