# SPDX-License-Identifier: Apache-2.0
"""The module in which `FullyShardedDataParallel`, FSDP's first version, moves parameters to a device."""

from torch.distributed.fsdp import _init_utils as start

__all__ = ["start"]
