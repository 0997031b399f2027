# SPDX-License-Identifier: Apache-2.0
"""The state of training as files: the tensors of models and optimizers as `torch.distributed.checkpoint` (DCP) lays
them out, all else in a file of `torch.save`.

    rank_00000/tensors.distcp   one file of torch.save for each tensor, one behind the other
    rank_00000/state.pt         generators, schedules, and which tensor goes where
    .metadata                   DCP's index of the tensors of all ranks, which `index` makes

So `dcp.load(state, checkpoint_id=".../step_00000200")` reads what ranks wrote here, on any number of them. Names are
those of `get_model_state_dict` and `get_optimizer_state_dict`, behind the name that the script gave its object. DCP's
own index is a pickle, and is only written: what is read is JSON and `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import RunError
from trnlab.frontends.torch.saving.training_state import ModuleState, OptimizerState, TensorShard
from trnlab.storage.checkpoints import METADATA, Content, folder_of

FILE, TENSORS = "state.pt", "tensors.distcp"
_VERSION = 1
_Path = tuple[Any, ...]


class _Packing:
    """The tensors of one rank, as they are laid out. about: what DCP's index needs, by name."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        self.about: dict[str, Any] = {}
        self.places: list[list[Any]] = []
        self._end = 0

    def put(self, place: _Path, path: _Path, value: Any) -> None:
        """Add a tensor or a plain value. place: where it stands in the state; path: what DCP calls it."""
        tensor = value.tensor if isinstance(value, TensorShard) else value
        part = to_bytes(tensor)
        at, self._end = [self._end, len(part)], self._end + len(part)
        self.parts.append(part)
        whole = [list(value.shape), list(value.offsets)] if isinstance(value, TensorShard) else None
        described: dict[str, Any] = {"path": list(path), "at": at}
        if isinstance(tensor, Tensor):
            shape, offsets = whole or [list(tensor.shape), [0] * tensor.dim()]
            kind = str(tensor.dtype).removeprefix("torch.")
            described |= {"dtype": kind, "shape": shape, "offsets": offsets, "sizes": list(tensor.shape)}
        self.about[_joined(path)] = described
        if place:
            self.places.append([list(place), _joined(path), at, whole])


def packed(state: Mapping[str, Any]) -> tuple[dict[str, Content], dict[str, Any]]:
    """The files of a state of `training_state.taken`s, and what is to be known of them without reading them."""
    packing = _Packing()
    tree = _emptied(state, (), packing)
    rest = to_bytes({"trnlab": _VERSION, "tree": tree, "places": packing.places})
    return {TENSORS: packing.parts, FILE: rest}, {"tensors": packing.about}


def unpacked(files: Mapping[str, bytes]) -> Any:
    """The inverse of `packed`. Raises RunError (TRN532) for files that are not of it."""
    tree, places = opened(files)
    content = memoryview(files.get(TENSORS, b""))
    try:
        for place, name, (start, size), whole in places:
            value = from_bytes(content[start : start + size], name)
            put(tree, place, value if whole is None else TensorShard(value, tuple(whole[0]), tuple(whole[1])))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise _no_state(error) from error
    return tree


def opened(files: Mapping[str, bytes]) -> tuple[Any, list[Any]]:
    """A state without its tensors, and where they go: place, name, bytes, shape and offset of the whole. Raises
    RunError (TRN532) for files that have none."""
    found = _state_of(files)
    if not isinstance(found, Mapping) or "trnlab" not in found:
        return found, []
    if "tree" not in found or not isinstance(found.get("places"), list):
        raise _no_state(KeyError("tree, places"))
    return found["tree"], found["places"]


def _state_of(files: Mapping[str, bytes]) -> Any:
    if FILE not in files:
        raise _no_state(KeyError(FILE))
    return from_bytes(files[FILE])


def _no_state(error: Exception) -> RunError:
    return RunError(
        f"{FILE} does not fit the tensors: {type(error).__name__}",
        code="TRN532",
        got=str(error)[:100],
        remedy="take another checkpoint",
    )


def is_elsewhere(files: Mapping[str, bytes]) -> bool:
    """Whether the tensors of this state are to be taken from the files of all ranks, by name."""
    found = _state_of(files)
    return isinstance(found, Mapping) and bool(found.get("elsewhere")) and "trnlab" in found


