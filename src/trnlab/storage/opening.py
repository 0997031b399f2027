# SPDX-License-Identifier: Apache-2.0
"""From a path or a URL to its store."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trnlab.errors import UsageError
from trnlab.storage.folder import FolderStore
from trnlab.storage.remote import RemoteStore
from trnlab.storage.store import Store

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")  # of at least two letters: C:\ is a drive


def is_url(text: str) -> bool:
    """Whether this is a URL, such as s3://team/cache, and not a path."""
    return bool(_URL.match(text))


def expanded(text: str | Path) -> Path:
    """A path with the home of `~` or `~user` in it. Raises UsageError (TRN122) for a user whom nobody knows."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"the folder {str(text)!r} has no home: {error}",
            code="TRN122",
            got=str(text),
            remedy="name the folder in full",
        ) from error


def open_store(where: str | Path, *, guarded: bool = False) -> Store:
    """The store of a path or URL: a folder, file://, s3://, memory://, or what else fsspec knows.

    guarded: others may have put things into the folder, see `FolderStore`.
    Nothing is asked of it yet. Raises UsageError (TRN520) for a URL of no known kind, or whose package is missing;
    TRN122 for a folder that is a file.
    """
    text = os.fspath(where)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if is_url(text):
        return RemoteStore(text)
    root = expanded(text)
    if root.is_file():
        raise UsageError(f"the folder {text!r} is a file", code="TRN122", remedy="name a folder, or use --no-cache")
    return FolderStore(root, guarded=guarded)
