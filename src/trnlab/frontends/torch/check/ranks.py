# SPDX-License-Identifier: Apache-2.0
"""One rank of many, followed alone: PyTorch's process groups of which the other ranks do not exist.

A script that is followed without values is told that it is one rank of a world; whatever backend
`init_process_group` names, it makes a group that counts, and so do groups and device meshes. Eager collectives do
nothing to tensors, which have no values, and are timed by the fabric (`counting`); those of compiled code are ops of
its program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from trnlab.chips.catalog import Target
from trnlab.errors import UsageError
from trnlab.estimate.job import RANKS_WANTED
from trnlab.fabric.cluster import CORES_PER_RANK, Cluster
from trnlab.frontends.torch.check.counting import Ledger, created
from trnlab.frontends.torch.check.live_objects import alive
from trnlab.frontends.torch.pytorch import sharding
from trnlab.frontends.torch.pytorch.collectives import NEW_GROUP, groups, register_backend
from trnlab.runtime.communication import UntimedCollective
from trnlab.runtime.session import Session

NAME = "neuron"
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # by torchrun
DATA = ("dp", "data", "data_parallel", "ddp", "fsdp", "replicate", "dp_replicate", "shard", "dp_shard", "batch")


@contextmanager
def one_of(cluster: Cluster, rank: int, size: int) -> Iterator[None]:
    """Within the block the process is rank `rank` of `size` on the cluster, as torchrun would tell it."""
    here = _Rank(cluster, size, rank)
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, here.environment()))
        stack.enter_context(_counting_backend(here))
        stack.enter_context(_replaced(here))
        stack.callback(_here.remove, here)
        _here.append(here)
        stack.enter_context(patch.object(_Earlier, "parts", _parts()))
        stack.enter_context(patch.object(sharding.parameters, "_chunk_with_empty", Chunks))
        yield


def asks_for_ranks(error: BaseException) -> bool:
    """Whether a script failed because nobody told it which rank of a job it is: in `init_process_group`, which reads
    that from the environment, or where the script reads it there itself."""
    if isinstance(error, KeyError):
        return any(isinstance(name, str) and name in TOLD for name in error.args)
    return isinstance(error, ValueError) and "env:// rendezvous" in str(error)


def alone(session: Session) -> UsageError:
    """For a script of several ranks that was followed as a process without others."""
    whole = Cluster(session.target, 1)
    return UsageError(
        "the script is one rank of several, and these are followed for one target at a time",
        code=RANKS_WANTED,
        remedy=f"--target {whole.name} alone, whose {whole.ranks} ranks it then gets; --ranks N: fewer, "
        f"--target 4x{whole.name}: those of four instances",
    )


@dataclass
class _Rank:
    """Which rank of a job this process is now. leave: lets go of its groups."""

    cluster: Cluster
    size: int
    rank: int
    leave: Callable[[], None] = lambda: None

    def environment(self) -> dict[str, str]:
        """As torchrun makes it."""
        each = self.size // self.cluster.instances
        told = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.rank % each,
            "LOCAL_WORLD_SIZE": each,
            "GROUP_RANK": self.rank // each,
            "GROUP_WORLD_SIZE": self.cluster.instances,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": 29500,
            "TORCHELASTIC_RUN_ID": "trnlab",
        }
        return {name: str(value) for name, value in told.items()}


_here: list[_Rank] = []


def become(rank: int) -> None:
    """Within `one_of`: from now on the process is another rank of the job, which has no groups yet."""
    here = _here[-1]
    here.leave()
    here.rank = rank
    os.environ.update(here.environment())
    asked()


class Chunks:
    """The chunks of a tensor along a dimension as FSDP2 makes them, empty ones at the end, each when it is asked for:
    a rank keeps one of them, and of thousands of ranks the others' would take most of the time."""

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._each = -(-tensor.shape[dim] // num_chunks)

    def __getitem__(self, number: int) -> Tensor:
        """As `torch.chunk` gives it; 1-D and without elements past the last of those."""
        start = number * self._each
        count = min(self._each, self._tensor.shape[self._dim] - start)
        if start and count <= 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, count)


class _Earlier:
    """What of an earlier job in this process has not been collected when one begins: its groups may bear the names
    of this job's. The objects are held, so that none of this job's gets the address of one of them."""

    parts: tuple[Any, ...] = ()


