# SPDX-License-Identifier: Apache-2.0
"""Groups of `torch.distributed` as replica groups of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import get_process_group_ranks

from trnlab.collectives import Groups, whole_mesh
from trnlab.errors import UsageError
from trnlab.frontends.torch.pytorch.collectives import group_of
from trnlab.guards.collected import depend

# What ranks along a dimension of a mesh exchange, by what the dimension is called. Along dimensions for data that
# depends on what is exchanged, gradients or parameters.
_DIMENSIONS = {
    "tp": "tensor",
    "tensor": "tensor",
    "mp": "tensor",
    "model": "tensor",
    "cp": "sequence",
    "context": "sequence",
    "sp": "sequence",
    "sequence": "sequence",
    "seq": "sequence",
    "pp": "pipeline",
    "pipeline": "pipeline",
    "pipe": "pipeline",
    "stage": "pipeline",
    "ep": "expert",
    "expert": "expert",
    "experts": "expert",
}


@dataclass(frozen=True)
class _Members:
    """What a trace took for granted of the group that has a name: groups that are made anew take names again."""

    name: str
    ranks: tuple[int, ...]
    world: int

    def failed(self) -> str | None:
        """See `guards.Guard`."""
        try:
            ranks, world = tuple(get_process_group_ranks(group_of(self.name))), dist.get_world_size()
        except (RuntimeError, ValueError, KeyError):
            return f"process group {self.name!r} is no longer there"
        if (ranks, world) == (self.ranks, self.world):
            return None
        return (
            f"process group {self.name!r} was ranks {list(self.ranks)} of {self.world}, is {list(ranks)} of {world}"
        )


def replica_groups(group: Any) -> Groups:
    """The groups of the mesh that a process group (or its name) is one of, ranks counted in the world.

    All ranks name the same groups where the mesh is regular, so that their programs are one. Raises UsageError
    (TRN265) for a name that no group has.
    """
    found, ranks = _resolved(group)
    world = dist.get_world_size()
    depend(_Members(str(found.group_name), ranks, world))
    return whole_mesh(ranks, world)


def ranks_of(group: Any) -> tuple[int, ...]:
    """The ranks of a process group, counted in the world. Raises UsageError (TRN265) for one that is gone."""
    return _resolved(group)[1]


def _resolved(group: Any) -> tuple[Any, tuple[int, ...]]:
    try:
        found = group_of(group) if isinstance(group, str) else group
        return found, tuple(get_process_group_ranks(found))
    except (RuntimeError, ValueError, KeyError) as error:
        raise UsageError(
            "the step names a process group that does not exist",
            code="TRN265",
            got=group if isinstance(group, str) else "a group that was destroyed",
            limit="groups made with init_process_group, new_group or a device mesh",
            remedy="make the group before the step is captured, and keep it until the last step",
        ) from error


def position_in(group: Any) -> int:
    """Where this rank is in a process group (or the one of that name)."""
    return int(dist.get_rank(group_of(group) if isinstance(group, str) else group))


def purpose_of(group: Any) -> str:
    """What a group's mesh dimension says of its collectives, one of `collectives.PURPOSES`; "" where it says nothing.

    A device mesh calls the groups that it makes "mesh_" and the dimension's name; a group that is the whole world
    keeps its own.
    """
    try:
        found = group_of(group) if isinstance(group, str) else group
        described = str(found.group_desc)
    except (RuntimeError, ValueError, KeyError, AttributeError):
        return ""
    return _DIMENSIONS.get(described.removeprefix("mesh_").lower(), "")
