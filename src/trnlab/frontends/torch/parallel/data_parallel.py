# SPDX-License-Identifier: Apache-2.0
"""`DistributedDataParallel` within a captured step: its gradients are averaged by collectives of the program.

Eager DDP reduces from C++, while the backward pass is under way; in a captured step each gradient is divided and
added up over the ranks where it is computed; the compiler puts those that do not wait for each other into buckets.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch.parallel.groups import ranks_of
from trnlab.frontends.torch.pytorch.functional import collectives as functional

Named = Sequence[tuple[str, Tensor, Tensor]]


@contextmanager
def forward_of_modules(model: nn.Module) -> Iterator[None]:
    """Within the block replicas run the module that they hold, and nothing of C++.

    Raises UnsupportedOpError (TRN266) for a replica with a communication hook, or within `no_sync`.
    """
    for replica in replicas(model):
        _check(replica)
    eager = DistributedDataParallel.forward
    DistributedDataParallel.forward = _forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel.forward = eager  # type: ignore[method-assign]


def average_gradients(model: nn.Module, named: Named) -> None:
    """Replace `.grad` of what stands for the parameters of replicas, in the model now, by the mean over the ranks.

    named: name, the parameter itself, and what stands for it.
    """
    for replica in replicas(model):
        ignored = replica.parameters_to_ignore
        own = {id(x) for name, x in replica.module.named_parameters() if name not in ignored}
        ranks = dist.get_world_size(replica.process_group)
        for *_, x in named if ranks > 1 else ():
            if id(x) in own and x.grad is not None:
                with torch.no_grad():
                    x.grad = _added_up(x.grad / ranks, replica.process_group)


def replicas(model: nn.Module) -> list[Any]:
    """The replicas that a model is, or has."""
    return [m for m in model.modules() if isinstance(m, DistributedDataParallel)]


def settings(model: nn.Module) -> dict[str, Hashable]:
    """What a captured step takes for granted of the replicas in a model, by names for people."""
    found: dict[str, Hashable] = {}
    for i, replica in enumerate(replicas(model)):
        label = f"DistributedDataParallel {i}"
        found |= {
            f"{label} reduces gradients": replica.require_backward_grad_sync,
            f"{label} sends buffers": replica.will_sync_module_buffers(),
            f"{label}'s ranks": ranks_of(replica.process_group),
            f"{label}.parameters_to_ignore": tuple(sorted(replica.parameters_to_ignore)),
            f"{label}'s communication hooks": tuple(_name_of(hook) for hook, *_ in replica._comm_hooks),
        }
    return found


def _forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
    """The module, its buffers as rank 0 has them where DDP would send them."""
    if self.will_sync_module_buffers() and dist.get_world_size(self.process_group) > 1:
        with torch.no_grad():
            own = [x for name, x in self.module.named_buffers() if name not in self.parameters_to_ignore]
            for bucket in _buckets(own, self.broadcast_bucket_size):
                _send(bucket, self.process_group)
    return self.module(*inputs, **kwargs)


def _buckets(buffers: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Buffers that go in one broadcast, as DDP sends them (`dist._broadcast_coalesced`): those of one format, until
    they have so many bytes."""
    open_: dict[torch.dtype, list[Tensor]] = {}
    for buffer in buffers:
        bucket = open_.setdefault(buffer.dtype, [])
        bucket.append(buffer)
        if sum(x.numel() * x.element_size() for x in bucket) >= size:
            yield open_.pop(buffer.dtype)
    yield from open_.values()


def _send(buffers: Sequence[Tensor], group: Any) -> None:
    """Give buffers of one format what those of rank 0 have, side by side in one tensor."""
    flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
    came = functional.wait_tensor(functional.broadcast(flat, 0, group))
    for buffer, part in zip(buffers, came.split([buffer.numel() for buffer in buffers])):
        buffer.copy_(part.view(buffer.shape))


def _added_up(gradient: Tensor, group: Any) -> Tensor:
    found: Tensor = functional.wait_tensor(functional.all_reduce(gradient, "sum", group))
    return found


def _name_of(hook: Any) -> str:
    return getattr(hook, "__name__", "a hook")


def _check(replica: Any) -> None:
    if replica._comm_hooks:
        hook = _name_of(replica._comm_hooks[0][0])
        raise UnsupportedOpError(
            f"DistributedDataParallel has a communication hook ({hook}), which is eager code",
            code="TRN266",
            limit="gradients averaged in their own format",
            got=hook,
            remedy="leave register_comm_hook out, and choose the format of the gradients in the model",
        )
    if not replica.require_backward_grad_sync:
        raise UnsupportedOpError(
            "a captured step is called within no_sync()",
            code="TRN266",
            limit="no no_sync",
            got="no_sync",
            remedy="accumulate within the step: let the loss function go over the micro-batches",
        )
