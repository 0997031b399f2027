# SPDX-License-Identifier: Apache-2.0
"""Where `FullyShardedDataParallel`, FSDP's first version, finds its device; and the parts of its tensors."""

from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.fsdp import _init_utils as start

__all__ = ["Shard", "start"]
