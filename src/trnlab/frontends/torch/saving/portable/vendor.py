# SPDX-License-Identifier: Apache-2.0
"""The file layout of the vendor's library (neuronx-distributed), read and written.

    step_200/checkpoint, step_200/done                              begun, whole
    step_200/model/dp_rank_00_tp_rank_01_pp_rank_00.pt              names of this rank's tensors
    step_200/model/dp_rank_00_tp_rank_01_pp_rank_00.pt.tensors/tensor_0.pt
    step_200/optim/dp_rank_01_tp_rank_01_pp_rank_00.pt              moments, of each data-parallel rank its part
    step_200/scheduler.pt, step_200/user_content.pt

Facts: trainer/checkpoint.py, optimizer/convert_zero_checkpoints.py, scripts/checkpoint_converter.py of release 2.29.
Weights are cut along one dimension over tensor-parallel ranks, equally, and kept by data-parallel rank 0. Moments
of a parameter are those of its slice, padded so that data-parallel ranks have equal parts of its first dimension.
Files of tensors within one `.pt`, without `.tensors`, are read, too. The layout has no shapes of wholes: they follow
from how tensors are cut, which `ShardingRules` say, and what the ranks have is compared with that.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from trnlab.errors import RunError
from trnlab.frontends.torch.saving import state_files
from trnlab.frontends.torch.saving.portable.tables import CheckpointTable, Chunk
from trnlab.storage import Store
from trnlab.storage.layouts import ParallelDegrees, RankPosition, ShardingRules, cut

_FILE = re.compile(r"dp_rank_(\d+)(?:_ep_rank_(\d+))?_tp_rank_(\d+)_pp_rank_(\d+)\.pt")
_MODULE, _NAME = "torch_xla.utils.serialization", "TensorReference"


class TensorFileReference:
    """What stands for a tensor that has a file of its own: its number. torch_xla's class of this name."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


