# SPDX-License-Identifier: Apache-2.0
"""Files that are either whole or absent: written beside their place, flushed to disk, then renamed into it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_TEMPORARY = re.compile(r"^\..+\.\d+-\d+\.tmp$")

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would pass the size limit of this process",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.ENOENT: "there is no such file or folder",
    errno.EISDIR: "it is a folder",
}
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
}


class Disk:
    """Whether this process is to find the disk full, as a rehearsal of that."""

    full = False


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write `parts` to `path` so that no reader ever sees half of them, whenever the process dies. Raises OSError."""
    with _written_beside(path, parts) as temporary:
        os.replace(temporary, path)
    _sync_folder(path.parent)


def replace(path: Path, content: bytes) -> None:
    """As `write_atomic`, without waiting for the disk: for what is worth nothing after a crash. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{int.from_bytes(os.urandom(6))}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_new(path: Path, *parts: bytes | memoryview) -> bool:
    """As `write_atomic`, but only where nothing has this name; false where something does. Raises OSError.

    Of many that try at once, on this machine or another that shares the folder, one succeeds.
    """
    if path.exists():
        return False
    with _written_beside(path, parts) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                path.open("xb").close()  # who makes the empty file may replace it
            except FileExistsError:
                return False
            os.replace(temporary, path)
    _sync_folder(path.parent)
    return True


_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)


@contextlib.contextmanager
def _written_beside(path: Path, parts: Iterable[bytes | memoryview]) -> Iterator[Path]:
    """A temporary file with `parts`, on disk to the last byte; gone after the block."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{int.from_bytes(os.urandom(6))}.tmp")
    if Disk.full:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def json_of(content: str | bytes | bytearray | memoryview) -> Any:
    """The value that JSON describes. Raises ValueError for all else, what is nested too deeply included."""
    try:
        return json.loads(bytes(content) if isinstance(content, memoryview) else content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one of those that are being written, or whose writer was killed."""
    return _TEMPORARY.match(name) is not None


def abandoned(folder: Path, *, older_than_s: float) -> Iterable[Path]:
    """Temporary files that a killed process left behind in `folder`."""
    now = time.time()
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may finish or sweep it meanwhile
            if is_temporary(path.name) and now - path.lstat().st_mtime > older_than_s:
                yield path


def why(error: OSError) -> str:
    """What went wrong with a file, in a few plain words."""
    return _REASONS.get(error.errno or 0, (error.strerror or str(error)).lower())


def way_out(error: OSError, otherwise: str) -> str:
    """What to do about it."""
    return _REMEDIES.get(error.errno or 0, otherwise)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable where the system can."""
    with contextlib.suppress(OSError):  # some file systems refuse to sync a folder; the rename is atomic all the same
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
