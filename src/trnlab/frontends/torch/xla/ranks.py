# SPDX-License-Identifier: Apache-2.0
"""Who takes part: the ranks that torchrun, `trnlab run --ranks` or `xmp.spawn` started, one NeuronCore each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from trnlab.errors import UsageError
from trnlab.frontends.torch.xla.groups import of_members

Groups = Sequence[Sequence[int]] | None


def _number(name: str, otherwise: int) -> int:
    return int(os.environ.get(name) or otherwise)


def world_size() -> int:
    """How many ranks there are."""
    return dist.get_world_size() if dist.is_initialized() else _number("WORLD_SIZE", 1)


def ordinal() -> int:
    """Which of them this is."""
    return dist.get_rank() if dist.is_initialized() else _number("RANK", 0)


def local_ordinal() -> int:
    """Which of this machine's it is."""
    return _number("LOCAL_RANK", ordinal())


def local_world_size() -> int:
    """How many this machine has."""
    return _number("LOCAL_WORLD_SIZE", world_size())


def meet() -> None:
    """Connect to the others, as the first collective of torch_xla does without being told."""
    if world_size() > 1 and not dist.is_initialized():
        dist.init_process_group("neuron")


def group_of(groups: Groups) -> tuple[Any, list[int]]:
    """The group of torch.distributed that this rank is in, and its ranks; all of them where `groups` says none.

    Raises UsageError (TRN297) for a rank that is in none of the groups.
    """
    meet()
    everyone = list(range(world_size()))
    wanted = [list(group) for group in groups or ()] or [everyone]
    if wanted == [everyone] and (not dist.is_initialized() or _carries_neuron()):
        return None, everyone
    ranks = next((ranks for ranks in wanted if ordinal() in ranks), None)
    if ranks is None:
        raise UsageError(
            "this rank is in none of the groups of a collective",
            code="TRN297",
            limit=wanted,
            got=ordinal(),
            remedy="list every rank once, alone where it takes part in nothing",
        )
    return (of_members(ranks) if len(ranks) > 1 and len(everyone) > 1 else None), ranks


def _carries_neuron() -> bool:
    return dist.get_backend() in ("neuron", "xla")