class _Pickler(pickle._Pickler):
    """Writes our reference under the name of torch_xla's, which need not be installed."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if obj is TensorFileReference:
            self.write(f"c{_MODULE}\n{_NAME}\n".encode())  # type: ignore[attr-defined]
            self.memoize(obj)  # type: ignore[attr-defined]
        else:
            super().save_global(obj, name)  # type: ignore[misc]

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]
    dispatch[type] = save_global


class _Pickling:
    """What torch.save takes for a pickle module."""

    Pickler = _Pickler
    __name__ = "pickle"


def file_of(place: RankPosition) -> str:
    """The file of a rank."""
    return f"dp_rank_{place.dp:02d}_tp_rank_{place.tp:02d}_pp_rank_{place.pp:02d}.pt"


# -- reading --------------------------------------------------------------------------------------------------------
def layout_of(store: Store, tag: str) -> ParallelDegrees:
    """The layout of a checkpoint. Raises OSError, and RunError (TRN544) for none, or one of expert parallelism."""
    found = [m for item in store.items(f"{tag}/") if (m := _FILE.fullmatch(item.name.rpartition("/")[2]))]
    if not found or any(int(m[2] or 0) for m in found):
        raise RunError(
            f"{tag} is not of the vendor's layout" if not found else "experts are spread over ranks",
            code="TRN544",
            limit="model/dp_rank_00_tp_rank_00_pp_rank_00.pt and so on",
            got=store.url,
            remedy="name the folder that has the tags, such as step_200",
        )
    return ParallelDegrees(*(max(int(m[i]) for m in found) + 1 for i in (1, 3, 4)))


def table(store: Store, tag: str, rules: ShardingRules) -> CheckpointTable:
    """What a checkpoint has, by the names `model.<name>` and `optimizer.state.<name>.<key>`.

    Raises OSError, and RunError: TRN532 for what cannot be read, TRN544 for tensors that are not cut as `rules` say.
    """
    layout, found = layout_of(store, tag), CheckpointTable()
    for pp in range(layout.pp):
        names = _stage(found, store, tag, ParallelDegrees(1, layout.tp, 1), pp, rules)
        if store.exists(f"{tag}/optim/{file_of(RankPosition(0, 0, pp))}"):
            _moments(found, store, tag, layout, pp, names)
    for file in ("scheduler", "user_content"):
        if store.exists(f"{tag}/{file}.pt"):
            found.values[file] = (file,), _opened(store, f"{tag}/{file}.pt")
    return found


def _stage(
    found: CheckpointTable, store: Store, tag: str, layout: ParallelDegrees, pp: int, rules: ShardingRules
) -> list[str]:
    """Add the weights of a stage; returns their names in order."""
    files = [f"{tag}/model/{file_of(RankPosition(0, t, pp))}" for t in range(layout.tp)]
    states = [_opened(store, file) for file in files]
    for name in states[0]:
        forms = [_Lazy(store, file, state.get(name)) for file, state in zip(files, states)]
        path = ("model", name)
        shape = forms[0].shape
        dim = rules.dimension(name, shape) if layout.tp > 1 else None
        _check(name, forms, dim)
        whole = tuple(n * layout.tp if i == dim else n for i, n in enumerate(shape))
        for t, form in enumerate(forms if dim is not None else forms[:1]):
            part = cut(whole, dim, (t, layout.tp))
            found.add(f"model.{name}", path, form.dtype, whole, Chunk(part, form.load))
    return list(states[0])


def _check(name: str, forms: list[_Lazy], dim: int | None) -> None:
    """That tensors are cut as they are said to be: whole ones are equal everywhere, slices are of equal size."""
    wrong = ""
    if any(form.shape != forms[0].shape for form in forms):
        wrong = "ranks have slices of different sizes"
    elif dim is None and any(not torch.equal(form.load(), forms[0].load()) for form in forms[1:]):
        wrong = "ranks have different values of it, and nothing says along which dimension it is cut"
    elif dim is not None and re.search(r"[kv]_proj", name):
        first = forms[0].load()
        if len(forms) > 1 and len(first.unique()) > 1 and torch.equal(first, forms[1].load()):
            wrong = "neighbouring ranks have the same: heads of keys and values were multiplied"
    if wrong:
        raise RunError(
            f"{name} cannot be put together: {wrong}",
            code="TRN544",
            got=list(forms[0].shape),
            limit=f"{len(forms)} tensor-parallel ranks",
            remedy=f"say how it is cut: --cut '{re.escape(name)}$=0'",
        )


class _Lazy:
    """A tensor of a rank's file, in it or in a file of its own."""

    def __init__(self, store: Store, file: str, value: Any) -> None:
        self._load = partial(_tensor, store, file, value)
        tensor = self._load()
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def load(self) -> Tensor:
        """Read it."""
        return self._load()


def _tensor(store: Store, file: str, value: Any) -> Tensor:
    if isinstance(value, TensorFileReference):
        value = _opened(store, f"{file}.tensors/tensor_{int(value.tid)}.pt")
    if not isinstance(value, Tensor):
        raise RunError(f"{file} lacks a tensor that others have", code="TRN544", got=type(value).__name__)
    return value


def _moments(
    found: CheckpointTable, store: Store, tag: str, layout: ParallelDegrees, pp: int, names: list[str]
) -> None:
    """Add the optimizer's state of a stage: of slices of slices, without padding."""
    for tp in range(layout.tp):
        places = [RankPosition(d, tp, pp) for d in range(layout.dp)]
        files = [f"{tag}/optim/{file_of(place)}" for place in places]
        states = [_opened(store, file) for file in files if store.exists(file)]
        kind = "base_state" if "base_state" in states[0] else "state"
        inner = [state[kind] for state in states]
        names = [str(name) for name in states[0].get("names", names)]
        if tp == 0:
            _add_groups(found, states[0].get("param_groups", ()), names)
        for i, values in inner[0].items():
            entry = found.entry(f"model.{names[int(i)]}")
            _check_shape(names[int(i)], entry.chunks[0].slice[1], states[0].get("shape_info", {}).get(i))
            local = entry.chunks[min(tp, len(entry.chunks) - 1)].slice
            for key in values:
                parts = [partial(_tensor, store, file, each[i][key]) for file, each in zip(files, inner)]
                if tp and len(entry.chunks) == 1:
                    continue  # what all ranks have whole is taken from the first
                _add_moment(found, names[int(i)], key, parts, local, entry.shape)


