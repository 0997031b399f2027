# SPDX-License-Identifier: Apache-2.0
"""The state of training as tensors of the host, and back, bit for bit.

A state is a tree of dictionaries, lists, tuples, tensors and plain values, as `torch.load(weights_only=True)` reads
them. Tensors go back into the memory that they came from, so that compiled steps, schedulers and hooks go on with the
same objects.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trnlab.errors import RunError
from trnlab.frontends.torch.device.dlpack import as_host
from trnlab.runtime import device, session


@dataclass(frozen=True)
class TensorShard:
    """This rank's part of a tensor that is spread over ranks."""

    tensor: Tensor
    shape: tuple[int, ...]  # of the whole
    offsets: tuple[int, ...]  # where the part begins


class ModuleState(dict[str, Any]):
    """Tensors and `TensorShard`s by their names in the module. again: other names of the same tensors."""

    again: dict[str, str]


class OptimizerState(dict[str, Any]):
    """`groups`, `states` in the order of the parameters, and `names` of these in their modules, where known."""


class Buffers:
    """Memory of the host for copies, kept from one checkpoint to the next: new memory takes twice as long to fill."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._next = 0

    def begin(self) -> None:
        """All may be written to again."""
        self._next = 0

    def copy(self, source: Tensor) -> Tensor:
        """A copy of a tensor of the host."""
        place, self._next = self._next, self._next + 1
        known = self._kept[place] if place < len(self._kept) else None
        if known is None or known.dtype != source.dtype or known.shape != source.shape:
            fresh = torch.empty_like(source, memory_format=torch.contiguous_format)
            self._kept[place : place + 1] = [fresh]
        return self._kept[place].copy_(source)


def taken(thing: Any, names: Mapping[int, str] | None = None, buffers: Buffers | None = None) -> Any:
    """A copy, on the host, of the state of a module, an optimizer, a compiled step, or what has a `state_dict`.

    names: of parameters in their modules, by `id`. buffers: where copies go; what was there is overwritten.
    """
    if isinstance(thing, nn.Module):
        state = ModuleState({name: part_of(tensor, buffers) for name, tensor in named(thing)})
        state.again = _again(thing)
        return state
    if isinstance(thing, Optimizer):
        return _of_optimizer(thing, names or {}, buffers)
    return _tree(thing.state_dict(), None)


def names_of(*things: Any) -> dict[int, str]:
    """The names of the parameters of modules, as `torch.distributed.checkpoint` has them, by `id`."""
    modules = [thing for thing in things if isinstance(thing, nn.Module)]
    return {id(p): plain_name(name, module) for module in modules for name, p in module.named_parameters()}


def plain_name(name: str, module: Any = None) -> str:
    """A name without what wrappers add: DistributedDataParallel's `module.`, torch.compile's `_orig_mod.`."""
    if isinstance(module, DistributedDataParallel):
        name = name.removeprefix("module.")
    return name.replace("_orig_mod.", "")


def put_back(thing: Any, state: Any, name: str) -> None:
    """The inverse of `taken`. Raises RunError (TRN530) where the state is not one of this thing."""
    if isinstance(thing, nn.Module):
        here = dict(named(thing))
        _same_names(here, state, name)
        for key, tensor in here.items():
            _fill(tensor, state[key], f"{name}.{key}")
    elif isinstance(thing, Optimizer):
        _into_optimizer(thing, state, name)
    else:
        thing.load_state_dict(state)


def part_of(tensor: Tensor, buffers: Buffers | None = None) -> Tensor | TensorShard:
    """A copy on the host; of what is spread over ranks, this rank's part."""
    local = getattr(tensor, "_local_tensor", tensor)
    host = as_host(local.detach())
    copy = host.clone() if buffers is None else buffers.copy(host)
    return copy if local is tensor else TensorShard(copy, tuple(tensor.shape), offsets_of(tensor))


def offsets_of(tensor: Any) -> tuple[int, ...]:
    """Where this rank's part of a DTensor begins in the whole. Raises RunError (TRN541) for one of partial sums."""
    if any(p.is_partial() for p in tensor.placements):
        raise RunError(
            "a tensor of partial sums is in no checkpoint",
            code="TRN541",
            got=tensor.placements,
            limit="Shard and Replicate",
            remedy="redistribute it first",
        )
    from trnlab.frontends.torch.pytorch import distributed_tensors  # takes long to import

    _, offsets = distributed_tensors.compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(offsets)


