# SPDX-License-Identifier: Apache-2.0
"""Functional collectives, process groups by name, and work that is done before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.distributed import distributed_c10d

from trnlab.frontends.torch.pytorch import releases

__all__ = [
    "NEW_GROUP",
    "FakeWork",
    "Work",
    "by_environment",
    "default_store",
    "group_of",
    "groups",
    "let_groups_say_their_device",
    "operators",
    "register_backend",
]

Work: Any = dist._Work
group_of: Any = distributed_c10d._resolve_process_group  # by its name
NEW_GROUP: tuple[Any, str] = distributed_c10d, "_new_group_with_tag"  # where all that make groups find it
operators: Any = torch.ops._c10d_functional
_own: set[Any] = set()  # backends whose groups are of a class of their own


def register_backend(name: str, create: Callable[..., Any], devices: Sequence[str]) -> None:
    """Make a backend known whose groups are of a class of their own."""
    dist.Backend.register_backend(name, create, extended_api=True, devices=list(devices))
    if not _own:
        _make_own_first()
    _own.add(name)
    if releases.found() >= (2, 15):  # its flight recorder asks a group for backends in C++, and such a group has none
        recorded: Any = distributed_c10d
        recorded._FR_SELF_RECORDING_BACKENDS.add(name)


def _make_own_first() -> None:
    """Let PyTorch make ours first of a group's backends (`cpu:gloo,neuron:neuron`). It takes a group of a class of
    its own for the whole, makes no more, and drops what it made before: gloo then closed its connections while other
    ranks still made theirs, who said `Connection closed by peer`."""
    config: Any = distributed_c10d.BackendConfig
    original = config.get_device_backend_map

    @wraps(original)
    def own_first(self: Any) -> dict[str, Any]:
        return dict(sorted(original(self).items(), key=lambda each: each[1] not in _own))

    config.get_device_backend_map = own_first


def let_groups_say_their_device() -> None:
    """Let the default device of a group be what the group itself says (`default_device`): PyTorch says the host, of
    every group that takes tensors of the host as well, and from that follows where shards lie."""
    original = distributed_c10d._get_pg_default_device

    @wraps(original)
    def default_device(group: Any = None) -> torch.device:
        said = getattr(group or distributed_c10d._get_default_group(), "default_device", None)
        return original(group) if said is None else said

    distributed_c10d._get_pg_default_device = default_device


def by_environment(url: str, **named: Any) -> Any:
    """Store, rank and number of ranks, as the environment's variables say: what `env://` does."""
    rendezvous: Any = import_module("torch.distributed.rendezvous")  # a function has its name, too
    return rendezvous._env_rendezvous_handler(url, **named)


def default_store() -> Any:
    """The store by which the ranks of the job have found each other."""
    return distributed_c10d._get_default_store()


def groups() -> Any:
    """The process groups that there are, as keys."""
    return distributed_c10d._world.pg_map
