# SPDX-License-Identifier: Apache-2.0
"""The calls of `horovod.torch` that training scripts use, over the backend `neuron` of `torch.distributed`.

    import trnlab.frontends.torch.horovod as hvd

Names, arguments and defaults are those of https://horovod.readthedocs.io/en/stable/api.html#module-horovod.torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Average, Sum, Min, Max, Product = "average", "sum", "min", "max", "product"
_OPS = {
    Average: dist.ReduceOp.AVG, Sum: dist.ReduceOp.SUM, Min: dist.ReduceOp.MIN, Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}  # fmt: skip


def init() -> None:
    """Meet the other ranks, which torchrun or `trnlab run --ranks` started; does nothing when that was done."""
    if not dist.is_initialized():
        alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("neuron", **alone)


def shutdown() -> None:
    """Leave."""
    if dist.is_initialized():
        dist.destroy_process_group()


is_initialized = dist.is_initialized


def rank() -> int:
    """Which rank this is."""
    return dist.get_rank()


def size() -> int:
    """How many ranks there are."""
    return dist.get_world_size()


def local_rank() -> int:
    """Which rank of this machine it is."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def local_size() -> int:
    """How many ranks this machine has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or dist.get_world_size())


def allreduce_(tensor: Tensor, average: bool | None = None, name: str | None = None, op: str | None = None) -> Tensor:
    """Reduce in place: the mean, unless `op` (or `average=False`) says otherwise."""
    chosen = op or (Sum if average is False else Average)
    dist.all_reduce(tensor.data if tensor.requires_grad else tensor, _OPS[chosen])
    return tensor


def allreduce(tensor: Tensor, average: bool | None = None, name: str | None = None, op: str | None = None) -> Tensor:
    """The reduction, in new memory."""
    return allreduce_(tensor.detach().clone(), average, name, op)


def allgather(tensor: Tensor, name: str | None = None) -> Tensor:
    """The tensors of all ranks, joined along the first dimension, in which they may differ."""
    rows: list[Any] = [None] * size()
    dist.all_gather_object(rows, tensor.shape[0])
    parts = [tensor.new_empty((count, *tensor.shape[1:])) for count in rows]
    dist.all_gather(parts, tensor.detach().contiguous())
    return torch.cat(parts)


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """The root's values, in place."""
    dist.broadcast(tensor.data if tensor.requires_grad else tensor, root_rank)
    return tensor


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """The root's values, in new memory."""
    return broadcast_(tensor.detach().clone(), root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The root's object."""
    held = [obj]
    dist.broadcast_object_list(held, root_rank)
    return held[0]


def barrier() -> None:
    """Nobody goes on before all are there."""
    dist.barrier()


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give all ranks the root's values: of a state_dict(), or of pairs of names and tensors."""
    pairs = params.items() if hasattr(params, "items") else params
    for _, value in sorted(pairs, key=lambda pair: str(pair[0])):
        if isinstance(value, Tensor):
            broadcast_(value, root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Give all ranks the root's state of the optimizer and its settings."""
    state = optimizer.state_dict()
    for_all = broadcast_object(_on_host(state) if rank() == root_rank else None, root_rank)
    optimizer.load_state_dict(for_all)


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_host(each) for key, each in value.items()}
    return [_on_host(each) for each in value] if isinstance(value, list | tuple) else value


class _Distributed:
    """What `DistributedOptimizer` adds to an optimizer's class: gradients are reduced while backward goes on."""

    def _distribute(self: Any, passes: int, op: str) -> None:
        self._passes, self._op = passes, _OPS[op]
        self._left: dict[Tensor, int] = {}
        self._works: list[tuple[Any, Tensor]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._left[parameter] = passes
                    parameter.register_post_accumulate_grad_hook(self._reduce)

    def _reduce(self: Any, parameter: Tensor) -> None:
        self._left[parameter] -= 1
        if self._left[parameter] == 0:
            self._works.append((dist.all_reduce(parameter.grad, self._op, async_op=True), parameter))

    def synchronize(self: Any) -> None:
        """Wait until all gradients are those of all ranks; parameters without a gradient count as zero there."""
        for parameter, left in self._left.items():
            if left == self._passes and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if left > 0:
                self._works.append((dist.all_reduce(parameter.grad, self._op, async_op=True), parameter))
        for work, _ in self._works:
            work.wait()
        self._works.clear()
        self._left = dict.fromkeys(self._left, self._passes)

    def step(self: Any, closure: Any = None) -> Any:
        """Synchronize, then the step of the optimizer that this one was made of."""
        self.synchronize()
        return super().step(closure)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = None, backward_passes_per_step: int = 1, op: str = Average,
) -> Any:  # fmt: skip
    """The optimizer, whose `step` uses gradients that are reduced over all ranks.

    `backward_passes_per_step`: gradients of so many backward passes are added up before they are reduced.
    """
    cls = type(optimizer)
    optimizer.__class__ = type(cls.__name__, (_Distributed, cls), {})
    optimizer._distribute(backward_passes_per_step, op)  # type: ignore[attr-defined]
    return optimizer