# -- random numbers -------------------------------------------------------------------------------------------------
def generators() -> dict[str, Any]:
    """The states of PyTorch's, NumPy's and Python's generators, and of the device's stochastic rounding."""
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.array(keys, np.int64)), int(place), int(has_gauss), float(gauss)],
        "rounding": rounding(),
    }


def set_generators(state: Mapping[str, Any]) -> None:
    """The inverse of `generators`."""
    set_draws(state)
    if state["rounding"]:
        device.core(session.current()).executed = int(state["rounding"])


def set_draws(state: Mapping[str, Any]) -> None:
    """The generators of the host alone."""
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, cached))


def rounding() -> int:
    """How many instructions the simulated core has executed, where stochastic rounding goes on from."""
    now = session.active()
    return now.core.executed if now is not None and now.core is not None else 0


class Draws:
    """The host's generators since this was made, to see whether two runs draw the same.

    A generator that nobody touches says nothing: a script need not seed what it does not draw from.
    """

    def __init__(self) -> None:
        self._begun = _checksums()

    def fingerprint(self) -> int:
        """A checksum of the states of those that have moved."""
        now = [0 if a == b else a for a, b in zip(_checksums(), self._begun)]
        return zlib.crc32(repr(now).encode())


def _checksums() -> list[int]:
    """Checksums of PyTorch's, NumPy's and Python's generators."""
    _, keys, place, *_ = np.random.get_state(legacy=True)
    numbers = zlib.crc32(np.array(keys).tobytes(), int(place))
    return [
        zlib.crc32(torch.get_rng_state().numpy().tobytes()),
        numbers,
        zlib.crc32(repr(random.getstate()).encode()),
    ]


def fingerprint(leaves: list[Any]) -> int:
    """A checksum of the values of a batch."""
    value = 0
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            host = as_host(leaf.detach()).contiguous().reshape(-1)
            value = zlib.crc32(host.view(torch.uint8).numpy() if host.numel() else b"", value)
        elif isinstance(leaf, int | float | str | bool | None):
            value = zlib.crc32(repr(leaf).encode(), value)
    return value