def put(tree: Any, place: Sequence[Any], value: Any) -> None:
    """Put a value to its place in a state."""
    for key in place[:-1]:
        tree = tree[key]
    tree[place[-1]] = value


def _emptied(state: Any, place: _Path, packing: _Packing) -> Any:
    """A state without the tensors of modules and optimizers, which go into `packing`."""
    if isinstance(state, ModuleState):
        prefix = _prefix(place)
        for name, value in state.items():
            packing.put((*place, name), (*prefix, name), value)
        for name, first in state.again.items():
            packing.about[_joined((*prefix, name))] = {
                **packing.about[_joined((*prefix, first))],
                "path": [*prefix, name],
                "same": _joined((*prefix, first)),
            }
        return dict.fromkeys(state)
    if isinstance(state, OptimizerState):
        return _emptied_optimizer(state, place, packing)
    if isinstance(state, Mapping):
        return {key: _emptied(value, (*place, key), packing) for key, value in state.items()}
    if type(state) is list:
        return [_emptied(value, (*place, i), packing) for i, value in enumerate(state)]
    return state


def _emptied_optimizer(state: OptimizerState, place: _Path, packing: _Packing) -> dict[str, Any]:
    prefix, states = _prefix(place), []
    for i, (name, values) in enumerate(zip(state["names"], state["states"])):
        states.append({key: [None, where] for key, (_, where) in values.items()})
        for key, (value, _) in values.items():
            if isinstance(value, Tensor | TensorShard):
                packing.put((*place, "states", i, key, 0), (*prefix, "state", name, key), value)
            else:
                states[i][key][0] = value
    first = 0
    for i, (group, count) in enumerate(zip(state["groups"], state["counts"])):
        told = {**group, "params": state["names"][first : first + count]}
        first += count
        for key, value in told.items():
            packing.put((), (*prefix, "param_groups", i, key), value)
    return {**state, "states": states}


def _prefix(place: _Path) -> _Path:
    """What the tensors of an object are called by: those of the first compiled step by what they are."""
    return place[2:] if place[:2] == ("steps", 0) else place


def _joined(path: Sequence[Any]) -> str:
    return ".".join(map(str, path))


# -- DCP's index ----------------------------------------------------------------------------------------------------
def index(ranks: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """DCP's index of a checkpoint, of what each rank told of its tensors. A slice that several have is rank 0's."""
    from torch.distributed.checkpoint import metadata as dcp

    from trnlab.frontends.torch.pytorch.files import PlaceInFile

    known: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    paths: dict[str, _Path] = {}
    for name, rank, about in _all(ranks):
        paths[name] = tuple(about["path"])
        where = PlaceInFile(f"{folder_of(rank)}/{about.get('file', TENSORS)}", *about["at"])
        if "dtype" not in about:
            known.setdefault(name, dcp.BytesStorageMetadata())
            stored.setdefault(dcp.MetadataIndex(name), where)
            continue
        offsets, sizes = torch.Size(about["offsets"]), torch.Size(about["sizes"])
        key = dcp.MetadataIndex(name, offsets)
        if name not in known:
            properties = dcp.TensorProperties(dtype=getattr(torch, about["dtype"]))
            known[name] = dcp.TensorStorageMetadata(properties, torch.Size(about["shape"]), [])
        if key not in stored and (0 not in sizes or 0 in known[name].size):
            known[name].chunks.append(dcp.ChunkStorageMetadata(offsets, sizes))
            stored[key] = where
    found = dcp.Metadata(known, planner_data=paths, storage_data=stored, version="1.0.0")
    return {METADATA: pickle.dumps(found)}


def _all(ranks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    for rank, about in enumerate(ranks):
        for name, each in about.get("tensors", {}).items():
            yield name, rank, each


# -- torch.save -----------------------------------------------------------------------------------------------------
def to_bytes(state: Any) -> memoryview:
    """A state as a file of `torch.save`."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getbuffer()


def from_bytes(content: bytes | memoryview, name: str = FILE) -> Any:
    """The inverse of `to_bytes`; no code of the file is run. Raises RunError (TRN532) for what is no such file."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zip and PyTorch, many
        raise RunError(
            f"{name} cannot be read: {type(error).__name__}",
            code="TRN532",
            got=next(iter(str(error).splitlines()), "")[:100],
            remedy="take another checkpoint",
        ) from error
