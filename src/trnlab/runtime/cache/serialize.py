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
    ...                  seal of a team's key, 32 bytes, see `storage.keys`; where there is one

No pickle, nothing imported or run on load. The header can be read alone, so that a folder of executables lists fast.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnlab.errors import CacheError
from trnlab.files import json_of
from trnlab.program.routine import Program
from trnlab.runtime.cache.codec import Array, Encoder, Json, decode, pack, schema, unpack
from trnlab.storage.keys import SEAL_BYTES

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
    tree = encoder.encode(program)
    return dump_tree(tree, encoder.arrays, metadata, graph)


def dump_tree(encoded: Json, arrays: Sequence[Array], metadata: Mapping[str, Any], graph: str = "") -> list[bytes]:
    """The same of a program that is encoded already."""
    tree, text = _json(encoded), graph.encode()
    table, raw = [], []
    for array in arrays:
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
    return loads(path.read_bytes(), path.name)


def loads(content: bytes, name: str, filled: bool = True) -> Stored:
    """The same for bytes, called `name` in errors. Raises CacheError: damaged TRN601, of another version TRN602.

    filled: whether arrays have their values; without them for who only asks whether it reads.
    """
    data = memoryview(content)
    header, start = _header(data, name)
    body = data[start:]
    if len(body) == header["body_bytes"] + SEAL_BYTES:  # of a team whose key this process has not, or did not ask for
        body = body[:-SEAL_BYTES]
    if len(body) != header["body_bytes"]:
        raise damaged(name, f"{len(body)} bytes of content instead of {header['body_bytes']}")
    if hashlib.sha256(body).hexdigest() != header["body_sha256"]:
        raise damaged(name, "its checksum does not fit its content")
    try:
        return _decode(header, body, filled)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise damaged(name, f"{type(error).__name__}: {error}") from error


def header_size(content: bytes) -> int:
    """How many bytes from the start `loads_metadata` needs, as these first ones say."""
    if len(content) < _PREFIX.size:
        return 0
    return _PREFIX.size + int(_PREFIX.unpack(content[: _PREFIX.size])[2])


def loads_metadata(content: bytes, name: str) -> dict[str, Any]:
    """The metadata alone, from the first bytes; the body is not looked at. Raises CacheError as `loads` does."""
    header, _ = _header(memoryview(content), name)
    metadata: dict[str, Any] = header["metadata"]
    return metadata


def damaged(name: str, reason: str) -> CacheError:
    """The error of a file that is not what was written."""
    return CacheError(f"{name} is damaged: {reason}", code="TRN601", remedy="it is rebuilt by the next run")


def _decode(header: Json, body: memoryview, filled: bool) -> Stored:
    split, end = header["program_bytes"], header["program_bytes"] + header["graph_bytes"]
    arrays, rest = [], body[end:]
    for entry in header["arrays"]:
        array, used = unpack(entry, rest, filled)
        arrays.append(array)
        rest = rest[used:]
    program = decode(json_of(bytes(body[:split])), arrays)
    if not isinstance(program, Program) or len(rest):
        raise ValueError("the content is not one program")
    return Stored(program, header["metadata"], bytes(body[split:end]).decode())


def _header(data: memoryview, name: str) -> tuple[Json, int]:
    """The header, checked, and where the body starts."""
    if len(data) < _PREFIX.size:
        raise damaged(name, f"only {len(data)} bytes long")
    magic, version, length, digest = _PREFIX.unpack(data[: _PREFIX.size])
    if magic != MAGIC:
        raise damaged(name, "it is not an executable file")
    if version != FORMAT:
        raise _other_version(name, f"format {FORMAT}", f"format {version}")
    raw = bytes(data[_PREFIX.size : _PREFIX.size + length])
    if len(raw) != length or hashlib.sha256(raw).digest() != digest:
        raise damaged(name, "its header is cut short or changed")
    try:
        header = json_of(raw)
        known = "schema" in header and isinstance(header["metadata"], dict) and isinstance(header["body_sha256"], str)
        sizes = [header[name] for name in ("program_bytes", "graph_bytes", "body_bytes")]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(name, f"its header is of another kind ({type(error).__name__})") from error
    if not known or not all(type(size) is int and size >= 0 for size in sizes):
        raise damaged(name, "its header is of another kind")
    if header["schema"] != schema():
        raise _other_version(name, "the program classes of this trnlab", "others")
    return header, _PREFIX.size + length


def _other_version(name: str, limit: str, got: str) -> CacheError:
    return CacheError(
        f"{name} was written by another version of trnlab",
        code="TRN602",
        limit=limit,
        got=got,
        remedy="it is rebuilt by the next run",
    )


def _json(tree: Json) -> bytes:
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()
