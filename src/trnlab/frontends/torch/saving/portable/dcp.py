# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of trnlab, and folders of `torch.distributed.checkpoint` (DCP), read slice by slice and written.

trnlab's own are read by their JSON. The index of a DCP folder that others wrote is a pickle: it is read with a list
of the few classes that such an index has, and nothing else is made or called.
"""

from __future__ import annotations

import io
import operator
import pickle
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from trnlab.errors import RunError
from trnlab.frontends.torch.saving import state_files
from trnlab.frontends.torch.saving.portable.tables import CheckpointTable, Chunk
from trnlab.storage import Store
from trnlab.storage.checkpoints import METADATA, CheckpointInProgress, Checkpoints, folder_of, name_of
from trnlab.storage.finished_checkpoint import FinishedCheckpoint
from trnlab.storage.layouts import Slice

FILE_BYTES = 256 << 20  # of a file that is written in one piece
_Path = tuple[Any, ...]
_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "MetadataIndex",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("PosixPath", "PurePosixPath"),
}


def of_checkpoint(kept: Checkpoints, step: int) -> CheckpointTable:
    """What one of trnlab's own has, of all ranks; each file is checked as a whole before the first of its slices is
    read. Raises OSError, and RunError: TRN532 for damage, TRN543 for what was written before tensors had an index."""
    table, found = CheckpointTable(), kept.finished(step)
    for rank in range(found.ranks):
        record = found.record(rank)
        about = _index_of(record)
        if about is None:
            raise RunError(
                "the checkpoint has no index of its tensors",
                code="TRN543",
                got=name_of(step),
                limit=kept.store.url,
                remedy="go on from it once, which writes newer ones",
            )
        for name, each in about.items():
            try:
                _add(table, found, rank, record["files"], name, each)
            except _MALFORMED as error:
                raise RunError(
                    f"the index of {folder_of(rank)} is damaged at {name!r}: {type(error).__name__}",
                    code="TRN532",
                    got=str(error)[:100],
                    limit=kept.store.url,
                    remedy="take another checkpoint",
                ) from error
    return table


_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError)


def _index_of(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Index of a rank's record: where its tensors are, by name."""
    about = record.get("about")
    tensors = about.get("tensors") if isinstance(about, Mapping) else None
    return tensors if isinstance(tensors, Mapping) else None


def _add(
    table: CheckpointTable,
    found: FinishedCheckpoint,
    rank: int,
    files: Mapping[str, Any],
    name: str,
    about: Mapping[str, Any],
) -> None:
    path, file = tuple(about["path"]), str(about.get("file", state_files.TENSORS))
    start, size = map(operator.index, about["at"])
    if not path or start < 0 or size < 0 or start + size > files[file]["bytes"]:
        raise ValueError(f"bytes {start} to {start + size} of {file}")
    load = partial(_slice_of, found, rank, file, files[file], start, size)
    if "dtype" not in about:
        if name not in table.values:
            table.values[name] = path, load()
        return
    if "same" in about:
        table.same[name] = str(about["same"])
        return
    offsets, sizes, shape = (tuple(map(operator.index, about[each])) for each in ("offsets", "sizes", "shape"))
    dtype = getattr(torch, about["dtype"])
    whole = isinstance(dtype, torch.dtype) and len(shape) == len(offsets) == len(sizes)
    if not whole or any(min(a, n) < 0 or a + n > most for a, n, most in zip(offsets, sizes, shape)):
        raise ValueError(f"{list(sizes)} from {list(offsets)} of {list(shape)}")
    table.add(name, path, dtype, shape, Chunk((offsets, sizes), load))


def _slice_of(
    found: FinishedCheckpoint, rank: int, file: str, about: Mapping[str, Any], start: int, size: int
) -> Any:
    return state_files.from_bytes(found.part(rank, file, about, start, size), file)


def _load(store: Store, file: str, start: int, size: int) -> Any:
    return state_files.from_bytes(store.read_at(file, start, size), file)


_UNUSED = (
    pickle.BYTEARRAY8,
    pickle.NEXT_BUFFER,
    pickle.READONLY_BUFFER,
    pickle.PERSID,
    pickle.BINPERSID,
    pickle.EXT1,
    pickle.EXT2,
    pickle.EXT4,
)


# -- folders of others ----------------------------------------------------------------------------------------------
class _Unpickler(pickle._Unpickler):
    """In Python: damage makes the one in C crash the process, or take memory for numbers that a file names. Without
    what an index has no use for: buffers, references to elsewhere, extensions."""

    dispatch: ClassVar[dict[int, Any]] = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if bytes([code]) not in _UNUSED
    }

    def find_class(self, module: str, name: str) -> Any:
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype | torch.layout):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not of an index of DCP")


