# SPDX-License-Identifier: Apache-2.0
"""Data sets are written, and indexed where they were written by others."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnlab.datasets.shards import (
    _KINDS,
    BEGUN,
    INDEX,
    Field,
    File,
    Shard,
    Shards,
    checksums,
    no_data,
    piece_rows,
    scanned,
    unreadable,
)
from trnlab.errors import RunError, UsageError
from trnlab.storage.store import Store

SHARD = 256 << 20  # bytes of a shard's files, about


def write(store: Store, parts: Iterable[Mapping[str, NDArray[Any]]], shard_bytes: int = SHARD) -> Shards:
    """Write a data set of parts that each have some samples: arrays by field, as many rows in each.

    The index comes last, and a mark that the set is being written goes then: what is not whole is not read.
    Raises UsageError (TRN573) where there is one already, or parts differ; RunError (TRN570) for a store's trouble.
    """
    try:
        if store.exists(INDEX):
            raise UsageError(
                "there is a data set already", code="TRN573", got=store.url, remedy="write to another place"
            )
        store.write(BEGUN, b"")
        fields: tuple[Field, ...] = ()
        shards: list[Shard] = []
        for gathered in _gathered(parts, shard_bytes):
            here = tuple(Field(name, array.dtype, array.shape[1:]) for name, array in gathered.items())
            fields = fields or here
            if here != fields:
                raise _differ(store, here, fields)
            shards.append(_put(store, len(shards), gathered, piece_rows(fields)))
        if not shards:
            raise no_data(store, "there are no samples to write")
        written = Shards(store, fields, tuple(shards), piece_rows(fields))
        store.write(INDEX, written.to_json())
        store.delete(BEGUN)
    except OSError as error:
        raise unreadable(store, error) from error
    return written


def index(store: Store, dtype: str | None = None) -> Shards:
    """Read every file of a data set once, and write an index with its checksums.

    Raises RunError: TRN570, TRN571 as `Shards.opened`.
    """
    try:
        found = scanned(store, dtype)
        shards = []
        for number, shard in enumerate(found.shards):
            files = {
                field.name: replace(shard.files[field.name], crc32=_summed(found, number, field))
                for field in found.fields
            }
            shards.append(Shard(shard.rows, files))
        made = replace(found, shards=tuple(shards))
        store.write(INDEX, made.to_json())
    except OSError as error:
        raise unreadable(store, error) from error
    return made


def damaged(shards: Shards) -> list[str]:
    """What is wrong with a data set whose files are all read, a line for each shard. Raises RunError (TRN570)."""
    found = []
    for number, shard in enumerate(shards.shards):
        for first in range(0, shard.rows, shards.piece_rows * 8):
            try:
                shards.read(number, first, min(first + shards.piece_rows * 8, shard.rows))
            except RunError as error:
                if error.code != "TRN572":
                    raise
                found.append(error.what)
                break
    return found


def _gathered(parts: Iterable[Mapping[str, NDArray[Any]]], most: int) -> Iterable[dict[str, NDArray[Any]]]:
    """The samples of parts, in arrays of so many bytes together, or one part more."""
    waiting: list[dict[str, NDArray[Any]]] = []
    size = 0
    for part in parts:
        arrays = {name: np.ascontiguousarray(array) for name, array in part.items()}
        _checked(arrays)
        waiting.append(arrays)
        size += sum(array.nbytes for array in arrays.values())
        if size >= most:
            yield _joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _checked(arrays: Mapping[str, NDArray[Any]]) -> None:
    rows = {array.shape[0] if array.ndim else -1 for array in arrays.values()}
    plain = all(array.dtype.kind in _KINDS and array[:1].nbytes for array in arrays.values() if array.ndim)
    named = all(name.replace("_", "a").isalnum() and not name[-1:].isdigit() for name in arrays)
    if len(rows) != 1 or rows & {-1, 0} or not plain or not named:
        raise UsageError(
            "samples are arrays of plain numbers by name, with as many rows in each",
            code="TRN573",
            got={name: f"{array.dtype}{list(array.shape)}" for name, array in arrays.items()},
            limit="names of letters and _, at least one row",
            remedy="such as {'x': images, 'y': labels}",
        )


def _joined(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except (KeyError, ValueError) as error:
        raise UsageError(
            "the parts of a data set have other fields or shapes",
            code="TRN573",
            got=str(error)[:100],
            remedy="give all of them the same fields, formats and shapes",
        ) from error


def _put(store: Store, number: int, arrays: Mapping[str, NDArray[Any]], rows: int) -> Shard:
    files = {}
    for name, array in arrays.items():
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
        content = array.tobytes()
        file = f"{name}-{number:05d}.npy"
        store.write(file, head.getvalue(), content)
        sums = checksums(content, rows * array[:1].nbytes)
        files[name] = File(file, head.tell() + len(content), head.tell(), tuple(sums))
    return Shard(len(next(iter(arrays.values()))), files)


def _differ(store: Store, here: tuple[Field, ...], fields: tuple[Field, ...]) -> UsageError:
    return UsageError(
        "the parts of a data set have other fields or shapes",
        code="TRN573",
        got=f"{here} after {fields}",
        remedy="give all of them the same fields, formats and shapes",
    )


def _summed(found: Shards, number: int, field: Field) -> tuple[int, ...]:
    """The checksums of a file, read a few pieces at a time."""
    shard, step, sums = found.shards[number], found.piece_rows * 8, list[int]()
    alone = replace(found, fields=(field,))
    for first in range(0, shard.rows, step):
        rows = alone.read(number, first, min(first + step, shard.rows))[field.name]
        sums += checksums(rows.tobytes(), found.piece_rows * field.row_bytes)
    return tuple(sums)
