# SPDX-License-Identifier: Apache-2.0
"""Digests of files, and records that hold their own: what a checkpoint is known by (ADR 92).

A sealed record is JSON whose last field is the SHA-256 of the others, byte for byte as they are written: no bit of it
changes unnoticed, and who knows nothing of seals reads it as JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trnlab.files import json_of
from trnlab.storage.plain_files import NotPlainFileError
from trnlab.storage.store import Store

Content = bytes | memoryview | Sequence[bytes | memoryview]  # in one piece, or in several
SEAL = "sha256"
PIECE = 64 << 20  # bytes of a file that are in memory at once


def pieces(content: Content) -> Sequence[bytes | memoryview]:
    """A file's content as the pieces that it is of."""
    return [content] if isinstance(content, bytes | memoryview) else content


def described(content: Content) -> dict[str, Any]:
    """Bytes and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    for part in pieces(content):
        digest.update(part)
        size += len(part)
    return {"bytes": size, "sha256": digest.hexdigest()}


def is_as_described(store: Store, name: str, about: Mapping[str, Any]) -> bool:
    """Whether an object has these bytes and digest; of a large one a piece is in memory at a time. Raises OSError."""
    size = about["bytes"]
    if size <= PIECE:
        try:
            return described(store.read(name, most=size)) == {each: about[each] for each in ("bytes", "sha256")}
        except NotPlainFileError:  # larger, or no file
            return False
    digest, found = hashlib.sha256(), 0
    while found < size:
        wanted = min(PIECE, size - found)
        part = store.read_at(name, found, wanted + (found + wanted == size))  # one byte more shows what was appended
        if not part:
            break
        digest.update(part)
        found += len(part)
    return bool(found == size and digest.hexdigest() == about["sha256"])


def sealed(record: Mapping[str, Any]) -> bytes:
    """A record as JSON with its own digest."""
    return json.dumps({**record, SEAL: hashlib.sha256(json.dumps(dict(record)).encode()).hexdigest()}).encode()


def unsealed(content: bytes, older: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """The record, and whether it is sealed: one without has no fields but `older`. Raises ValueError for damage."""
    found = json_of(content)
    if not isinstance(found, dict):
        raise ValueError("it is no record")
    if SEAL not in found:
        if not {*found} <= {*older}:
            raise ValueError("it has fields that no record has")
        return found, False
    told = {name: value for name, value in found.items() if name != SEAL}
    if sealed(told) != content:
        raise ValueError("it is not what was written")
    return told, True
