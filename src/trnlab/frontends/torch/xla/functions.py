# SPDX-License-Identifier: Apache-2.0
"""torch_xla.core.functions: collectives that are differentiated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from trnlab.frontends.torch.xla import collectives
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.ranks import Groups, ordinal, world_size

__all__ = ["all_gather", "all_reduce"]


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, scale: float, groups: Groups) -> Tensor:
        ctx.settings = scale, groups
        return collectives.all_reduce(collectives.REDUCE_SUM, value, scale, groups)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return collectives.all_reduce(collectives.REDUCE_SUM, grads[0], *ctx.settings), None, None


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int) -> Tensor:
        ctx.dim, ctx.size = dim, value.size(dim)
        return collectives.all_gather(value, dim)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        whole = collectives.all_reduce(collectives.REDUCE_SUM, grads[0])
        return whole.narrow(ctx.dim, ordinal() * ctx.size, ctx.size), None


def all_reduce(reduce_type: str, value: Tensor, scale: float = 1.0, groups: Groups = None) -> Tensor:
    """The sum over ranks, times scale; other reductions are not differentiated."""
    if reduce_type != collectives.REDUCE_SUM:
        return collectives.all_reduce(reduce_type, value, scale, groups)  # type: ignore[no-any-return]
    return _AllReduce.apply(value, scale, groups)  # type: ignore[no-untyped-call, no-any-return]


def all_gather(value: Tensor, dim: int = 0) -> Tensor:
    """The values of all ranks along `dim`, where there are several."""
    return value if world_size() == 1 else _AllGather.apply(value, dim)  # type: ignore[no-untyped-call, no-any-return]


SyncBatchNorm = torch.nn.SyncBatchNorm
__getattr__ = refusing(
    "torch_xla.core.functions", "there are all_reduce and all_gather", ("distributed_mm", "AllReduceSumLayer")
)
