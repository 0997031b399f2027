# SPDX-License-Identifier: Apache-2.0
"""Collectives by the names of torch_xla.core.xla_model, over the backend `neuron` of `torch.distributed`.

None of them is differentiated; those of `torch_xla.core.functions` are. With one rank they return what they were
given. Layouts are not pinned: the arguments that say so change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trnlab.errors import UsageError
from trnlab.frontends.torch.xla.ranks import Groups, group_of, local_ordinal, ordinal, world_size

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"
_OPS = {
    REDUCE_SUM: dist.ReduceOp.SUM,
    REDUCE_MUL: dist.ReduceOp.PRODUCT,
    REDUCE_AND: dist.ReduceOp.BAND,
    REDUCE_OR: dist.ReduceOp.BOR,
    REDUCE_MIN: dist.ReduceOp.MIN,
    REDUCE_MAX: dist.ReduceOp.MAX,
}
Tensors = Sequence[Tensor]


def _op(reduce_type: str) -> Any:
    if reduce_type not in _OPS:
        raise UsageError(
            "no such reduction",
            code="TRN297",
            limit=", ".join(_OPS),
            got=reduce_type,
            remedy="xm.REDUCE_SUM and so on",
        )
    return _OPS[reduce_type]


def _scaled(value: Tensor, scale: float) -> Tensor:
    return value if scale == 1.0 else value.mul_(scale)


@torch.no_grad()
def all_reduce(
    reduce_type: str, inputs: Any, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True
) -> Any:
    """The reduction, then times scale: in new memory for a tensor, in place for a list, which is returned."""
    op, (group, ranks) = _op(reduce_type), group_of(groups)
    held = [inputs.clone()] if isinstance(inputs, Tensor) else list(inputs)
    for each in held:
        if len(ranks) > 1:
            dense = each if each.is_contiguous() else each.contiguous()
            dist.all_reduce(dense, op, group=group)
            if dense is not each:
                each.copy_(dense)
        _scaled(each, scale)
    return held[0] if isinstance(inputs, Tensor) else inputs


@torch.no_grad()
def all_gather(
    value: Any, dim: int = 0, groups: Groups = None, output: Any = None, pin_layout: bool = True, **_: Any
) -> Any:
    """The values of all ranks of the group, one after another along `dim`; of a list each."""
    if not isinstance(value, Tensor):
        outputs = output or [None] * len(value)
        return [all_gather(each, dim, groups, out) for each, out in zip(value, outputs, strict=True)]
    group, ranks = group_of(groups)
    if len(ranks) == 1:
        return _into(output, value.clone())
    parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in ranks]
    dist.all_gather(parts, value.contiguous(), group=group)
    return _into(output, torch.cat(parts, dim) if value.dim() else torch.stack(parts))


def all_gather_bucketized(
    input_list: Tensors,
    dim: int = 0,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = False,
    bucket_cap_mb: float = 160,
) -> list[Tensor]:
    """`all_gather` of a list."""
    return cast("list[Tensor]", all_gather(input_list, dim, groups, output))


def _into(output: Tensor | None, result: Tensor) -> Tensor:
    return result if output is None else output.copy_(result)


@torch.no_grad()
def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    """This rank's part along `scatter_dim` of the reduction, times scale; of a list each."""
    if not isinstance(input, Tensor):
        outputs = output or [None] * len(input)
        return [
            reduce_scatter(reduce_type, each, scale, scatter_dim, shard_count, groups, out)
            for each, out in zip(input, outputs, strict=True)
        ]
    op, (group, ranks) = _op(reduce_type), group_of(groups)
    _fits(input.size(scatter_dim), shard_count, len(ranks))
    if len(ranks) == 1:
        return _into(output, input * scale)
    parts = [part.contiguous() for part in input.chunk(shard_count, scatter_dim)]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, op, group=group)
    return _into(output, _scaled(mine, scale))


