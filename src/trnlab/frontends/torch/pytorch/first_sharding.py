# SPDX-License-Identifier: Apache-2.0
"""Where `FullyShardedDataParallel`, FSDP's first version, finds its device; its tensors' parts, and their places."""

from typing import Any

from torch.distributed import _remote_device
from torch.distributed._shard.sharded_tensor import api, utils
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.fsdp import _init_utils as start

__all__ = ["PARSERS", "RemoteDevice", "Shard", "start"]

RemoteDevice: Any = _remote_device
PARSERS: tuple[Any, ...] = (api, utils)  # modules that ask which rank and device a place is
