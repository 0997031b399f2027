# SPDX-License-Identifier: Apache-2.0
"""What `fully_shard` is made of (FSDP2)."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp._common_utils import collect_grad_tensors
from torch.distributed.fsdp._fully_shard import _fsdp_param as parameters
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
    _get_gradient_divide_factors,
)
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, FSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from trnlab.frontends.torch.pytorch import releases

__all__ = [
    "DDPMeshInfo", "DefaultAllGather", "DefaultReduceScatter", "FSDPMeshInfo", "FSDPParamGroup", "FSDPState",
    "collect_grad_tensors", "dtype_of_gradient", "gradient_factors", "parameters",
]  # fmt: skip

gradient_factors: Any = _get_gradient_divide_factors


def dtype_of_gradient(group: Any, param: Any) -> Any:
    """The type of this rank's part of a parameter's gradient."""
    return param.sharded_grad_dtype if releases.found() >= (2, 15) else group._orig_dtype
