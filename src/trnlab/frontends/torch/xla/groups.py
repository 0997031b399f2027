# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks as torch_xla has them: a group is a row of a mesh, and its members alone make it.

Libraries for torch_xla give `torch.distributed.new_group` a mesh, the rows of which are the groups that all ranks
have at that place (`pg_options={"xla_pg_options": {"mesh": rows}}`), or give rows to the collectives of `xm`; other
ranks name other meshes then, or none. So a group is named by its ranks, and there is one for the same ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

_made: dict[tuple[Any, ...], Any] = {}  # groups by the connection and their ranks


def of_members(ranks: Sequence[int]) -> Any:
    """The group of ranks, this one among them; the others need not know of it."""
    key = (id(dist.group.WORLD), *sorted(ranks))
    if key not in _made:
        _made[key] = dist.new_group(list(ranks), backend="neuron", use_local_synchronization=True)
    return _made[key]


def install() -> None:
    """Have `new_group` take meshes, and groups of the backend tell theirs."""
    original = dist.new_group
    if hasattr(original, "takes_meshes"):
        return

    @functools.wraps(original)
    def new_group(ranks: Any = None, *args: Any, pg_options: Any = None, **named: Any) -> Any:
        told = pg_options.get("xla_pg_options") if isinstance(pg_options, dict) else None
        mesh = _rows((told or {}).get("mesh"))
        if mesh is None:
            group = original(ranks, *args, pg_options=None if told is not None else pg_options, **named)
            if hasattr(group, "_mesh") and ranks is not None:
                group._mesh = [list(ranks)]
            return group
        mine = next((row for row in mesh if dist.get_rank() in row), None)
        if mine is None:  # this rank is in none of the rows, though it may be among those that call
            return dist.GroupMember.NON_GROUP_MEMBER
        group = of_members(mine)
        group._mesh = mesh
        return group

    new_group.takes_meshes = True  # type: ignore[attr-defined]
    dist.new_group = distributed_c10d.new_group = new_group


def _rows(mesh: Any) -> list[list[int]] | None:
    """A mesh's rows; one row may be given alone."""
    if not mesh:
        return None
    return [list(row) for row in mesh] if isinstance(mesh[0], Sequence) else [list(mesh)]
