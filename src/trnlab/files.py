# SPDX-License-Identifier: Apache-2.0
"""Files that are either whole or absent: written beside their place, flushed to disk, then renamed into it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

_TEMPORARY = re.compile(r"^\..+\.\d+-\d+\.tmp$")
_turn = itertools.count()

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


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write `parts` to `path` so that no reader ever sees half of them, whenever the process dies. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_turn)}.tmp")
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _module(name: str) -> Any:
    """A module of the standard library that some systems lack, or None."""
    try:
        return import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt = _module("fcntl"), _module("msvcrt")
CAN_REMOVE_OPEN_FILES = _fcntl is not None  # Windows refuses to
_POLL_S = 0.05


def lock(descriptor: int, *, wait: bool) -> None:
    """Lock an open file for this process, until it is closed; the lock dies with the process.

    Raises BlockingIOError when another process has it and `wait` is False, OSError where nothing can be locked.
    """
    if _fcntl is not None:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | (0 if wait else _fcntl.LOCK_NB))
        return
    if _msvcrt is None:
        raise OSError(errno.ENOSYS, "this system has no file locks")
    while True:
        try:
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
            return
        except OSError as error:
            if not wait:
                raise BlockingIOError(errno.EAGAIN, "another process holds the lock") from error
        time.sleep(_POLL_S)


def abandoned(folder: Path, *, older_than_s: float) -> Iterable[Path]:
    """Temporary files that a killed process left behind in `folder`."""
    now = time.time()
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may finish or sweep it meanwhile
            if _TEMPORARY.match(path.name) and now - path.stat().st_mtime > older_than_s:
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
