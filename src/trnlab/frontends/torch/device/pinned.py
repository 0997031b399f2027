# SPDX-License-Identifier: Apache-2.0
"""Tensors of the host that are made pinned: for scripts that ask, and the reducer of DistributedDataParallel.

With `find_unused_parameters` or `static_graph` the reducer, which is C++, makes a pinned tensor of the host and
insists that it is pinned. An outside backend would answer for that in C++; here the operators that make tensors of
the host are Python's from the first such model on. They cost every tensor of the host some microseconds, so scripts
that make tensors with `pin_memory=True`, as those written for CUDA do, have them only if `pinned_scripts` finds that
they ask.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.device import generic
from trnlab.frontends.torch.device.dispatch import implement

_headers: dict[torch.dtype, Tensor] = {}  # empty tensors
_LIBRARIES: list[torch.library.Library] = []


def _empty(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    chosen = memory_format or torch.contiguous_format
    return _made(torch.empty(size, dtype=dtype, device="meta", memory_format=chosen), bool(pin_memory))


def _empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _made(torch.empty_strided(size, stride, dtype=dtype, device="meta"), bool(pin_memory))


def _made(like: Tensor, pin_memory: bool) -> Tensor:
    """New memory of the host, without the operators that would make it, which are these here."""
    storage = torch.UntypedStorage(like.untyped_storage().nbytes())
    if pin_memory:
        generic.remember_pinned(storage)
    header = torch.ops.aten.alias.default(_headers[like.dtype])
    return torch.ops.aten.set_.source_Storage_storage_offset(header, storage, 0, like.shape, like.stride())


def _of_all_formats() -> dict[torch.dtype, Tensor]:
    """An empty tensor of each; of quantized ones there is none without a scale."""
    kinds = {value for name, value in vars(torch).items() if isinstance(value, torch.dtype) and name[:1] != "q"}
    return {kind: torch.empty(0, dtype=kind) for kind in kinds}


def allow() -> None:
    """From now on pinned tensors of the host can be made. They lie in ordinary memory."""
    if not _LIBRARIES and not torch.cuda.is_available():
        aten = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            warnings.filterwarnings("ignore", "ComplexHalf")
            _headers.update(_of_all_formats())
            implement(aten, "empty.memory_format", _empty, "CPU")
            implement(aten, "empty_strided", _empty_strided, "CPU")
        _LIBRARIES.append(aten)


def install() -> None:
    """Allow it as soon as a model needs it."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__
    if hasattr(original, "allows_pinned"):
        return

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.device_type == "neuron" and (self.find_unused_parameters or self.static_graph):
            allow()

    init.allows_pinned = True  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = init
