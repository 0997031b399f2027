# SPDX-License-Identifier: Apache-2.0
"""The chip stands in for CUDA: its device in arguments, `torch.cuda`'s functions, and NCCL's process groups.

`torch.cuda.is_available()` says yes to the user's own files alone: installed packages that ask choose among
accelerators, and know this one by its own name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from trnlab.errors import Location
from trnlab.frontends.torch.device import module, naming, tensor_types
from trnlab.frontends.torch.pytorch import pytree
from trnlab.guards.installed import package_of
from trnlab.runtime.notices import say
from trnlab.runtime.session import active

NAME = "cuda"
# Of the oldest cards that have bfloat16, as all generations of the chip do: what scripts ask it for. Source:
# compute capabilities of the CUDA programming guide.
CAPABILITY = (8, 0)
asked: list[Location] = []  # the lines of the user's files that name it
_replaced = ExitStack()


def installed() -> bool:
    """Whether the chip stands in."""
    return NAME in naming.DeviceNames.taken


def used() -> bool:
    """Whether anything was done otherwise for it."""
    return NAME in naming.DeviceNames.met


def install() -> None:
    """For the rest of the process, or until `uninstall`."""
    if installed():
        return
    naming.take(NAME)
    if _tell not in naming.DeviceNames.on_first:
        naming.DeviceNames.on_first.append(_tell)
    found = {name: getattr(module, name) for name in dir(torch.cuda) if name[:1] != "_" and _is_here(name)}
    for name in ("is_available", "device_count"):
        found[name] = _for_users(getattr(torch.cuda, name), found[name])
    found["get_device_capability"] = lambda device=None: CAPABILITY
    for name, value in {**found, **tensor_types.made()}.items():
        _replaced.enter_context(patch.object(torch.cuda, name, value))
    _replaced.enter_context(patch.object(torch.nn.DataParallel, "scatter", _scattered(torch.nn.DataParallel.scatter)))
    if dist.is_available():
        _rename_in_groups()


def _tell(name: str) -> None:
    """Say once in a run that the script is not as it has to be on an instance. Checks list the lines instead."""
    session = active()
    if name != NAME or int(os.environ.get("RANK") or 0) or (session is not None and session.run is None):
        return
    lines = [f"{Path(place.file).name}:{place.line}" for place in asked]
    more = f" and {len(lines) - 3} more lines" if len(lines) > 3 else ""
    say(
        f"the script asks for CUDA ({', '.join(lines[:3])}{more}), and the chip answers; on an instance nobody does: "
        "write 'neuron' there (`trnlab check` lists all lines; TRNLAB_CUDA=none is as there)"
    )


def uninstall() -> None:
    """Be as before, for the next script of a process that follows several."""
    _replaced.close()
    naming.leave(NAME)
    asked.clear()


def _is_here(name: str) -> bool:
    """Whether the device's module has a function of this name, or a class where that is one."""
    found = getattr(module, name, None)
    same = isinstance(found, type) == isinstance(getattr(torch.cuda, name), type)
    return found is not None and same and not isinstance(found, ModuleType) and found is not Any


def _for_users(original: Callable[[], Any], ours: Callable[[], Any]) -> Callable[[], Any]:
    """What says one thing to the user's files and another to installed packages."""

    @wraps(original)
    def answer() -> Any:
        if package_of(sys._getframe(1).f_code.co_filename) is not None:
            return original()
        naming.note(NAME)
        return ours()

    return answer


def _scattered(original: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of DataParallel's, which is C++: its arguments on the one device that a process has."""

    @wraps(original)
    def scatter(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        if len(device_ids) != 1:
            return original(self, inputs, kwargs, device_ids)
        there = pytree.tree_map_only(torch.Tensor, lambda x: x.to(naming.NEURON), (inputs, kwargs))
        return there[:1], there[1:]

    return scatter


def _rename_in_groups() -> None:
    """init_process_group("nccl"), new_group(backend="nccl"), and meshes of devices called "cuda"."""
    from torch.distributed import device_mesh

    make = dist.Backend.__new__

    def named(cls: Any, name: str) -> Any:
        return make(cls, _renamed_backend(name) if isinstance(name, str) else name)

    mesh = naming.renaming(device_mesh.init_device_mesh)
    for owner, name, value in (
        (dist.Backend, "__new__", named),
        (dist, "is_nccl_available", _for_users(dist.is_nccl_available, lambda: True)),
        (device_mesh, "init_device_mesh", mesh),
        (dist, "init_device_mesh", mesh),
        (device_mesh.DeviceMesh, "__init__", naming.renaming(device_mesh.DeviceMesh.__init__)),
    ):
        _replaced.enter_context(patch.object(owner, name, value))


def _renamed_backend(name: str) -> str:
    """A backend, or one for each device as in "cpu:gloo,cuda:nccl", with the chip's names."""
    words = {"cuda": "neuron", "nccl": "neuron"}
    return ",".join(":".join(words.get(part, part) for part in each.split(":")) for each in name.split(","))
