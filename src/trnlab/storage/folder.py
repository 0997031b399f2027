# SPDX-License-Identifier: Apache-2.0
"""A folder as a store: of this machine, or one that several share (NFS, Lustre, EFS)."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from trnlab.files import abandoned, is_temporary, write_atomic, write_new
from trnlab.storage import plain_files
from trnlab.storage.plain_files import NotPlainFileError
from trnlab.storage.store import Item, StoreUsage

USES = ".hits"  # beside an object: one byte per use
_TRIES = 100  # at a folder that somebody else removes as empty whenever it is made
_Result = TypeVar("_Result")


class FolderStore:
    """Files below `root`, which is made when first written to.

    guarded: others may have put things there. No link is followed, and what is no plain file raises StrangeError.
    What is no plain file is not waited for in any case.
    """

    shared = True  # it may be mounted elsewhere, which cannot be seen

    def __init__(self, root: Path, *, guarded: bool = False) -> None:
        self.root, self.url, self.usage, self.guarded = root, str(root), StoreUsage(), guarded

    def path(self, name: str) -> Path:
        """The file of an object. Raises StrangeError where its folder is a link, and the store is guarded."""
        return self._unlinked(name) if self.guarded else self.root / name

    def _unlinked(self, name: str) -> Path:
        """The file of an object, in folders that are no links below the root. Raises StrangeError."""
        path = self.root / name
        for folder in path.relative_to(self.root).parents:
            if folder.name and (self.root / folder).is_symlink():
                raise NotPlainFileError(self.root / folder, "a link")
        return path

    def read(self, name: str, first: int | None = None, most: int | None = None) -> bytes:
        """See `Store`."""
        self.usage.requests += 1
        content = plain_files.read(self.path(name), size=first, most=most, links=not self.guarded)
        self.usage.read_bytes += len(content)
        return content

    def read_at(self, name: str, start: int, size: int) -> bytes:
        """See `Store`."""
        self.usage.requests += 1
        content = plain_files.read(self.path(name), start=start, size=size, links=not self.guarded)
        self.usage.read_bytes += len(content)
        return content

    def write(self, name: str, *parts: bytes | memoryview) -> None:
        """See `Store`."""
        self._count(parts)
        self._placed(name, lambda path: write_atomic(path, *parts))

    def create(self, name: str, *parts: bytes | memoryview) -> bool:
        """See `Store`."""
        self._count(parts)
        return self._placed(name, lambda path: write_new(path, *parts))

    def _placed(self, name: str, write: Callable[[Path], _Result]) -> _Result:
        """Make the folder and write: again where it was removed as empty in between."""
        path = self.path(name)
        if self.guarded:
            with contextlib.suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if not stat.S_ISREG(mode):
                    raise NotPlainFileError(path, plain_files.kind(mode))
        for _ in range(_TRIES):
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return write(path)
        return write(path)

    def exists(self, name: str) -> bool:
        """See `Store`."""
        self.usage.requests += 1
        if self.guarded:
            return plain_files.is_plain(self.path(name))
        try:
            self.path(name).stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return False  # a link that leads nowhere
        return True

    def items(self, prefix: str = "") -> list[Item]:
        """See `Store`."""
        self.usage.requests += 1
        return [item for item, mode in self._found(prefix) if stat.S_ISREG(mode) or not self.guarded]

    def strange(self, prefix: str = "") -> list[tuple[str, str]]:
        """What is no plain file, by name, and what it is instead. Raises OSError."""
        return [(item.name, plain_files.kind(mode)) for item, mode in self._found(prefix) if not stat.S_ISREG(mode)]

    def _found(self, prefix: str) -> Iterator[tuple[Item, int]]:
        """All below `prefix` but folders, and the mode of each."""
        folder, _, start = prefix.rpartition("/")
        try:
            top = self.path(f"{folder}/x" if folder else "x").parent
        except NotPlainFileError as error:
            link = Path(str(error.filename))
            yield Item(link.relative_to(self.root).as_posix(), 0, 0.0), link.lstat().st_mode
            return
        for base, folders, files in os.walk(top, onerror=_unless_missing):
            links = [each for each in folders if self.guarded and Path(base, each).is_symlink()]
            for file in (*files, *links):
                path = Path(base, file)
                name = path.relative_to(self.root).as_posix()
                if not file.startswith(".") and name.startswith(f"{folder}/{start}" if folder else start):
                    with contextlib.suppress(OSError):  # removed meanwhile, or a link to nowhere
                        status = path.lstat() if self.guarded else path.stat()
                        yield Item(name, status.st_size, status.st_mtime), status.st_mode

    def delete(self, *names: str) -> None:
        """See `Store`. Plain files alone, and none behind a link: what somebody linked here is not ours. Folders that
        are empty afterwards stay, see `remove_folder`."""
        for name in names:
            with contextlib.suppress(NotPlainFileError):
                plain_files.removed(self._unlinked(name))

    def within(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        """See `Store`: nothing is tried again."""
        return contextlib.nullcontext()

    def remove_folder(self, prefix: str) -> None:
        """See `Store`: temporary files and empty folders; what else is there stays, with the folders around it."""
        with contextlib.suppress(NotPlainFileError):
            for base, _, files in os.walk(self._unlinked(f"{prefix.rstrip('/')}/x").parent, topdown=False):
                for file in files:
                    if is_temporary(file):
                        plain_files.removed(Path(base, file))
                with contextlib.suppress(OSError):  # it is not empty
                    os.rmdir(base)

    def note_use(self, name: str) -> None:
        """One appended byte: atomic between processes, and nothing to repair after a crash."""
        with contextlib.suppress(OSError):
            plain_files.append(self.path(name + USES), b".")

    def leftovers(self, prefix: str = "", *, older_than_s: float = 0.0) -> list[str]:
        """See `Store`."""
        folder = self.root / prefix
        if not folder.is_dir() or (self.guarded and folder.is_symlink()):
            return []
        return sorted(p.relative_to(self.root).as_posix() for p in abandoned(folder, older_than_s=older_than_s))

    def _count(self, parts: tuple[bytes | memoryview, ...]) -> None:
        self.usage.requests += 1
        self.usage.written_bytes += sum(map(len, parts))


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
