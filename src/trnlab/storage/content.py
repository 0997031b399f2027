# SPDX-License-Identifier: Apache-2.0
"""Small results by what they were made from: a folder with a file for each, whose name is a digest of that."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trnlab.files import write_atomic
from trnlab.storage import plain_files
from trnlab.storage.keys import SEAL_BYTES, team_key
from trnlab.storage.seals import sealed, unsealed

_LARGEST = 1 << 30  # bytes of a result (assumed)


class ContentStore:
    """A folder of results; None for a folder keeps nothing.

    Any number of processes may read and write it at once: a file is whole or absent, and of two that write one file
    the last wins. A file that is damaged, no plain file, or without the seal of the team's key where there is one
    (`keys`), is as if it were not there. A store that cannot be read or written costs the time to make everything
    anew, and is no error. Raises UsageError (TRN605) for a key that is none.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self._key = folder, team_key() if folder is not None else None

    def file(self, made_from: Any, suffix: str = "json", *, prefix: str = "") -> Path | None:
        """The file of what is made from this, whether or not it is there; None where nothing is kept.

        made_from: plain values that JSON can write, the version of the code that makes the result among them. prefix:
        of the file's name, for people.
        """
        if self.folder is None:
            return None
        text = json.dumps(made_from, sort_keys=True)
        return self.folder / f"{prefix}{hashlib.sha256(text.encode()).hexdigest()}.{suffix}"

    def record(self, file: Path | None) -> dict[str, Any] | None:
        """The record in a file, as it was written; None where there is none or it is damaged."""
        content = self.read(file)
        if content is not None:
            with contextlib.suppress(ValueError, RecursionError):
                found, whole = unsealed(content, ())
                return found if whole else None
        return None

    def read(self, file: Path | None) -> bytes | None:
        """What `write` wrote; None where there is nothing of ours."""
        if file is None:
            return None
        try:
            content = plain_files.read(file, most=_LARGEST)
        except OSError:
            return None
        if self._key is None:
            return content
        content, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
        return content if self._key.fits(seal, file.name, content) else None

    def write_record(self, file: Path | None, record: Mapping[str, Any]) -> bool:
        """Write plain values as JSON with a digest of their own, see `storage.seals`; false where that cannot be."""
        return file is not None and self.write(file, sealed(record))

    def write(self, file: Path | None, *parts: bytes | memoryview) -> bool:
        """Write a file whole, in a format that finds damage by itself; false where that cannot be."""
        if file is None:
            return False
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, *parts, *([] if self._key is None else [self._key.seal(file.name, *parts)]))
        except OSError:
            return False
        return True