def _add_groups(found: CheckpointTable, groups: Sequence[Mapping[str, Any]], names: list[str]) -> None:
    """The groups of a stage's optimizer: rates as they are, parameters by name, behind those of earlier stages."""
    for g, group in enumerate(groups):
        for key, value in group.items():
            path = ("optimizer", "param_groups", g, key)
            name = ".".join(map(str, path))
            if key == "params":
                before = found.values[name][1] if name in found.values else []
                value = [*before, *(names[int(i)] for i in value)]
            found.values[name] = path, value


def _check_shape(name: str, here: Sequence[int], told: Any) -> None:
    if told is not None and list(told) != list(here):
        raise RunError(
            f"the optimizer's state is in another order than the weights: {name}",
            code="TRN544",
            limit=list(here),
            got=list(told),
            remedy="buffers among the weights hide the parameters' order; convert the weights alone",
        )


def _add_moment(
    found: CheckpointTable, name: str, key: str, parts: list[Any], local: Any, whole: tuple[int, ...]
) -> None:
    path = ("optimizer", "state", name, key)
    joined = ".".join(path)
    first = parts[0]()
    if not first.dim():  # a count of steps
        if joined not in found.entries:
            found.add(joined, path, first.dtype, (), Chunk(((), ()), parts[0]))
        return
    begin = 0
    for part in parts:
        size = min(first.shape[0], local[1][0] - begin)
        if size > 0:
            where = (local[0][0] + begin, *local[0][1:]), (size, *local[1][1:])
            found.add(joined, path, first.dtype, whole, Chunk(where, partial(_first_rows, part, size)))
        begin += max(size, 0)


def _first_rows(load: Any, rows: int) -> Tensor:
    found: Tensor = load()[:rows]
    return found


def _opened(store: Store, file: str) -> Any:
    allowed = [(TensorFileReference, f"{_MODULE}.{_NAME}"), (TensorFileReference, f"{__name__}.{_NAME}")]
    with torch.serialization.safe_globals(allowed):
        return state_files.from_bytes(store.read(file), file)


# -- writing --------------------------------------------------------------------------------------------------------
def write(
    table: CheckpointTable,
    store: Store,
    tag: str,
    layout: ParallelDegrees,
    stages: Mapping[str, int],
    rules: ShardingRules,
) -> Iterator[str]:
    """Write what a table has; yields the name of each tensor that is written. Raises OSError, and RunError (TRN544)
    for tensors that do not divide by the tensor-parallel ranks: the layout has no way to say so."""
    store.delete(f"{tag}/done")
    store.write(f"{tag}/checkpoint", b"1")
    weights = [n for n, e in table.entries.items() if e.path[0] == "model"]
    again = {n: first for n, first in table.same.items() if n.startswith("model.")}
    for place in layout.places():
        local = [n for n in (*weights, *again) if stages[n.removeprefix("model.")] == place.pp]
        if place.dp == 0:
            yield from _weights(table, store, f"{tag}/model/{file_of(place)}", local, layout, place, rules)
        yield from _optimizer(table, store, f"{tag}/optim/{file_of(place)}", local, layout, place, rules)
    for name in ("scheduler", "user_content"):
        if name in table.values:
            store.write(f"{tag}/{name}.pt", state_files.to_bytes(table.values[name][1]))
    store.write(f"{tag}/done", b"1")
    store.write("newest", tag.encode())


def _slice(
    table: CheckpointTable, name: str, layout: ParallelDegrees, place: RankPosition, rules: ShardingRules
) -> Any:
    entry = table.entry(name)
    dim = rules.dimension(name, entry.shape) if layout.tp > 1 else None
    if dim is not None and entry.shape[dim] % layout.tp:
        raise RunError(
            f"{name} does not divide by the tensor-parallel ranks",
            code="TRN544",
            limit=f"a multiple of {layout.tp}",
            got=entry.shape[dim],
            remedy="choose another tp, or leave it whole: --cut 'PATTERN=none'",
        )
    return cut(entry.shape, dim, (place.tp, layout.tp))


