# SPDX-License-Identifier: Apache-2.0
"""A folder as a store: of this machine, or one that several share (NFS, Lustre, EFS)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from trnlab.files import abandoned, write_atomic, write_new
from trnlab.storage.store import Item, Usage

USES = ".hits"  # beside an object: one byte per use


class FolderStore:
    """Files below `root`, which is made when first written to."""

    shared = True  # it may be mounted elsewhere, which cannot be seen

    def __init__(self, root: Path) -> None:
        self.root, self.url, self.usage = root, str(root), Usage()

    def path(self, name: str) -> Path:
        """The file of an object."""
        return self.root / name

    def read(self, name: str, first: int | None = None) -> bytes:
        """See `Store`."""
        self.usage.requests += 1
        with self.path(name).open("rb") as file:
            content = file.read(-1 if first is None else first)
        self.usage.read_bytes += len(content)
        return content

    def read_at(self, name: str, start: int, size: int) -> bytes:
        """See `Store`."""
        self.usage.requests += 1
        with self.path(name).open("rb") as file:
            file.seek(start)
            content = file.read(size)
        self.usage.read_bytes += len(content)
        return content

    def write(self, name: str, *parts: bytes | memoryview) -> None:
        """See `Store`."""
        self._count(parts)
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, *parts)

    def create(self, name: str, *parts: bytes | memoryview) -> bool:
        """See `Store`."""
        self._count(parts)
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_new(path, *parts)

    def exists(self, name: str) -> bool:
        """See `Store`."""
        self.usage.requests += 1
        try:
            self.path(name).stat()
        except FileNotFoundError:
            return False
        return True

    def items(self, prefix: str = "") -> list[Item]:
        """See `Store`."""
        self.usage.requests += 1
        folder, _, start = prefix.rpartition("/")
        found = []
        for base, _, files in os.walk(self.root / folder, onerror=_unless_missing):
            for file in files:
                path = Path(base, file)
                name = path.relative_to(self.root).as_posix()
                if not file.startswith(".") and name.startswith(f"{folder}/{start}" if folder else start):
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        status = path.stat()
                        found.append(Item(name, status.st_size, status.st_mtime))
        return found

    def delete(self, *names: str) -> None:
        """See `Store`. Folders that are empty afterwards stay."""
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def note_use(self, name: str) -> None:
        """One appended byte: atomic between processes, and nothing to repair after a crash."""
        with contextlib.suppress(OSError), self.path(name + USES).open("ab", buffering=0) as file:
            file.write(b".")

    def leftovers(self, prefix: str = "", *, older_than_s: float = 0.0) -> list[str]:
        """See `Store`."""
        folder = self.root / prefix
        if not folder.is_dir():
            return []
        return sorted(p.relative_to(self.root).as_posix() for p in abandoned(folder, older_than_s=older_than_s))

    def _count(self, parts: tuple[bytes | memoryview, ...]) -> None:
        self.usage.requests += 1
        self.usage.written_bytes += sum(map(len, parts))


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
