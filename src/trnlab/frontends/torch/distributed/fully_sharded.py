# SPDX-License-Identifier: Apache-2.0
"""`torch.distributed.fsdp.FullyShardedDataParallel` with `device_id`: the device of this process by any of its names.

It compares devices by number, and every process calls its only core neuron:0; scripts say neuron:LOCAL_RANK.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from trnlab.frontends.torch.device.numbers import only_device

_device_of = "_get_device_from_device_id"


def install() -> None:
    """Let it do so, once."""
    from trnlab.frontends.torch.pytorch.first_sharding import start

    if not hasattr(getattr(start, _device_of), "__wrapped__"):
        setattr(start, _device_of, _only(getattr(start, _device_of)))


def _only(device_of: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(device_of)
    def found(device_id: Any, *args: Any) -> Any:
        chosen = torch.device(device_id) if isinstance(device_id, (int, str)) else device_id
        if chosen is None or chosen.type != "neuron" or chosen.index is None:  # of which it warns
            return device_of(device_id, *args)
        only_device(chosen)
        return torch.device("neuron", 0)

    return found
