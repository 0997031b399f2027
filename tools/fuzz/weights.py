# SPDX-License-Identifier: Apache-2.0
"""Sound weights and data sets, small, and how they are read as a user does: tables of checkpoints, data sets."""

from __future__ import annotations

import json
import random
import struct
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tools.fuzz import mutate
from trnlab import datasets
from trnlab.datasets.reading import Reader
from trnlab.datasets.shards import INDEX, Shards
from trnlab.errors import RunError
from trnlab.estimate.report_cache import ReportCache
from trnlab.files import json_of
from trnlab.storage import open_store
from trnlab.storage.store_errors import reason

if TYPE_CHECKING:
    from trnlab.frontends.torch.saving.portable.tables import CheckpointTable


# -- tables of tensors ------------------------------------------------------------------------------------------
def safetensors() -> list[bytes]:
    """A file of two tensors that share no memory, and the name of one that does."""
    values = [np.arange(6, dtype="<f4"), np.arange(4, dtype="<f2")]
    header: dict[str, object] = {"__metadata__": {"format": "pt", "trnlab.tied": json.dumps({"head": "a"})}}
    at = 0
    for name, kind, array in zip("ab", ("F32", "F16"), values):
        shape = [2, len(array) // 2]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at := at + array.nbytes]}
    text = json.dumps(header).encode()
    return [struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in values)]


def in_header(data: bytes, pick: random.Random) -> bytes:
    """Bytes of such a file, or its header with a length that fits."""
    if pick.random() < 0.3:
        return mutate.in_bytes(data, pick)
    (length,) = struct.unpack_from("<Q", data)
    text = mutate.dumped(mutate.in_tree(json.loads(data[8 : 8 + length]), pick))
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def safetensors_index() -> list[bytes]:
    """Of a model in one file."""
    weights = dict.fromkeys("ab", "model.safetensors")
    return [json.dumps({"metadata": {"total_size": 32}, "weight_map": weights}).encode()]


def read_safetensors(name: str, data: bytes, folder: Path) -> None:
    """Every tensor of a folder in which one file is this one."""
    from trnlab.frontends.torch.saving.portable import hugging_face

    place = folder / name
    place.mkdir(exist_ok=True)
    if name != hugging_face.ONE:
        (place / hugging_face.ONE).write_bytes(safetensors()[0])
    (place / name).write_bytes(data)
    _every(lambda: hugging_face.table(open_store(place)))


@cache
def dcp() -> dict[str, bytes]:
    """The files of a folder of `torch.distributed.checkpoint`, as PyTorch writes it, by name."""
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.arange(6.0).reshape(2, 3), "deep": {"b": torch.ones(2, dtype=torch.bfloat16)}, "step": 3}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are no ranks
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=False), no_dist=True)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def read_dcp(name: str, data: bytes, folder: Path) -> None:
    """Every tensor of such a folder in which one file is this one."""
    from trnlab.frontends.torch.saving.portable import dcp as tables

    for other, content in dcp().items():
        (folder / other).write_bytes(content)
    (folder / name).write_bytes(data)
    _every(lambda: tables.of_folder(open_store(folder)))


def is_of_dcp(module: str, name: str) -> bool:
    """Whether a class is one of those that an index of DCP is made of."""
    import torch

    from trnlab.frontends.torch.saving.portable.dcp import _CLASSES

    kinds = torch.dtype | torch.layout
    return name in _CLASSES.get(module, ()) or (module == "torch" and isinstance(getattr(torch, name, None), kinds))


def vendor() -> list[bytes]:
    """Weights as a rank of the vendor's layout keeps them."""
    import torch

    from trnlab.frontends.torch.saving import state_files

    return [bytes(state_files.to_bytes({"a.up_proj.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}))]


def read_vendor(data: bytes, folder: Path) -> None:
    """Every tensor of a checkpoint of one rank."""
    from trnlab.frontends.torch.saving.portable import vendor
    from trnlab.storage.layouts import RankPosition, ShardingRules

    path = folder / "step_7" / "model" / vendor.file_of(RankPosition(0, 0, 0))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    _every(lambda: vendor.table(open_store(folder), "step_7", ShardingRules()))


def _every(opened: Callable[[], CheckpointTable]) -> None:
    """Every tensor of a table; a file that is not there is refused as `trnlab checkpoint` refuses it."""
    try:
        table = opened()
        for name in table.entries:
            table.read(name)
        for name in table.same:
            table.entry(name)
    except OSError as error:
        raise RunError(f"the checkpoints cannot be read: {reason(error)}", code="TRN531") from error


# -- data sets --------------------------------------------------------------------------------------------------
@cache
def data_set() -> dict[str, bytes]:
    """The files of a data set, by name."""
    with tempfile.TemporaryDirectory() as folder:
        x = np.arange(24, dtype=np.float32).reshape(8, 3)
        datasets.write(open_store(folder), [{"x": x, "y": np.arange(8)}], shard_bytes=100)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def read_index(data: bytes, folder: Path) -> None:
    """All rows of a data set with this index, and batches of it."""
    _read_set(folder / "indexed", {**data_set(), INDEX: data})


def arrays() -> list[bytes]:
    """A file of a data set."""
    return [content for name, content in sorted(data_set().items()) if name.endswith(".npy")]


def read_array(data: bytes, folder: Path) -> None:
    """All rows of a data set that is one file, and batches of it."""
    _read_set(folder / "alone", {"x-00000.npy": data})


def _read_set(place: Path, content: dict[str, bytes]) -> None:
    place.mkdir(exist_ok=True)
    for name, each in content.items():
        (place / name).write_bytes(each)
    shards = Shards.opened(open_store(place))
    for i, shard in enumerate(shards.shards):
        shards.read(i, 0, shard.rows)
    for _ in zip(range(3), Reader(shards, 2, prefetch=0).until(1)):
        pass


# -- reports ----------------------------------------------------------------------------------------------------
@cache
def reports() -> list[bytes]:
    """A report of a check that is kept."""
    with tempfile.TemporaryDirectory() as folder:
        kept = ReportCache(Path(folder), ["train.py"])
        kept.put({"schema": "trnlab-check", "version": 1, "targets": [{"name": "trn1.2xlarge", "step_s": 0.5}]})
        return [kept._path.read_bytes()]


def read_report(data: bytes, folder: Path) -> None:
    """As the next call of the command; what is damaged is found out anew, and nothing else is answered."""
    kept = ReportCache(folder, ["train.py"])
    kept._path.write_bytes(data)
    found = kept.get()
    assert found in (None, json_of(reports()[0])["record"])
