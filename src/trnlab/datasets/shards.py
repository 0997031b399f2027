# SPDX-License-Identifier: Apache-2.0
"""A data set in a store: `.npy` files whose first dimension counts samples, or flat files of numbers, read by ranges.

    index.json         what is where, with a CRC-32 for each piece; without it the files are looked at
    x-00000.npy        shard 0 of the field x: float32 [1024, 3, 32, 32], say
    y-00000.npy        shard 0 of the field y, as many rows
    tokens-00000.bin   a flat file: its numbers' format is told, see `Shards.opened`

No file is unpickled. What is read is compared with its size and, with an index, with its checksums.
"""

from __future__ import annotations

import io
import json
import math
import re
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnlab.errors import RunError
from trnlab.files import json_of
from trnlab.storage.store import Item, Store
from trnlab.storage.store_errors import reason

INDEX, BEGUN = "index.json", "writing"
SCHEMA, VERSION = "trnlab.data", 1
PIECE = 1 << 20  # bytes that have one checksum, about
ALONE = "samples"  # the field of files whose names say none
_NAME = re.compile(r"^(?P<folder>.*/)?(?:(?P<field>[^/]+?)[-_.])?(?P<number>\d+)\.(?:npy|bin)$")
_HEAD = 1024  # bytes of a file that have its header; NumPy pads it to 128 for plain arrays
_AT_ONCE = 16
_KINDS = "biuf"
_FORMAT = re.compile(r"[<>|=]?[a-z]+[0-9]{0,2}\Z")
_ROW = 1 << 30  # bytes of a row at most: one is read in one piece


@dataclass(frozen=True)
class Field:
    """A value that every sample has. shape: of one row."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class File:
    """A file of a shard."""

    name: str
    size: int
    offset: int  # bytes before its rows
    crc32: tuple[int, ...] | None = None  # of each `piece_rows` rows, None where unknown


@dataclass(frozen=True)
class Shard:
    """Files with as many rows each, by field."""

    rows: int
    files: Mapping[str, File]


@dataclass(frozen=True)
class Shards:
    """A data set; see the module. piece_rows: rows that have one checksum."""

    store: Store
    fields: tuple[Field, ...]
    shards: tuple[Shard, ...]
    piece_rows: int

    @classmethod
    def opened(cls, store: Store, dtype: str | None = None) -> Shards:
        """What lies in a store. dtype: of the numbers of flat files (`.bin`), such as "uint16".

        Raises RunError: TRN570 where the store cannot be read or has no data set, TRN571 for what is none.
        """
        try:
            try:
                return _of_index(store, store.read(INDEX))
            except FileNotFoundError:
                return scanned(store, dtype)
        except OSError as error:
            raise unreadable(store, error) from error

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all fields."""
        return sum(field.row_bytes for field in self.fields)

    @cached_property
    def rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    @cached_property
    def identity(self) -> int:
        """A checksum of what the data set is: names, formats, sizes, checksums of the files."""
        return zlib.crc32(repr([self.fields, self.shards]).encode())

    def read(self, shard: int, first: int, last: int) -> dict[str, NDArray[Any]]:
        """Rows `first` to `last` (exclusive) of a shard, by field; with an index whole pieces are read and compared.

        Raises RunError: TRN570 where the store cannot be read, TRN572 where a file is not what it was.
        """
        found = {}
        for field in self.fields:
            file = self.shards[shard].files[field.name]
            low, high = self.span(shard, first, last, file.crc32 is not None)
            content = self._sound(file, field, low, high)
            rows = np.frombuffer(content, field.dtype).reshape(-1, *field.shape)
            found[field.name] = rows[first - low : last - low]
        return found

    def span(self, shard: int, first: int, last: int, whole: bool = True) -> tuple[int, int]:
        """The rows that are read for some rows of a shard: whole pieces, where these are compared."""
        if not whole:
            return first, last
        size = self.piece_rows
        return first // size * size, min(-(-last // size) * size, self.shards[shard].rows)

    def _sound(self, file: File, field: Field, low: int, high: int) -> bytes:
        """The bytes of some rows, read twice where they are wrong at first: it may have been the way here."""
        for trial in (0, 1):
            try:
                start = file.offset + low * field.row_bytes
                content = self.store.read_at(file.name, start, (high - low) * field.row_bytes)
            except OSError as error:
                raise unreadable(self.store, error) from error
            wrong = self._wrong(file, field, low, high, content)
            if wrong is None:
                return content
            if trial:
                raise RunError(
                    f"{file.name!r} of a data set is damaged: {wrong}",
                    code="TRN572",
                    got=self.store.url,
                    remedy=f"put the file back as it was; `trnlab data verify {self.store.url}` reads all of them",
                )
        raise AssertionError("unreachable")

    def _wrong(self, file: File, field: Field, low: int, high: int, content: bytes) -> str | None:
        if len(content) != (high - low) * field.row_bytes:
            return f"it ends at byte {file.offset + low * field.row_bytes + len(content):,} of {file.size:,}"
        if file.crc32 is None:
            return None
        found = checksums(content, self.piece_rows * field.row_bytes)
        first = low // self.piece_rows
        for i, value in enumerate(found, first):
            if value != file.crc32[i]:
                rows = f"{i * self.piece_rows:,} to {min((i + 1) * self.piece_rows, high):,}"
                return f"rows {rows} have the CRC-32 {value:08x} and not {file.crc32[i]:08x}"
        return None

    def to_json(self) -> bytes:
        """As `index.json` has it."""
        fields = {f.name: {"dtype": f.dtype.str, "shape": list(f.shape)} for f in self.fields}
        shards = [{"rows": s.rows, "files": {k: _file_json(f) for k, f in s.files.items()}} for s in self.shards]
        return json.dumps(
            {
                "schema": SCHEMA,
                "version": VERSION,
                "piece_rows": self.piece_rows,
                "fields": fields,
                "shards": shards,
            }
        ).encode()