def _fits(size: int, shards: int, ranks: int) -> None:
    if shards != ranks or size % shards:
        raise UsageError(
            "a dimension is spread over ranks in equal parts",
            code="TRN297",
            limit=f"as many parts as the group has ranks ({ranks}), which divide the dimension",
            got=f"{size} by {shards}",
            remedy="pad the dimension, or pass shard_count=len(groups[0])",
        )


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = False,
    bucket_cap_mb: float = 160,
) -> Any:
    """`reduce_scatter` of a list."""
    return reduce_scatter(reduce_type, input_list, scale, scatter_dim, shard_count, groups, output)


@torch.no_grad()
def all_to_all(
    value: Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> Tensor:
    """Part i along one dimension goes to rank i of the group; what comes is put together along another."""
    group, ranks = group_of(groups)
    _fits(value.size(split_dimension), split_count, len(ranks))
    if len(ranks) == 1:
        return value.clone()
    parts = torch.stack([part.contiguous() for part in value.chunk(split_count, split_dimension)])
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts, group=group)
    return torch.cat(list(arrived.unbind()), concat_dimension)


@torch.no_grad()
def collective_permute(value: Tensor, pairs: Sequence[Sequence[int]]) -> Tensor:
    """Along each pair (source, target); zeros where no pair ends."""
    mine = ordinal()
    result = torch.zeros_like(value, memory_format=torch.contiguous_format)
    group_of(None)
    sent = value.contiguous()
    waits = [dist.isend(sent, target) for source, target in pairs if source == mine != target]
    for source, target in pairs:
        if target == mine:
            if source == mine:
                result.copy_(sent)
            else:
                dist.recv(result, source)
    for wait in waits:
        if wait is not None:
            wait.wait()
    return result


@torch.no_grad()
def collective_broadcast(
    tensors: Tensors, root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """The values of one rank in the memory of all."""
    group, ranks = group_of(groups)
    if len(ranks) == 1:
        return
    root = root_ordinal if root_ordinal in ranks else ranks[0]
    for tensor in tensors:
        dense = tensor.data.contiguous()
        dist.broadcast(dense, root, group=group)
        if dense.data_ptr() != tensor.data_ptr():
            tensor.data.copy_(dense)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Parameters and buffers of the first rank, in all."""
    collective_broadcast([*model.parameters(), *model.buffers()])


# -- objects -------------------------------------------------------------------------------------------------------
def gathered(value: Any) -> list[Any]:
    """The objects of all ranks."""
    if world_size() == 1:
        return [value]
    group_of(None)
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, value)
    return found


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait for all ranks, at the same tag; returns what each brought.

    Raises UsageError (TRN297) where ranks wait at different tags.
    """
    found = gathered((tag, payload))
    if len({there for there, _ in found}) > 1:
        raise UsageError(
            "ranks wait for each other at different places",
            code="TRN297",
            limit="one tag of xm.rendezvous",
            got=", ".join(f"rank {rank} at {there!r}" for rank, (there, _) in enumerate(found)),
            remedy="have all ranks call the same rendezvous in the same order",
        )
    return [found[rank][1] for rank in replicas or range(len(found))]


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """`rendezvous`, by torch_xla's other name."""
    return rendezvous(tag or "", payload, ordinals or ())


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """reduce_fn of the objects of all ranks."""
    return reduce_fn(gathered(data))


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this is the first rank: of its machine, or of all."""
    return (local_ordinal() if local else ordinal()) == 0


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] = (0,)) -> None:
    """target(*data) on some of the ranks; all meet afterwards."""
    if ordinal() in ordinals:
        target(*data)
    rendezvous("torch_xla.core.xla_model.do_on_ordinals")


# -- gradients ------------------------------------------------------------------------------------------------------
def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        p.grad.data
        for group in optimizer.__getstate__()["param_groups"]
        for p in group["params"]
        if isinstance(p, Tensor) and p.grad is not None
    ]


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True) -> None:
    """The mean of the gradients over all ranks; with `groups` their sum in the group, by the number of all ranks."""
    if world_size() > 1:
        all_reduce(REDUCE_SUM, _fetch_gradients(optimizer), 1.0 / world_size(), groups)


def all_reduce_bucketized_gradients(
    gradients: Any, scale: float, groups: Groups, pin_layout: bool, bucket_cap_mb: float = 0
) -> None:
    """`all_reduce` of a list."""
    all_reduce(REDUCE_SUM, list(gradients), scale, groups)
