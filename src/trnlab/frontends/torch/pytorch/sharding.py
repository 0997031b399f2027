# SPDX-License-Identifier: Apache-2.0
"""What `fully_shard` is made of (FSDP2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
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
    "DDPMeshInfo",
    "DefaultAllGather",
    "DefaultReduceScatter",
    "FSDPMeshInfo",
    "FSDPParamGroup",
    "FSDPState",
    "collect_grad_tensors",
    "dtype_of_gradient",
    "dtype_of_reduction",
    "gradient_factors",
    "parameters",
    "policies",
]

gradient_factors: Any = _get_gradient_divide_factors


def dtype_of_gradient(group: Any, param: Any) -> Any:
    """The type of this rank's part of a parameter's gradient."""
    return param.sharded_grad_dtype if releases.found() >= (2, 15) else group._orig_dtype


def dtype_of_reduction(group: Any, params: Sequence[Any], gradients: Sequence[Tensor]) -> Any:
    """The type in which gradients of these parameters are added up; from 2.15 on, they may be of several."""
    if releases.found() >= (2, 15):
        return group._get_reduce_dtype(list(params), list(gradients))
    return group._reduce_dtype or gradients[0].dtype


def policies(group: Any) -> tuple[Any, ...]:
    """The different policies of mixed precision of a group: from 2.15 on each parameter has its own."""
    if releases.found() >= (2, 15):
        return tuple(dict.fromkeys(param.mp_policy for param in group.fsdp_params))
    return (group.mp_policy,)
