# SPDX-License-Identifier: Apache-2.0
"""The numbers that a process may call its only device by."""

from __future__ import annotations

import multiprocessing
import os

import torch
import torch.distributed as dist

from trnlab.errors import UsageError

_own_number: dict[str, int | None] = {}  # the number that a spawned process calls its device by


def only_device(device: torch.device) -> torch.device:
    """The device itself. Raises UsageError for a neuron device that is not this process's: there is one."""
    if device.type == "neuron":
        only_index(device.index)
    return device


def only_index(index: int | None) -> int:
    """The number of the device by the number that a script calls it: on ranks that of the rank on its instance, too,
    and in a process of `torch.multiprocessing.spawn`, before it has a group, the first one that it is called by.

    Raises UsageError (TRN151) for any other.
    """
    if index in (None, 0) or index == local_rank():
        return 0
    spawned = "LOCAL_WORLD_SIZE" not in os.environ and multiprocessing.parent_process() is not None
    if not spawned or _in_a_group() or _own_number.setdefault("by", index) != index:
        raise no_such_device(index)
    return 0


def local_rank() -> int:
    """Which of the ranks on this instance the process is; the rank of its group where no launcher has said it, as in
    processes of `torch.multiprocessing.spawn`."""
    if local_ranks() == 1:
        return 0
    said = os.environ.get("LOCAL_RANK")
    return int(said or 0) if said is not None or not _in_a_group() else dist.get_rank()


def local_ranks() -> int:
    """How many ranks there are on this instance."""
    said = os.environ.get("LOCAL_WORLD_SIZE")
    return int(said or 1) if said is not None or not _in_a_group() else dist.get_world_size()


def _in_a_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def no_such_device(index: object) -> UsageError:
    """The refusal of a device number."""
    return UsageError(
        f"neuron:{index} does not exist",
        code="TRN151",
        got=index,
        limit="neuron:0, the NeuronCore of this process; on ranks also neuron:LOCAL_RANK",
        remedy='use torch.device("neuron")',
    )
