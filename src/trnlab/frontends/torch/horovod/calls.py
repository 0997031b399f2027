# SPDX-License-Identifier: Apache-2.0
"""Collectives by Horovod's names. Those that end in `async` return a handle for `poll` and `synchronize`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from trnlab.errors import CollectiveError, UsageError
from trnlab.frontends.torch.horovod.compression import Compression
from trnlab.frontends.torch.horovod.ranks import ProcessSet, global_process_set, group_of

Average, Sum, Adasum, Min, Max, Product = "average", "sum", "adasum", "min", "max", "product"
_OPS = {
    Average: dist.ReduceOp.AVG,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}
_numbers = itertools.count(1)
_handles: dict[int, tuple[list[Any], Callable[[], Any]]] = {}  # what is waited for, and what is there then
_names: dict[int, str] = {}  # that scripts gave to what is on its way


def _handle(works: Iterable[Any], finish: Callable[[], Any], name: str | None = None) -> int:
    number = next(_numbers)
    _handles[number] = ([work for work in works if work is not None], finish)
    if name is not None:
        _names[number] = name
    return number


def _unused(name: str | None) -> None:
    """Raises ValueError for the name of what is on its way: two cannot be told from each other."""
    if name is not None and name in _names.values():
        raise ValueError(f"a call of the name {name!r} is on its way: synchronize its handle before the next")


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once."""
    return handle not in _handles or all(work.is_completed() for work in _handles[handle][0])


def synchronize(handle: int) -> Any:
    """Wait for what a handle stands for; returns its result."""
    works, finish = _handles.pop(handle)
    _names.pop(handle, None)
    for work in works:
        work.wait()
    return finish()


def _memory(tensor: Tensor) -> Tensor:
    return tensor.data if tensor.requires_grad else tensor


def _fresh(tensor: Tensor) -> Tensor:
    if tensor.is_sparse:
        return tensor.detach().clone()
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _scale(tensor: Tensor, factor: float) -> Tensor:
    """The same tensor; whole numbers are multiplied as numbers with a fraction, which is cut off."""
    if factor == 1:
        return tensor
    if tensor.is_floating_point():
        return tensor.mul_(factor)
    exact = torch.float64 if tensor.device.type == "cpu" else torch.float32
    return tensor.copy_((tensor.to(exact) * factor).to(tensor.dtype))


def _chosen(average: bool | None, op: str | None) -> str:
    if average is not None and op is not None:
        raise ValueError("the op parameter supersedes average: please provide only one of them")
    return op or (Sum if average is False else Average)


