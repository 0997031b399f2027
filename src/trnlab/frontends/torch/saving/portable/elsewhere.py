# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of one layout for objects of another: each takes the slices that it has of each tensor.

Names decide and not numbers, so that the ranks that wrote it may have been more, fewer, or of another parallelism.
What is of each rank by itself (generators, schedules) comes from one of theirs, and repeats no run bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trnlab.frontends.torch.device.dlpack import as_host
from trnlab.frontends.torch.saving import state_files
from trnlab.frontends.torch.saving import training_state as states
from trnlab.frontends.torch.saving.portable import dcp
from trnlab.frontends.torch.saving.portable.tables import CheckpointTable
from trnlab.storage.checkpoints import Checkpoints
from trnlab.storage.layouts import Slice


def needed(kept: Checkpoints, step: int, files: Mapping[str, bytes]) -> bool:
    """Whether a rank's files are not its own whole state: another number of ranks wrote them, or `reshard`.

    Raises RunError (TRN532) for files that cannot be read.
    """
    return kept.ranks_of(step) != kept.ranks or state_files.is_elsewhere(files)


def state(kept: Checkpoints, step: int, files: Mapping[str, bytes], objects: Mapping[str, Any]) -> dict[str, Any]:
    """What `unpacked` gives, for these objects. Raises RunError: TRN530 for a checkpoint of others, TRN543."""
    table, (tree, _) = dcp.of_checkpoint(kept, step), state_files.opened(files)
    names = states.names_of(*objects.values())
    found = dict(tree)
    for name, thing in objects.items():
        if isinstance(thing, nn.Module):
            found[name] = _of_module(table, name, thing)
        elif isinstance(thing, Optimizer):
            found[name] = _of_optimizer(table, name, thing, names)
        elif name not in tree:
            raise states.other(name, ", ".join(tree), "not in it")
    return found


def _of_module(table: CheckpointTable, prefix: str, module: nn.Module) -> dict[str, Any]:
    """Tensors by name. Buffers that no `state_dict` has stay as they are where the checkpoint lacks them."""
    saved = {states.plain_name(name, module) for name in module.state_dict(keep_vars=True)}
    found = {}
    for name, tensor in states.named(module):
        joined = f"{prefix}.{name}"
        lacking = joined not in table.entries and joined not in table.same and name not in saved
        found[name] = states.part_of(tensor) if lacking else _read(table, joined, tensor)
    return found


def _of_optimizer(
    table: CheckpointTable, prefix: str, optimizer: Optimizer, names: Mapping[int, str]
) -> dict[str, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    keys: dict[str, dict[str, str]] = {}
    for name, entry in table.entries.items():
        if entry.path[:2] == (prefix, "state"):
            keys.setdefault(str(entry.path[2]), {})[str(entry.path[3])] = name
    moments = []
    for i, parameter in enumerate(parameters):
        mine = keys.get(names.get(id(parameter), str(i)), {})
        moments.append({key: _moment(table, name, parameter) for key, name in mine.items()})
    groups: list[dict[str, Any]] = [{} for _ in optimizer.param_groups]
    for path, value in table.values.values():
        if path[:2] == (prefix, "param_groups") and path[-1] != "params" and int(path[2]) < len(groups):
            groups[int(path[2])][str(path[3])] = value
    if not keys and not any(groups):
        raise states.other(prefix, "no optimizer", "one")
    return {"groups": groups, "states": moments}


def _moment(table: CheckpointTable, name: str, parameter: Any) -> list[Any]:
    """A tensor of an optimizer's state as its parameter is: its slice, on its device; a count on the host."""
    whole = table.entry(name).shape
    if whole != tuple(parameter.shape):
        return [table.read(name), "cpu"]
    return [_read(table, name, parameter), parameter.device.type]


def _read(table: CheckpointTable, name: str, tensor: Any) -> Any:
    """This rank's slice of what a tensor is. Raises RunError (TRN530) for another shape."""
    entry = table.entry(name)
    if entry.shape != tuple(tensor.shape):
        raise states.other(name, str(list(entry.shape)), str(list(tensor.shape)))
    local = getattr(tensor, "_local_tensor", None)
    if local is None:
        return table.read(name)
    part: Slice = states.offsets_of(tensor), tuple(as_host(local.detach()).shape)
    found: Tensor = table.read(name, part)
    return states.TensorShard(found, entry.shape, part[0])
