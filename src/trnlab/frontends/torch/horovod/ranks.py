# SPDX-License-Identifier: Apache-2.0
"""Who takes part: the ranks of a job, and sets of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from trnlab.errors import UsageError


class ProcessSet:
    """Some of the ranks, once it is added; without ranks all of them."""

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        self.ranks = None if ranks is None else sorted(ranks)
        self.group: Any = None  # of torch.distributed; None is the default group, and what is not added yet
        self.process_set_id: int | None = 0 if ranks is None else None

    def included(self) -> bool:
        """Whether this rank is one of them."""
        return self.ranks is None or dist.get_rank() in self.ranks

    def size(self) -> int:
        """How many ranks it has."""
        return dist.get_world_size() if self.ranks is None else len(self.ranks)

    def rank(self) -> int:
        """The position of this rank in it. Raises ValueError where it has none."""
        return dist.get_rank() if self.ranks is None else self.ranks.index(dist.get_rank())

    def asked(self) -> Any:
        """The group of torch.distributed. Raises UsageError (TRN278) before the set was added."""
        if self.ranks is not None and self.process_set_id is None:
            raise UsageError(
                "a process set of Horovod takes part in nothing before it is added",
                code="TRN278",
                got=self.ranks,
                remedy="hvd.add_process_set(...), or hvd.init(process_sets=[...]), on all ranks",
            )
        return self.group


global_process_set = ProcessSet()
_added = [0]


def group_of(group: Any = None) -> Any:
    """What does the collectives of a group on the device."""
    chosen = dist.group.WORLD if group is None else group
    return chosen._get_backend(torch.device("neuron"))


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | None = None) -> None:
    """Meet the other ranks, which torchrun or `trnlab run --ranks` started; does nothing when that was done."""
    if not dist.is_initialized():
        alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("neuron", **alone)
    for each in process_sets or ():
        add_process_set(each)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """From now on these ranks do things among themselves, too. All ranks call it, in one order."""
    chosen = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if chosen.ranks is not None and chosen.process_set_id is None:
        _added[0] += 1
        chosen.process_set_id = _added[0]
        chosen.group = dist.new_group(chosen.ranks)
    return chosen


def remove_process_set(process_set: ProcessSet) -> bool:
    """Whether there was such a set; there is none after it."""
    known = process_set.ranks is not None and process_set.process_set_id is not None
    if known:
        process_set.process_set_id = process_set.group = None
    return known


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


def cross_rank() -> int:
    """Which machine this is."""
    return rank() // local_size()


def cross_size() -> int:
    """How many machines there are."""
    return -(-size() // local_size())


def is_homogeneous() -> bool:
    """Whether all machines have as many ranks."""
    return size() % local_size() == 0


def mpi_threads_supported() -> bool:
    """No: there is no MPI."""
    return False


def gloo_enabled() -> bool:
    """Yes: bytes travel over gloo."""
    return True


def nccl_built() -> int:
    """0: there is no NCCL."""
    return 0


mpi_enabled = mpi_built = ddl_built = ccl_built = cuda_built = rocm_built = mpi_threads_supported
gloo_built = gloo_enabled