# -- reductions ---------------------------------------------------------------------------------------------------
def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduce in place: the mean, unless `op` (or `average=False`) says otherwise."""
    return grouped_allreduce_async_(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set, _alone=True
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    _alone: bool = False,
) -> int:
    """Reduce several in place."""
    chosen, group = _chosen(average, op), process_set.asked()
    _unused(name)
    held = [_scale(_memory(tensor), prescale_factor) for tensor in tensors]
    if chosen == Adasum:
        _power_of_two(process_set.size())
        gathered = [_gathered(each, process_set) for each in held]
    else:
        gathered = []
        works = [dist.all_reduce(each, _OPS[chosen], group=group, async_op=True) for each in held]

    def finish() -> Any:
        for each, (_, parts) in zip(held, gathered):
            each.copy_(_adaptive_sum(parts))
        for each in held:
            _scale(each, postscale_factor)
        return tensors[0] if _alone else list(tensors)

    return _handle([work for work, _ in gathered] if gathered else works, finish, name)


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: str, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """The sum or mean of sparse tensors, whose places and values are gathered; a call of the result waits for it."""
    one = tensor.coalesce()
    handles = [allgather_async(part, None, process_set) for part in (one.indices().t().contiguous(), one.values())]

    def finish() -> Tensor:
        places, values = (synchronize(handle) for handle in handles)
        shared = values / process_set.size() if op == Average else values
        return torch.sparse_coo_tensor(places.t(), shared, tensor.shape, check_invariants=False).coalesce()

    return finish


def _gathered(tensor: Tensor, process_set: ProcessSet) -> tuple[Any, list[Tensor]]:
    parts = [torch.empty_like(tensor) for _ in range(process_set.size())]
    return dist.all_gather(parts, tensor.contiguous(), group=process_set.asked(), async_op=True), parts


def _power_of_two(ranks: int) -> None:
    if ranks & (ranks - 1):
        raise UsageError(
            "Horovod's Adasum adds in pairs",
            code="TRN279",
            limit="a power of two of ranks",
            got=ranks,
            remedy="use as many ranks, or op=hvd.Average",
        )


def _adaptive_sum(parts: Sequence[Tensor]) -> Tensor:
    """Adasum (https://arxiv.org/abs/2006.02924): what two gradients have in common counts once, pair by pair."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    first, second = _adaptive_sum(parts[:half]), _adaptive_sum(parts[half:])
    common = (first.float() * second.float()).sum()
    shares = [(1 - common / (2 * (each.float() ** 2).sum().clamp(min=1e-38))) for each in (first, second)]
    return (first.float() * shares[0] + second.float() * shares[1]).to(first.dtype)


def allreduce_(*args: Any, **kwargs: Any) -> Tensor:
    """Reduce in place, and wait. Arguments of `allreduce_async_`."""
    return synchronize(allreduce_async_(*args, **kwargs))  # type: ignore[no-any-return]


def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> int:
    """The reduction, in new memory. Arguments of `allreduce_async_`."""
    return allreduce_async_(_fresh(tensor), *args, **kwargs)


def grouped_allreduce_(*args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduce several in place, and wait. Arguments of `grouped_allreduce_async_`."""
    return synchronize(grouped_allreduce_async_(*args, **kwargs))  # type: ignore[no-any-return]


def grouped_allreduce_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> int:
    """The reductions, in new memory. Arguments of `grouped_allreduce_async_`."""
    return grouped_allreduce_async_([_fresh(tensor) for tensor in tensors], *args, **kwargs)


class _Allreduce(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *settings: Any) -> Tensor:
        ctx.settings = settings
        return synchronize(allreduce_async(tensor, *settings))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return synchronize(allreduce_async(grads[0], *ctx.settings)), *[None] * len(ctx.settings)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The reduction, in new memory; gradients of it are reduced likewise."""
    small, context = compression.compress(tensor)
    reduced = _Allreduce.apply(small, average, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)  # type: ignore[no-any-return]


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """The reductions of several."""
    settings = (compression, op, prescale_factor, postscale_factor, process_set)
    return [allreduce(tensor, average, name, *settings) for tensor in tensors]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """This rank's rows of the reduction; where they do not divide, the first ranks have one more."""
    _unused(name)
    if op == Adasum:
        raise NotImplementedError("Horovod has no Adasum of parts: allreduce(op=hvd.Adasum), or another op")
    ranks, position = process_set.size(), process_set.rank()
    given = _scale(_fresh(_rows(tensor)), prescale_factor)
    rows = [given.shape[0] // ranks + (each < given.shape[0] % ranks) for each in range(ranks)]
    out = given.new_empty((rows[position], *given.shape[1:]))
    work = dist.reduce_scatter(out, list(given.split(rows)), _OPS[op], group=process_set.asked(), async_op=True)
    return _handle([work], lambda: _scale(out, postscale_factor), name)


def _rows(tensor: Tensor) -> Tensor:
    if not tensor.dim():
        raise CollectiveError(
            "a number has no rows that ranks could share",
            code="TRN277",
            got="a tensor without dimensions",
            remedy="tensor.reshape(1)",
        )
    return tensor


class _Reducescatter(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, op: str, process_set: ProcessSet, *factors: float) -> Tensor:
        ctx.op, ctx.process_set = op, process_set
        return synchronize(reducescatter_async(tensor, name, op, process_set, *factors))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        given = grads[0] * ctx.process_set.size() if ctx.op == Sum else grads[0]  # as Horovod has it
        return synchronize(allgather_async(given, None, ctx.process_set)), *[None] * 5


def reducescatter(
    tensor: Tensor,
    compression: Any = Compression.none,
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """This rank's rows of the reduction."""
    small, context = compression.compress(tensor)
    mine = _Reducescatter.apply(small, name, op, process_set, prescale_factor, postscale_factor)
    return compression.decompress(mine, context)  # type: ignore[no-any-return]


def grouped_reducescatter(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduce-scatter several tensors at once. Arguments of `reducescatter`."""
    return [reducescatter(tensor, *args, **kwargs) for tensor in tensors]


def grouped_reducescatter_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> int:
    """Reduce-scatter several tensors at once. Arguments of `reducescatter_async`."""
    return _all([reducescatter_async(tensor, *args, **kwargs) for tensor in tensors])


def _all(handles: Sequence[int]) -> int:
    """One handle for several."""
    works = [work for handle in handles for work in _handles[handle][0]]
    return _handle(works, lambda: [synchronize(handle) for handle in handles])


# -- gathering ----------------------------------------------------------------------------------------------------
def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """The tensors of all ranks, joined along the first dimension, in which they may differ."""
    _unused(name)
    given = _fresh(_rows(tensor))
    rows: list[Any] = [None] * process_set.size()
    dist.all_gather_object(rows, given.shape[0], group=process_set.asked())
    parts = [given.new_empty((count, *given.shape[1:])) for count in rows]
    work = dist.all_gather(parts, given, group=process_set.asked(), async_op=True)
    return _handle([work], lambda: torch.cat(parts), name)


class _Allgather(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Any, process_set: ProcessSet) -> Tensor:
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        return synchronize(allgather_async(tensor, name, process_set))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        total = synchronize(allreduce_async(grads[0], op=Average, process_set=ctx.process_set))  # as Horovod has it
        rows: list[Any] = [None] * ctx.process_set.size()
        dist.all_gather_object(rows, ctx.rows, group=ctx.process_set.asked())
        return total.narrow(0, sum(rows[: ctx.process_set.rank()]), ctx.rows), None, None


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """The tensors of all ranks, joined along the first dimension, in which they may differ."""
    return _Allgather.apply(tensor, name, process_set)  # type: ignore[no-any-return,no-untyped-call]


def grouped_allgather(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """All-gather several tensors at once. Arguments of `allgather`."""
    return [allgather(tensor, *args, **kwargs) for tensor in tensors]


def grouped_allgather_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> int:
    """All-gather several tensors at once. Arguments of `allgather_async`."""
    return _all([allgather_async(tensor, *args, **kwargs) for tensor in tensors])


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Rows for each rank, as many as `splits` says, and those of each rank for this one. With splits the result is a
    pair, with the splits of what came."""
    _unused(name)
    given, group, ranks = _fresh(_rows(tensor)), process_set.asked(), process_set.size()
    gives = [int(n) for n in splits] if splits is not None else [given.shape[0] // ranks] * ranks
    if len(gives) != ranks or sum(gives) != given.shape[0]:
        raise ValueError(f"{gives} are no splits of {given.shape[0]} rows for {ranks} ranks")
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, gives, group=group)
    takes = [each[process_set.rank()] for each in everyone]
    out = given.new_empty((sum(takes), *given.shape[1:]))
    work = dist.all_to_all_single(out, given, takes, gives, group=group, async_op=True)
    received = torch.tensor(takes, dtype=torch.int32)
    return _handle([work], lambda: out if splits is None else (out, received), name)


class _Alltoall(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: Any, process_set: ProcessSet) -> Any:
        ranks = process_set.size()
        even = [tensor.shape[0] // ranks] * ranks
        out, ctx.received = synchronize(alltoall_async(tensor, even if splits is None else splits, name, process_set))
        ctx.process_set = process_set
        ctx.mark_non_differentiable(ctx.received)
        return out, ctx.received

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        back, _ = synchronize(alltoall_async(grads[0], ctx.received, None, ctx.process_set))
        return back, None, None, None


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Rows for each rank, and those of each rank for this one; see `alltoall_async`."""
    out, received = _Alltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    return out if splits is None else (out, received)


# -- from one rank ------------------------------------------------------------------------------------------------
def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """The root's values, in place."""
    _unused(name)
    work = dist.broadcast(_memory(tensor), root_rank, group=process_set.asked(), async_op=True)
    return _handle([work], lambda: tensor, name)


def broadcast_(*args: Any, **kwargs: Any) -> Tensor:
    """The root's values, in place. Arguments of `broadcast_async_`."""
    return synchronize(broadcast_async_(*args, **kwargs))  # type: ignore[no-any-return]


def broadcast_async(tensor: Tensor, *args: Any, **kwargs: Any) -> int:
    """The root's values, in new memory. Arguments of `broadcast_async_`."""
    return broadcast_async_(_fresh(tensor), *args, **kwargs)


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: Any, process_set: ProcessSet) -> Tensor:
        ctx.root, ctx.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        total = synchronize(allreduce_async(grads[0], op=Average, process_set=ctx.process_set))  # as Horovod has it
        return (total if dist.get_rank() == ctx.root else torch.zeros_like(total)), None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The root's values, in new memory."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-any-return,no-untyped-call]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Nobody goes on before all are there."""
    dist.barrier(group=process_set.asked())


def join(device: int = -1) -> int:
    """This rank has no more data: it adds zeros to what the others reduce, until all have joined. Returns the rank
    that was the last. Means are over all ranks. Other collectives of the rest raise HorovodInternalError (TRN287)."""
    return int(group_of(global_process_set.asked()).join())