def _parts() -> tuple[Any, ...]:
    """Replicas, shards and device meshes that are alive in this process."""
    return tuple(alive(DistributedDataParallel, FSDPModule, DeviceMesh))


@contextmanager
def _replaced(here: _Rank) -> Iterator[None]:
    """Within the block every group is of the fake backend, no store waits for anybody, and the script's last line
    does not take away the groups that the report asks for."""
    init, new, destroy = dist.init_process_group, getattr(*NEW_GROUP), dist.destroy_process_group
    ended: list[Any] = []

    def begin(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        if ended:
            ended.clear()
            destroy()
        passed_on = {name: value for name, value in kwargs.items() if name in ("group_name", "timeout")}
        init(NAME, store=dist.HashStore(), rank=here.rank, world_size=here.size, **passed_on)

    def group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return new(ranks, timeout, None, *args, **kwargs)

    def end(which: Any = None) -> None:
        ended.append(which)

    def leave() -> None:
        ended.clear()
        if dist.is_initialized():
            destroy()

    here.leave = leave

    with (
        patch.object(dist, "destroy_process_group", end),
        patch.object(dist, "init_process_group", begin),
        patch.object(c10d, "init_process_group", begin),
        patch.object(device_mesh, "init_process_group", begin),
        patch.object(*NEW_GROUP, group),
    ):
        try:
            yield
        finally:
            leave()


@contextmanager
def _counting_backend(here: _Rank) -> Iterator[None]:
    """Within the block the backend `neuron` is one that counts, for tensors of the host, too."""
    ledger = Ledger()

    def made(common: Any, options: Any) -> Any:
        return created(common, here.rank, here.size, ledger)

    if NAME not in dist.Backend.backend_list:
        register_backend(NAME, made, ["cpu", "neuron"])
    plugin = type(dist.Backend._plugins[NAME.upper()])(made, True)
    with (
        patch.dict(dist.Backend._plugins, {NAME.upper(): plugin}),
        patch.dict(dist.Backend.backend_capability, {NAME: ["cpu", "neuron"]}),
    ):
        _ledgers.append(ledger)
        try:
            yield
        finally:
            _ledgers.remove(ledger)


_ledgers: list[Ledger] = []


def asked() -> list[UntimedCollective]:
    """What was exchanged outside of compiled code since this was last asked; nothing where no rank is followed."""
    return _ledgers[-1].take() if _ledgers else []


def batches() -> int:
    """How many batches all ranks have in a step, as the script's own parts say: 0 where nothing says it.

    Replicas say it, device meshes with a dimension for data, shards of parameters, in this order.
    """
    replicas, meshes, sharded = [0], [0], [0]
    earlier = {id(part) for part in _Earlier.parts}
    for thing in _parts():
        kind = type(thing)
        if id(thing) in earlier:
            continue
        if issubclass(kind, DistributedDataParallel) and _lives(thing.process_group):
            replicas.append(dist.get_world_size(thing.process_group))
        elif issubclass(kind, FSDPModule):
            group = thing._get_fsdp_state()._fsdp_param_group
            if group is not None:
                sharded += [int(mesh.size()) for mesh in (group.mesh_info.mesh,) if _of_this_job(mesh)]
        elif issubclass(kind, DeviceMesh) and thing.mesh_dim_names and _of_this_job(thing):
            sizes = [n for n, name in zip(thing.shape, thing.mesh_dim_names) if name in DATA]
            meshes.append(prod(sizes) if sizes else 0)
    return next((max(found) for found in (replicas, meshes, sharded) if max(found)), 0)


def _lives(group: Any) -> bool:
    """Whether a group is one of those that the script has made, and not of an earlier job in this process."""
    return group in groups()


def _of_this_job(mesh: Any) -> bool:
    try:
        return _lives(mesh.get_group(0))
    except (RuntimeError, ValueError, KeyError, AssertionError):
        return False


def notes(targets: Sequence[Target]) -> list[str]:
    """What a reader should know of the times of ranks on these targets."""
    joined = [t.chip.name for t in targets if CORES_PER_RANK.get(t.chip.name, 1) > 1]
    return [
        f"a rank of {name} is a logical core of two NeuronCores, which share every call whose work splits along its "
        "results; the others are timed on one (ADR 61)"
        for name in dict.fromkeys(joined)
    ]