def checksums(content: bytes, piece: int) -> list[int]:
    """The CRC-32 of each piece of so many bytes."""
    view = memoryview(content)
    return [zlib.crc32(view[at : at + piece]) for at in range(0, len(view), piece)]


def piece_rows(fields: tuple[Field, ...]) -> int:
    """How many rows share a checksum, the same for all fields, so that their pieces end together."""
    return max(1, PIECE // max(1, sum(field.row_bytes for field in fields)))


def unreadable(store: Store, error: OSError) -> RunError:
    """The error of a store that does not give its data."""
    return RunError(
        f"the data set cannot be read: {reason(error)}",
        code="TRN570",
        got=store.url,
        remedy="check the place, the credentials and the network; see docs/data.md",
    )


def no_data(store: Store, what: str, got: object = None) -> RunError:
    """The error of a place whose files are no data set."""
    return RunError(
        f"no data set: {what}",
        code="TRN571",
        got=store.url if got is None else got,
        limit="files such as x-00000.npy, of one format and shape for each field, as many rows in all of a shard",
        remedy="see docs/data.md; `trnlab.data.write` makes one",
    )


# -- an index -------------------------------------------------------------------------------------------------------
def _file_json(file: File) -> dict[str, Any]:
    sums = [f"{value:08x}" for value in file.crc32 or ()]
    return {"name": file.name, "size": file.size, "offset": file.offset, "crc32": sums}


def _of_index(store: Store, content: bytes) -> Shards:
    try:
        found = json_of(content)
        if (found["schema"], found["version"]) != (SCHEMA, VERSION):
            raise ValueError(f"version {found['version']!r} of {found['schema']!r}")
        fields = tuple(_field(name, each) for name, each in found["fields"].items())
        size = _whole(found["piece_rows"], 1)
        if size != piece_rows(fields):
            raise ValueError(f"pieces of {size} rows")
        shards = tuple(_shard(each, fields, size) for each in found["shards"])
        if not fields or not sum(shard.rows for shard in shards):
            raise ValueError("no rows")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise no_data(store, f"its {INDEX} cannot be read ({type(error).__name__}: {str(error)[:80]})") from error
    return Shards(store, fields, shards, size)


def _field(name: str, about: Any) -> Field:
    dtype, shape = format_of(about["dtype"]), tuple(_whole(size) for size in about["shape"])
    if dtype is None or not 0 < dtype.itemsize * math.prod(shape) <= _ROW:
        raise ValueError(f"the format {about['dtype']!r} {shape}")
    return Field(name, dtype, shape)


def format_of(text: Any) -> np.dtype[Any] | None:
    """The format of plain numbers that NumPy calls so, such as "<f4" or "uint16"; None for all else."""
    if not _FORMAT.match(str(text)):
        return None
    try:
        dtype = np.dtype(str(text))
    except TypeError:
        return None
    return dtype if dtype.kind in _KINDS else None


def _shard(about: Any, fields: tuple[Field, ...], size: int) -> Shard:
    rows, files = _whole(about["rows"]), {}
    for field in fields:
        told = about["files"][field.name]
        known = tuple(int(value, 16) for value in told["crc32"])
        file = File(str(told["name"]), _whole(told["size"]), _whole(told["offset"]), known)
        if file.name.startswith("/") or ".." in file.name.split("/") or "\\" in file.name:
            raise ValueError(f"the name {file.name!r}")
        if file.offset + rows * field.row_bytes > file.size or len(known) != -(-rows // size):
            raise ValueError(f"the size of {file.name!r}")
        files[field.name] = file
    return Shard(rows, files)


def _whole(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 62:
        raise ValueError(f"the number {value!r}")
    return value


# -- files without an index -----------------------------------------------------------------------------------------
def scanned(store: Store, dtype: str | None) -> Shards:
    """The data set of the files themselves. Raises RunError (TRN571), OSError."""
    items = [item for item in sorted(store.items(), key=lambda i: i.name) if item.name.endswith((".npy", ".bin"))]
    if store.exists(BEGUN):
        raise no_data(store, "it was never finished: whoever wrote it was stopped")
    if not items:
        raise no_data(store, "there are no .npy or .bin files")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        heads = list(pool.map(lambda item: _head(store, item, dtype), items))
    fields: dict[str, Field] = {}
    shards: dict[tuple[str, str], Shard] = {}
    for item, (field, rows, file) in zip(items, heads):
        if fields.setdefault(field.name, field) != field:
            raise no_data(store, f"{item.name!r} has other values than the files before it", f"{field}")
        key = _key(item.name)
        known = shards.get(key, Shard(rows, {}))
        if known.rows != rows or field.name in known.files:
            raise no_data(store, f"{item.name!r} has {rows:,} rows, other files of its shard {known.rows:,}")
        shards[key] = Shard(rows, {**known.files, field.name: file})
    lacking = [key for key, shard in shards.items() if len(shard.files) < len(fields)]
    if lacking:
        raise no_data(store, f"shard {''.join(lacking[0])} lacks a field", ", ".join(shards[lacking[0]].files))
    ordered = tuple(shards[key] for key in shards)
    if not sum(shard.rows for shard in ordered):
        raise no_data(store, "its files have no rows")
    found = tuple(fields.values())
    return Shards(store, found, ordered, piece_rows(found))


def _key(name: str) -> tuple[str, str]:
    match = _NAME.match(name)
    return (match["folder"] or "", match["number"]) if match else (name, "")


def _head(store: Store, item: Item, dtype: str | None) -> tuple[Field, int, File]:
    match = _NAME.match(item.name)
    name = (match["field"] if match else None) or ALONE
    if item.name.endswith(".bin"):
        if dtype is None:
            raise no_data(store, f"nobody says what the numbers of {item.name!r} are: give dtype, such as 'uint16'")
        kind = format_of(dtype)
        if kind is None:
            raise no_data(store, f"dtype={dtype!r} is no format of plain numbers")
        field = Field(name, kind, ())
        return field, item.size // field.row_bytes, File(item.name, item.size, 0)
    shape, kind, offset = _npy(store, item)
    field = Field(name, kind, shape[1:])
    if offset + shape[0] * field.row_bytes != item.size:
        raise no_data(store, f"{item.name!r} has {item.size:,} bytes, its header says other", shape)
    return field, shape[0], File(item.name, item.size, offset)


def _npy(store: Store, item: Item) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, format and offset of the values of a .npy file."""
    file = io.BytesIO(store.read(item.name, _HEAD))
    try:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = readers[version](file)
        if (fortran and len(shape) > 1) or not shape or dtype.kind not in _KINDS or dtype.hasobject:
            raise ValueError(f"{dtype} {shape}, {'columns' if fortran else 'rows'} first")
        if not math.prod(shape[1:]):
            raise ValueError(f"rows of no bytes: {shape}")
    except Exception as error:  # what NumPy makes of damaged headers is of many kinds
        raise no_data(store, f"{item.name!r} is no .npy file of plain numbers in rows: {str(error)[:80]}") from error
    return tuple(int(size) for size in shape), dtype, file.tell()
