# SPDX-License-Identifier: Apache-2.0
"""What `FullyShardedDataParallel`, FSDP's first version, moves parameters with: to a device, and off it when they are
whole; and the parts of its tensors."""

from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.fsdp import _init_utils as start
from torch.distributed.fsdp._flat_param import FlatParamHandle

__all__ = ["FlatParamHandle", "Shard", "start"]