# -- within ---------------------------------------------------------------------------------------------------------
def named(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, those that are saved by no `state_dict`, too."""
    found = [*module.named_parameters(), *module.named_buffers()]
    return [(plain_name(name, module), tensor) for name, tensor in found]


def _again(module: nn.Module) -> dict[str, str]:
    """Names in `state_dict` of tensors that `named` has under another one, such as tied weights."""
    first = {id(tensor): name for name, tensor in named(module)}
    found = module.named_parameters(remove_duplicate=False)
    plain = [(plain_name(name, module), p) for name, p in found]
    return {name: first[id(p)] for name, p in plain if first[id(p)] != name}


def _of_optimizer(optimizer: Optimizer, names: Mapping[int, str], buffers: Buffers | None) -> OptimizerState:
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    groups = [{k: _tree(v, None) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    states = [
        {
            k: [_tree(v, buffers), v.device.type if isinstance(v, Tensor) else ""]
            for k, v in optimizer.state.get(p, {}).items()
        }
        for p in ordered
    ]
    known = [names.get(id(p), str(i)) for i, p in enumerate(ordered)]
    counts = [len(group["params"]) for group in optimizer.param_groups]
    return OptimizerState(groups=groups, states=states, names=known, counts=counts)


def _into_optimizer(optimizer: Optimizer, state: Any, name: str) -> None:
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    if len(ordered) != len(state["states"]) or len(optimizer.param_groups) != len(state["groups"]):
        raise other(name, f"{len(state['states'])} parameters", f"{len(ordered)} parameters")
    for group, saved in zip(optimizer.param_groups, state["groups"]):
        for key, value in saved.items():
            if isinstance(group.get(key), Tensor) and isinstance(value, Tensor):
                _fill(group[key], value, f"{name}.{key}")
            else:
                group[key] = value
    for i, (parameter, saved) in enumerate(zip(ordered, state["states"])):
        here = optimizer.state[parameter]
        for key in [k for k in here if k not in saved]:
            del here[key]
        for key, (value, where) in saved.items():
            known = here.get(key)
            held = value.tensor if isinstance(value, TensorShard) else value
            if isinstance(known, Tensor) and isinstance(held, Tensor) and known.dtype == held.dtype:
                _fill(known, value, f"{name} of parameter {i}: {key}")
            else:
                here[key] = _placed(value, where, parameter)


def _placed(value: Any, where: str, parameter: Any) -> Any:
    """A value of an optimizer's state where it was; of a parameter that is spread over ranks, spread likewise."""
    if not isinstance(value, Tensor | TensorShard) or not where:
        return value
    if isinstance(value, Tensor):
        return value.to(where)
    if value.shape != tuple(parameter.shape):
        raise other("the optimizer's state", str(list(value.shape)), str(list(parameter.shape)))
    mesh, placements = parameter.device_mesh, parameter.placements
    local = value.tensor.to(where)
    from torch.distributed.tensor import DTensor  # takes long to import

    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def _fill(tensor: Tensor, value: Any, name: str) -> None:
    local = getattr(tensor, "_local_tensor", tensor)
    value = value.tensor if isinstance(value, TensorShard) else value
    if local.shape != value.shape or local.dtype != value.dtype:
        raise other(name, f"{value.dtype}{list(value.shape)}", f"{local.dtype}{list(local.shape)}")
    with torch.no_grad():
        as_host(local.detach()).copy_(value)


def _same_names(here: Mapping[str, Any], state: Mapping[str, Any], name: str) -> None:
    differing = sorted(set(here) ^ set(state))
    if differing:
        raise other(name, f"{len(state)} tensors", f"{len(here)}, differing in {', '.join(differing[:4])}")


def other(name: str, limit: str, got: str) -> RunError:
    """The error of a checkpoint that does not fit: what `name` is in it, and here."""
    return RunError(
        f"the checkpoint is not of this script: {name}",
        code="TRN530",
        limit=limit,
        got=got,
        remedy="go on with the model and optimizer that wrote it, or name another place for a new run",
    )


def _tree(value: Any, buffers: Buffers | None) -> Any:
    if isinstance(value, Tensor):
        return part_of(value, buffers)
    if isinstance(value, Mapping):
        return {k: _tree(v, buffers) for k, v in value.items()}
    if isinstance(value, list | tuple):
        parts = [_tree(v, buffers) for v in value]
        return tuple(parts) if type(value) is tuple else parts
    return value


def differences(a: Any, b: Any, name: str = "") -> list[str]:
    """Where two states differ, a line each: tensors by how many elements and by how much, values as they are."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _tensors_differ(a, b, name)
    if isinstance(a, TensorShard) and isinstance(b, TensorShard):
        if (a.shape, a.offsets) == (b.shape, b.offsets):
            return _tensors_differ(a.tensor, b.tensor, name)
        return [f"{name}: {_where(a)} and {_where(b)}"]
    if isinstance(a, TensorShard) or isinstance(b, TensorShard):
        return [f"{name}: a slice in the {'first' if isinstance(a, TensorShard) else 'second'} only"]
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        lines = [f"{_under(name, k)}: only in the {'first' if k in a else 'second'}" for k in a.keys() ^ b.keys()]
        return sorted(lines) + [line for k in a if k in b for line in differences(a[k], b[k], _under(name, k))]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if all(not isinstance(x, Tensor | TensorShard | Mapping | list | tuple) for x in (*a, *b)):
            return [] if [*a] == [*b] else [f"{name}: {_brief(a)} and {_brief(b)}"]
        lines = [f"{name}: {len(a)} and {len(b)} parts"] if len(a) != len(b) else []
        return lines + [line for i, (x, y) in enumerate(zip(a, b)) for line in differences(x, y, _under(name, i))]
    same = type(a) is type(b) and (a == b or (a != a and b != b))
    return [] if same else [f"{name}: {_brief(a)} and {_brief(b)}"]


def _where(part: TensorShard) -> str:
    return f"{list(part.tensor.shape)} from {list(part.offsets)} of {list(part.shape)}"


def _tensors_differ(a: Tensor, b: Tensor, name: str) -> list[str]:
    if a.shape != b.shape or a.dtype != b.dtype:
        return [f"{name}: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"]
    x, y = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)) if a.numel() else (a, b)
    if torch.equal(x, y):
        return []
    wrong = (x != y).reshape(a.numel(), -1).any(1).sum().item()
    most = (a.double() - b.double()).abs().max().item()
    return [f"{name}: {wrong} of {a.numel()} elements differ, by up to {most:.3g}"]


def _under(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
