# SPDX-License-Identifier: Apache-2.0
"""Files that others may have put there: opened only where they are plain ones, removed only where they are ours.

A name in a folder that others write to may be a link to somebody's file, a FIFO that never answers, a device, or a
file of terabytes that takes no room. `opened` waits for none of them and follows no link unless told to; everything
in trnlab that removes files of a place that a user named goes through `removed`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class NotPlainFileError(OSError):
    """What has the name is no plain file, is too large, or may not be opened, though its folder may be: nobody but
    the file is in trouble."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(errno.EINVAL, what, str(path))
        self.what = what


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDONLY, *, links: bool = False) -> Iterator[int]:
    """The descriptor of a plain file. links: whether one that is reached through a link will do.

    Raises FileNotFoundError, StrangeError for what is there and no plain file, OSError.
    """
    try:
        descriptor = os.open(path, flags | _NO_WAIT | (0 if links else _NO_LINK), 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise (NotPlainFileError(path, _said(path, error)) if _is_there(path) else error) from error
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise NotPlainFileError(path, kind(about.st_mode))
        yield descriptor
    finally:
        os.close(descriptor)


def read(
    path: Path, *, start: int = 0, size: int | None = None, most: int | None = None, links: bool = False
) -> bytes:
    """A plain file, or `size` bytes of it from `start` on. most: bytes of a whole file that can be ours, or a
    StrangeError is raised, as by `opened`; memory that is not there is one, too."""
    with opened(path, links=links) as descriptor:
        length = os.fstat(descriptor).st_size
        if most is not None and length > most:
            raise NotPlainFileError(path, f"a file of {length} bytes, and {most} are the most")
        try:
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                file.seek(start)
                return _exactly(file, length - start if size is None else min(size, max(length - start, 0)))
        except (MemoryError, OverflowError):
            raise NotPlainFileError(path, f"a file of {length} bytes, more than there is memory for") from None


def _exactly(file: object, size: int) -> bytes:
    """So many bytes, and what was appended meanwhile; a single read of a large file may give less."""
    reads = file.read  # type: ignore[attr-defined]
    content: bytes = reads(size) if size > 0 else b""
    if len(content) >= size:
        return content
    parts = [content]
    while content and sum(map(len, parts)) < size:
        content = reads(size - sum(map(len, parts)))
        parts.append(content)
    return b"".join(parts)


def append(path: Path, content: bytes) -> None:
    """Append to a plain file, which is made where there is none. Raises as `opened`; StrangeError, too, where the
    file has another name, which may be somebody's."""
    with opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as descriptor:
        if os.fstat(descriptor).st_nlink > 1:
            raise NotPlainFileError(path, "a file of several names")
        os.write(descriptor, content)


def is_plain(path: Path) -> bool:
    """Whether a plain file has this name, and no link. Raises OSError where its folder cannot be looked into."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def removed(path: Path) -> bool:
    """Remove a plain file; false where there is none of this name. A link, folder or device stays. Raises OSError."""
    if not is_plain(path):
        return False
    path.unlink(missing_ok=True)
    return True


def kind(mode: int) -> str:
    """What no plain file is, in a word or two."""
    tests = (
        (stat.S_ISLNK, "a link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in tests if test(mode)), "a plain file")


def _is_there(path: Path) -> bool:
    """Whether the name itself can be looked at, so that only what has it is in the way."""
    try:
        path.lstat()
    except OSError:
        return False
    return True


def _said(path: Path, error: OSError) -> str:
    mode = path.lstat().st_mode
    return f"a file that may not be opened: {error.strerror}" if stat.S_ISREG(mode) else kind(mode)
