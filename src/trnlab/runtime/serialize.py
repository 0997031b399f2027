# SPDX-License-Identifier: Apache-2.0
"""The executable file: a compiled program and how it came about, in one file that is checked before it is believed.

    bytes                what
    0..8                 magic
    8..12                format, little-endian
    12..16               length H of the header
    16..48               sha256 of the header
    48..48+H             header, JSON: metadata, schema, table of arrays, lengths and sha256 of the rest
    ...                  program, JSON (see `codec`)
    ...                  graph, text
    ...                  arrays, raw, little-endian, in the order of the table

No pickle, nothing imported or run on load. The header can be read alone, so that a folder of executables lists fast.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnlab.errors import CacheError
from trnlab.program.routine import Program
from trnlab.runtime.codec import Encoder, Json, decode, pack, schema, unpack

MAGIC = b"trnlab\x1a\n"
FORMAT = 1
_PREFIX = struct.Struct("<8sII32s")


@dataclass(frozen=True)
class Stored:
    """What an executable file holds."""

    program: Program
    metadata: dict[str, Any]
    graph: str


def dump(program: Program, metadata: Mapping[str, Any], graph: str = "") -> list[bytes]:
    """The file's bytes, in parts. `metadata` is plain JSON data. Raises TypeError for values it does not know."""
    encoder = Encoder()
    tree = _json(encoder.encode(program))
    text = graph.encode()
    table, raw = [], []
    for array in encoder.arrays:
        entry, columns = pack(array)
        table.append(entry)
        raw.extend(columns)
    parts = [tree, text, *raw]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    header = _json(
        {
            "metadata": dict(metadata),
            "schema": schema(),
            "arrays": table,
            "program_bytes": len(tree),
            "graph_bytes": len(text),
            "body_bytes": sum(map(len, parts)),
            "body_sha256": digest.hexdigest(),
        }
    )
    return [_PREFIX.pack(MAGIC, FORMAT, len(header), hashlib.sha256(header).digest()), header, *parts]


def load(path: Path) -> Stored:
    """Read a file back, checked. Raises CacheError (damaged TRN601, other version TRN602) and OSError."""
    data = memoryview(path.read_bytes())
    header, start = _header(data, path)
    body = data[start:]
    if len(body) != header["body_bytes"]:
        raise damaged(path, f"{len(body)} bytes of content instead of {header['body_bytes']}")
    if hashlib.sha256(body).hexdigest() != header["body_sha256"]:
        raise damaged(path, "its checksum does not fit its content")
    try:
        return _decode(header, body)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def load_metadata(path: Path) -> dict[str, Any]:
    """The metadata alone; the body is not read. Raises CacheError and OSError as `load` does."""
    with path.open("rb") as file:
        prefix = file.read(_PREFIX.size)
        length = _PREFIX.unpack(prefix)[2] if len(prefix) == _PREFIX.size else 0
        header, _ = _header(memoryview(prefix + file.read(length)), path)
    metadata: dict[str, Any] = header["metadata"]
    return metadata


def damaged(path: Path, reason: str) -> CacheError:
    """The error of a file that is not what was written."""
    return CacheError(f"{path.name} is damaged: {reason}", code="TRN601", remedy="it is rebuilt by the next run")


def _decode(header: Json, body: memoryview) -> Stored:
    split, end = header["program_bytes"], header["program_bytes"] + header["graph_bytes"]
    arrays, rest = [], body[end:]
    for entry in header["arrays"]:
        array, used = unpack(entry, rest)
        arrays.append(array)
        rest = rest[used:]
    program = decode(json.loads(bytes(body[:split])), arrays)
    if not isinstance(program, Program) or len(rest):
        raise ValueError("the content is not one program")
    return Stored(program, header["metadata"], bytes(body[split:end]).decode())


def _header(data: memoryview, path: Path) -> tuple[Json, int]:
    """The header, checked, and where the body starts."""
    if len(data) < _PREFIX.size:
        raise damaged(path, f"only {len(data)} bytes long")
    magic, version, length, digest = _PREFIX.unpack(data[: _PREFIX.size])
    if magic != MAGIC:
        raise damaged(path, "it is not an executable file")
    if version != FORMAT:
        raise _other_version(path, f"format {FORMAT}", f"format {version}")
    raw = bytes(data[_PREFIX.size : _PREFIX.size + length])
    if len(raw) != length or hashlib.sha256(raw).digest() != digest:
        raise damaged(path, "its header is cut short or changed")
    header = json.loads(raw)
    if header["schema"] != schema():
        raise _other_version(path, "the program classes of this trnlab", "others")
    return header, _PREFIX.size + length


def _other_version(path: Path, limit: str, got: str) -> CacheError:
    return CacheError(
        f"{path.name} was written by another version of trnlab", code="TRN602", limit=limit, got=got,
        remedy="it is rebuilt by the next run",
    )  # fmt: skip


def _json(tree: Json) -> bytes:
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()
