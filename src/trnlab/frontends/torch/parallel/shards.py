# SPDX-License-Identifier: Apache-2.0
"""Shards of a unit of `fully_shard` as tensors: gathered to whole parameters, gradients reduced to shards.

Both are one coalesced functional collective for a unit. Shards are padded to the size of rank 0's, as FSDP's are, and
the dimension that is sharded is the first one on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from trnlab.frontends.torch.parallel import sharded
from trnlab.frontends.torch.pytorch.collectives import operators as functional


def local_part(parameter: Any) -> Tensor:
    """What this rank has of a sharded parameter; its gradient is a shard, too."""
    found: Tensor = parameter.to_local(grad_placements=parameter.placements)
    return found


def placed(param: Any, full: Tensor) -> Tensor:
    """A whole parameter; of one that is distributed over other dimensions of the mesh too, what they leave of it."""
    from torch.distributed.tensor import DTensor

    spec = param._unsharded_dtensor_spec
    if spec is None:
        return full
    return DTensor.from_local(full, spec.mesh, spec.placements, run_check=False, shape=spec.shape, stride=spec.stride)


def gather(group: Any, parts: Sequence[Tensor]) -> list[Tensor]:
    """The whole parameters of a group, in the format in which they compute."""
    params, ranks = group.fsdp_params, _ranks(group)
    given = [_padded(x.to(p.param_dtype or x.dtype), p.padded_sharded_param_size) for p, x in zip(params, parts)]
    if ranks == 1:
        return [_whole(p, x, 1) for p, x in zip(params, given)]
    name = group._all_gather_process_group.group_name
    found = functional.all_gather_into_tensor_coalesced(given, ranks, name)
    return [_whole(p, functional.wait_tensor(x), ranks) for p, x in zip(params, found)]


def reduce(group: Any, gradients: Sequence[Any]) -> list[Tensor | None]:
    """This rank's shards of the gradients' mean over the ranks; None for those that nobody computed."""
    present = [i for i, g in enumerate(gradients) if g is not None]
    params = [group.fsdp_params[i] for i in present]
    reduced = _reduced(group, params, [sharded.local(gradients[i]) for i in present]) if present else []
    found: list[Tensor | None] = [None] * len(gradients)
    for i, x in zip(present, reduced):
        found[i] = x
    return found


def _reduced(group: Any, params: Sequence[Any], gradients: Sequence[Tensor]) -> list[Tensor]:
    from trnlab.frontends.torch.pytorch.sharding import (
        DDPMeshInfo,
        FSDPMeshInfo,
        dtype_of_gradient,
        dtype_of_reduction,
        gradient_factors,
    )

    dtype = dtype_of_reduction(group, params, gradients)
    ranks = _ranks(group)
    scatters = group._reduce_scatter_process_group if isinstance(group.mesh_info, FSDPMeshInfo) else None
    adds = group._all_reduce_process_group if isinstance(group.mesh_info, DDPMeshInfo) else None
    before, after, scatter_op, add_op = gradient_factors(
        scatters, adds, dtype, group.device.type, group.gradient_divide_factor, group.force_sum_reduction_for_comms
    )
    xs = [_divided(_stacked(p, g.to(dtype), ranks), before) for p, g in zip(params, gradients)]
    if ranks > 1:
        assert scatters is not None
        xs, op = _scaled(xs, scatter_op)
        xs = functional.reduce_scatter_tensor_coalesced(xs, op, ranks, scatters.group_name)
        xs = [functional.wait_tensor(x) for x in xs]
    elif group.gradient_divide_factor is not None:
        xs = [x / group.gradient_divide_factor for x in xs]
    if adds is not None and adds.size() > 1:
        xs, op = _scaled(xs, add_op)
        xs = [functional.wait_tensor(x) for x in functional.all_reduce_coalesced(xs, op, adds.group_name)]
    return [
        _divided(x, after).to(dtype_of_gradient(group, p)).narrow(0, 0, p.sharded_size[0])
        if p.fsdp_placement.dim == 0
        else _divided(x, after).to(dtype_of_gradient(group, p)).view(p.sharded_size)
        for p, x in zip(params, xs)
    ]


def _ranks(group: Any) -> int:
    from trnlab.frontends.torch.pytorch.sharding import FSDPMeshInfo

    return int(group.mesh_info.shard_mesh_size) if isinstance(group.mesh_info, FSDPMeshInfo) else 1


def _padded(x: Tensor, size: Sequence[int]) -> Tensor:
    missing = size[0] - x.shape[0]
    return torch.cat([x, x.new_zeros((missing, *size[1:]))]) if missing else x


def _whole(param: Any, stacked: Tensor, ranks: int) -> Tensor:
    """The parameter, of the shards of all ranks one behind the other."""
    dim = param.fsdp_placement.dim
    if dim:
        return torch.cat(stacked.chunk(ranks), dim=dim)
    rows = param._orig_size[0]
    return stacked.narrow(0, 0, rows).clone() if rows < stacked.shape[0] else stacked


def _stacked(param: Any, gradient: Tensor, ranks: int) -> Tensor:
    """A whole gradient as shards one behind the other."""
    dim = param.fsdp_placement.dim
    if dim:
        return torch.cat(gradient.chunk(ranks, dim))
    return _padded(gradient, (ranks * param.padded_sharded_param_size[0], *gradient.shape[1:]))


def _divided(x: Tensor, by: float | None) -> Tensor:
    return x if by is None or by == 1 else x / by


def _scaled(xs: Sequence[Tensor], op: Any) -> tuple[list[Tensor], str]:
    """The tensors and the name of the reduction, for what torch.distributed calls one."""
    if op == ReduceOp.AVG:
        return list(xs), "avg"
    if op == ReduceOp.SUM:
        return list(xs), "sum"
    factor = op.__getstate__()[1]  # of ReduceOp.PREMUL_SUM
    return [x * factor for x in xs], "sum"
