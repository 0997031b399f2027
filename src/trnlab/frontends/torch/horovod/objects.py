# SPDX-License-Identifier: Apache-2.0
"""Objects, parameters and the state of optimizers for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trnlab.frontends.torch.horovod.calls import broadcast_
from trnlab.frontends.torch.horovod.ranks import ProcessSet, global_process_set, rank


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object."""
    held = [obj]
    dist.broadcast_object_list(held, root_rank, group=process_set.asked())
    return held[0]


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """`broadcast_object` from one root."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks."""
    held: list[Any] = [None] * process_set.size()
    dist.all_gather_object(held, obj, group=process_set.asked())
    return held


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Give all ranks the root's values: of a state_dict(), of pairs of names and tensors, or of tensors."""
    given = sorted(params.items(), key=lambda pair: str(pair[0])) if hasattr(params, "items") else list(params)
    for each in given:
        value = each[1] if isinstance(each, tuple) else each
        if isinstance(value, Tensor):
            broadcast_(value, root_rank, process_set=process_set)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None, process_set: ProcessSet = global_process_set
) -> None:
    """Give all ranks the root's state of the optimizer and its settings. Gradients that are not there are zero after
    it where there was no state, as Horovod leaves them."""
    if not optimizer.state_dict()["state"]:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    state = optimizer.state_dict()
    for_all = broadcast_object(_on_host(state) if rank() == root_rank else None, root_rank, process_set=process_set)
    optimizer.load_state_dict(for_all)


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_host(each) for key, each in value.items()}
    return [_on_host(each) for each in value] if isinstance(value, list | tuple) else value