def _weights(
    table: CheckpointTable,
    store: Store,
    file: str,
    names: list[str],
    layout: ParallelDegrees,
    place: RankPosition,
    rules: ShardingRules,
) -> Iterator[str]:
    state, info = {}, {}
    for i, name in enumerate(names):
        tensor = table.read(name, _slice(table, name, layout, place, rules))
        store.write(f"{file}.tensors/tensor_{i}.pt", state_files.to_bytes(tensor))
        state[name.removeprefix("model.")] = TensorFileReference(i)
        info[i] = {"dtype": tensor.dtype, "shape": tensor.shape, "expert_model_parallel": False}
        yield name
    _put(store, file, state, info)


def _optimizer(
    table: CheckpointTable,
    store: Store,
    file: str,
    names: list[str],
    layout: ParallelDegrees,
    place: RankPosition,
    rules: ShardingRules,
) -> Iterator[str]:
    """The state of one rank: of its slice of each parameter the part of its data-parallel rank, padded."""
    base: dict[int, dict[str, Any]] = {}
    shapes: dict[int, list[int]] = {}
    info: dict[int, Any] = {}
    keys: dict[str, list[str]] = {}
    for name, entry in table.entries.items():
        if len(entry.path) >= 3 and entry.path[-3] == "state":
            keys.setdefault(str(entry.path[-2]), []).append(name)
    local = set(names)
    names = [f"model.{name}" for name in _ordered(table, keys) if f"model.{name}" in local]
    for i, weight in enumerate(names):
        offsets, sizes = _slice(table, weight, layout, place, rules)
        for name in keys.get(weight.removeprefix("model."), ()):
            shape = table.entry(name).shape
            tensor = table.read(name, (offsets, sizes) if shape == table.entry(weight).shape else None)
            if shape == table.entry(weight).shape and tensor.dim():
                tensor = _part(tensor, layout.dp, place.dp)
            tid = len(info)
            store.write(f"{file}.tensors/tensor_{tid}.pt", state_files.to_bytes(tensor))
            base.setdefault(i, {})[str(table.entry(name).path[-1])] = TensorFileReference(tid)
            info[tid] = {"dtype": tensor.dtype, "shape": tensor.shape, "expert_model_parallel": False}
            shapes[i] = list(sizes)
            yield name
    if base:
        groups = _groups(table, [name.removeprefix("model.") for name in names])
        state = {"state": {}, "base_state": base, "shape_info": shapes, "param_groups": groups}
        state["names"] = [name.removeprefix("model.") for name in names]
        _put(store, file, state, info)


def _groups(table: CheckpointTable, names: list[str]) -> list[dict[str, Any]]:
    """The groups of the optimizer with their rates, of the parameters that are here, by number."""
    found: dict[int, dict[str, Any]] = {}
    for path, value in table.values.values():
        if len(path) >= 3 and path[-3] == "param_groups":
            found.setdefault(int(path[-2]), {})[str(path[-1])] = value
    for group in found.values():
        group["params"] = [names.index(name) for name in group.get("params", ()) if name in names]
    return [found[i] for i in sorted(found)] or [{"params": list(range(len(names)))}]


def _ordered(table: CheckpointTable, known: Mapping[str, Any]) -> list[str]:
    """The parameters in the order of the optimizer's groups, where the checkpoint says it."""
    groups = [(path[-2], value) for path, value in table.values.values() if path[-1] == "params"]
    ordered = [str(name) for _, names in sorted(groups) for name in names]
    return ordered or [*known]


def _part(tensor: Tensor, parts: int, which: int) -> Tensor:
    rows = -(-tensor.shape[0] // parts) * parts
    padded = torch.cat([tensor, tensor.new_zeros((rows - tensor.shape[0], *tensor.shape[1:]))])
    return padded.chunk(parts)[which].clone() if rows else padded


def _put(store: Store, file: str, state: Any, info: Any) -> None:
    content = io.BytesIO()
    torch.save(state, content, pickle_module=_Pickling)
    store.write(file, content.getbuffer())
    store.write(f"{file}.info.pt", state_files.to_bytes(info))