_DAMAGE = (  # what a pickle that is damaged raises, and what is made of it
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    MemoryError,
    RuntimeError,
    StopIteration,
    struct.error,
)


def of_folder(store: Store) -> CheckpointTable:
    """What a DCP folder has. Raises OSError, and RunError (TRN532) for an index that is none."""
    try:
        index = _Unpickler(io.BytesIO(store.read(METADATA))).load()
        items = [(key, info) for key, info in index.storage_data.items()]
        paths = index.planner_data or {}
        table = CheckpointTable()
        for key, info in items:
            _add_item(
                table, store, index.state_dict_metadata[key.fqn], key, info, tuple(paths.get(key.fqn, (key.fqn,)))
            )
    except _DAMAGE as error:
        raise RunError(
            f"{METADATA} cannot be read: {type(error).__name__}",
            code="TRN532",
            got=str(error)[:100],
            limit=store.url,
            remedy="take another checkpoint",
        ) from error
    return table


def _add_item(table: CheckpointTable, store: Store, about: Any, key: Any, info: Any, path: tuple[Any, ...]) -> None:
    if ".." in info.relative_path.split("/") or info.relative_path.startswith("/"):
        raise ValueError(f"{info.relative_path} is outside of the folder")
    load = partial(_load, store, info.relative_path, info.offset, info.length)
    if not hasattr(about, "size"):
        try:
            table.values[key.fqn] = path, load()
        except RunError:  # a class of somebody's
            table.values[key.fqn] = path, None
        return
    offsets = tuple(key.offset) if key.offset is not None else (0,) * len(about.size)
    sizes = next(tuple(c.sizes) for c in about.chunks if tuple(c.offsets) == offsets)
    table.add(key.fqn, path, about.properties.dtype, tuple(about.size), Chunk((offsets, sizes), load))


# -- writing --------------------------------------------------------------------------------------------------------
class DcpWriter:
    """A checkpoint of so many ranks in trnlab's form, which is a DCP folder, too. What is in memory at once is
    `FILE_BYTES`, and one tensor's slice."""

    def __init__(self, store: Store, step: int, ranks: int) -> None:
        self._making = CheckpointInProgress(Checkpoints(store, 0, ranks, index=state_files.index), step)
        self._about: list[dict[str, Any]] = [{} for _ in range(ranks)]
        self._parts: list[list[memoryview]] = [[] for _ in range(ranks)]
        self._ends, self._files = [0] * ranks, [0] * ranks

    def put(
        self, rank: int, path: tuple[Any, ...], value: Any, part: tuple[tuple[int, ...], Slice] | None = None
    ) -> None:
        """Add a tensor's slice, or a plain value. part: the shape of the whole, and which slice this is."""
        content = state_files.to_bytes(value)
        file = f"{self._files[rank]:03d}_{state_files.TENSORS}"
        about: dict[str, Any] = {"path": list(path), "at": [self._ends[rank], len(content)], "file": file}
        if isinstance(value, Tensor):
            shape, (offsets, sizes) = part or (tuple(value.shape), ((0,) * value.dim(), tuple(value.shape)))
            kind = str(value.dtype).removeprefix("torch.")
            about |= {"dtype": kind, "shape": list(shape), "offsets": list(offsets), "sizes": list(sizes)}
        self._about[rank][".".join(map(str, path))] = about
        self._parts[rank].append(content)
        self._ends[rank] += len(content)
        if sum(self._ends) >= FILE_BYTES:
            for each in range(len(self._parts)):
                self._flush(each)

    def same(self, name: str, path: tuple[Any, ...], first: str) -> None:
        """Another name of a tensor."""
        for about in self._about:
            if first in about:
                about[name] = {**about[first], "path": list(path), "same": first}

    def finish(self, tree: Mapping[str, Any]) -> None:
        """Write the rest, and mark it done. tree: what else there is to know, for each rank. Raises OSError."""
        state = state_files.to_bytes({"trnlab": 1, "tree": tree, "places": [], "elsewhere": True})
        for rank, about in enumerate(self._about):
            self._flush(rank)
            self._making.put(rank, state_files.FILE, state)
            self._making.rank_done(rank, {"tensors": about})
        self._making.finish()

    def _flush(self, rank: int) -> None:
        if self._parts[rank]:
            self._making.put(rank, f"{self._files[rank]:03d}_{state_files.TENSORS}", self._parts[rank])
            self._parts[rank], self._ends[rank] = [], 0
            self._files[rank] += 1
