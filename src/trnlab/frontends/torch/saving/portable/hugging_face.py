# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face: folders of `*.safetensors` with `model.safetensors.index.json`, read and written.

Files have raw bytes and a header of JSON: they are read without pickle. Tied weights are written once, under
the name of the first, as `save_pretrained` does; which names they stand for is in the metadata of each file.
"""

from __future__ import annotations

import contextlib
import json
import operator
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import RunError, UsageError
from trnlab.files import json_of
from trnlab.frontends.torch.saving.portable.tables import CheckpointTable, Chunk
from trnlab.storage import Store

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 1 << 30
_MOST_HEADER = 100 << 20  # the limit of the library
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_TIED = "trnlab.tied"


def library() -> Any:
    """The package safetensors. Raises UsageError (TRN545) where it is not installed."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise UsageError(
            "files of Hugging Face need the package safetensors",
            code="TRN545",
            got=str(error),
            remedy="pip install safetensors",
        ) from error
    return safetensors.torch


# -- reading --------------------------------------------------------------------------------------------------------
def table(store: Store) -> CheckpointTable:
    """What a folder has, as `model.<name>`. Raises OSError, and RunError (TRN532) for files that are none."""
    found = CheckpointTable()
    for file in _files(store):
        size = int.from_bytes(store.read(file, 8), "little")
        if size > _MOST_HEADER:
            raise _damaged(file, f"a header of {size} bytes")
        try:
            header = json_of(store.read_at(file, 8, size))
            told = header.pop("__metadata__", {})
            for name, about in header.items():
                begin, end = map(operator.index, about["data_offsets"])
                _add(found, store, file, name, about, (8 + size + begin, end - begin))
            found.same |= {f"model.{a}": f"model.{b}" for a, b in json_of(told.get(_TIED, "{}")).items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise _damaged(file, type(error).__name__) from error
    return found


def _add(
    found: CheckpointTable, store: Store, file: str, name: str, about: Mapping[str, Any], at: tuple[int, int]
) -> None:
    dtype, shape = _DTYPES[about["dtype"]], tuple(map(int, about["shape"]))
    if at[1] != torch.Size(shape).numel() * dtype.itemsize:
        raise ValueError(f"{name} has {at[1]} bytes")
    load = partial(_load, store, file, at, dtype, shape)
    found.add(f"model.{name}", ("model", name), dtype, shape, Chunk(((0,) * len(shape), shape), load))


def _load(store: Store, file: str, at: tuple[int, int], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    content = bytearray(store.read_at(file, *at))
    if len(content) != at[1]:
        raise _damaged(file, f"{len(content)} bytes of {at[1]}")
    return torch.frombuffer(content, dtype=dtype).reshape(shape) if content else torch.empty(shape, dtype=dtype)


def _files(store: Store) -> list[str]:
    if not store.exists(INDEX):
        return [ONE]
    try:
        files = sorted(set(json_of(store.read(INDEX))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(INDEX, type(error).__name__) from error
    if not all(isinstance(file, str) and re.fullmatch(r"[\w.-]+\.safetensors", file) for file in files):
        raise _damaged(INDEX, "names of files that are none")
    return files


def _damaged(file: str, why: str) -> RunError:
    return RunError(f"{file} cannot be read: {why}", code="TRN532", remedy="copy it once more")


# -- writing --------------------------------------------------------------------------------------------------------
def write(
    table: CheckpointTable, store: Store, shard_bytes: int = SHARD_BYTES, dtype: torch.dtype | None = None
) -> Iterator[str]:
    """Write the model of a table; yields the name of each tensor. dtype: of floating-point tensors, as they are for
    None. Nothing but weights and buffers goes along, and where it fails nothing of it stays.
    Raises UsageError (TRN545), OSError, RunError."""
    save = library().save
    shards = _shards(table, shard_bytes, dtype)
    files = [
        ONE if len(shards) == 1 else f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))
    ]
    tied = {_short(a): _short(b) for a, b in table.same.items() if a.startswith("model.")}
    metadata = {"format": "pt"} | ({_TIED: json.dumps(tied)} if tied else {})
    total = 0
    store.delete(INDEX, ONE)  # of another model: its index would name files of this one
    try:
        for file, names in zip(files, shards):
            tensors = {}
            for name in names:
                tensor = table.read(name)
                tensors[_short(name)] = (
                    tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
                )
                total += tensors[_short(name)].nbytes
                yield name
            store.write(file, save(tensors, metadata))
        if len(shards) > 1:
            places = {_short(name): file for file, names in zip(files, shards) for name in names}
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            store.write(INDEX, json.dumps(index, indent=2).encode())
    except BaseException:
        with contextlib.suppress(OSError):
            store.delete(INDEX, *files)
        raise


def remove(store: Store) -> None:
    """Take away a model that `write` wrote. Raises OSError."""
    files = _files(store)
    store.delete(INDEX, *files)


def _shards(table: CheckpointTable, most: int, dtype: torch.dtype | None) -> list[list[str]]:
    """The tensors of each file: in their order, as many as it takes, one at least."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, entry in table.entries.items():
        if entry.path[0] != "model":
            continue
        nbytes = entry.nbytes // entry.dtype.itemsize * (dtype or entry.dtype).itemsize
        if shards[-1] and size + nbytes > most:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += nbytes
    return shards


def _short(name: str) -> str:
    return name.removeprefix("model.")
