# SPDX-License-Identifier: Apache-2.0
"""torch_xla.distributed.fsdp and the vendor's MiCS: refused when they are used, for PyTorch's own runs."""

from __future__ import annotations

from trnlab.frontends.torch.xla.names import refusing

_INSTEAD = "torch.distributed.fsdp.fully_shard, or ZeroRedundancyOptimizer"
_NAMES = (
    "XlaFullyShardedDataParallel",
    "SpmdFullyShardedDataParallel",
    "XlaFullyShardedDataParallelMiCS",
    "checkpoint_module",
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
    "always_wrap_policy",
    "recursive_wrap",
    "apply_xla_patch_to_nn_linear",
    "XLAPatchedLinear",
)
__getattr__ = refusing("torch_xla.distributed.fsdp", _INSTEAD, _NAMES)
