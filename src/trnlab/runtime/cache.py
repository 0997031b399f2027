# SPDX-License-Identifier: Apache-2.0
"""The compile cache: executables by the digest of what they were made from.

A folder of files `<key>.trnx` (see `serialize`), each written whole or not at all, and beside each a `<key>.hits`
with one byte per use. Any number of processes may read and write it at once; a process that dies, at any moment,
leaves at worst a temporary file that nobody reads. What is read is checked; what fails the check is told in one line,
and built again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnlab.errors import CacheError, UsageError
from trnlab.files import CAN_REMOVE_OPEN_FILES, abandoned, lock, way_out, why, write_atomic
from trnlab.program.routine import Program
from trnlab.runtime import serialize
from trnlab.runtime.fingerprint import Fingerprint
from trnlab.runtime.notices import Say, say

SUFFIX = ".trnx"
ABANDONED_AFTER_S = 3600.0


@dataclass(frozen=True)
class Entry:
    """One executable of the cache. `problem` is None for a sound one; then `metadata` is complete."""

    key: str
    path: Path
    size: int
    modified: float
    hits: int
    metadata: dict[str, Any]
    problem: CacheError | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """What the entry was compiled from."""
        return Fingerprint(self.key, self.metadata["name"], self.metadata["parts"])


class Cache:
    """A cache in folder `root`, made when first written to. Raises UsageError when `root` is a file."""

    def __init__(self, root: Path, say: Say = say) -> None:
        if root.is_file():
            raise UsageError(
                f"the cache {str(root)!r} is a file", code="TRN122", remedy="name a folder, or use --no-cache"
            )
        self.root = root
        self._folder = root / f"v{serialize.FORMAT}"
        self._say = say
        self._usable = True

    # -- one entry ----------------------------------------------------------------------------------------------
    def has(self, key: str) -> bool:
        """Whether there is a file for `key`; it is not opened."""
        with contextlib.suppress(OSError):
            return self._path(key).exists()
        return False

    def get(self, key: str) -> serialize.Stored | None:
        """The executable of `key`, checked, or None. Trouble is told in one line and counts as a miss."""
        path = self._path(key)
        try:
            stored = serialize.load(path)
            if stored.metadata.get("key") != key:
                raise serialize.damaged(path, "it holds another executable")
        except FileNotFoundError:
            return None
        except CacheError as error:
            self._say(f"cache entry {key[:12]} is not usable and is rebuilt ({error.what})")
            return None
        except OSError as error:
            self._give_up("read", error)
            return None
        self._count_hit(key)
        return stored

    def put(self, key: str, program: Program, metadata: dict[str, Any], graph: str) -> bool:
        """Store an executable; false, with one line said, when it could not be written."""
        if not self._usable:
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            write_atomic(self._path(key), *serialize.dump(program, {**metadata, "key": key}, graph))
        except OSError as error:
            self._give_up("written", error)
            return False
        return True

    @contextlib.contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Hold the right to build `key`: other processes that ask for it wait here, then find it in the cache.

        The lock dies with its process. Where locks do not work, everyone builds; that is safe, only slower.
        """
        descriptor = self._lock(key)
        try:
            yield
        finally:
            if descriptor is not None:
                self._unlock(key, descriptor)

    # -- the whole cache ----------------------------------------------------------------------------------------
    def entries(self, *, check: bool = False) -> list[Entry]:
        """All entries, newest first; with `check` each file is read and verified to its last byte.

        Raises CacheError when the folder cannot be read.
        """
        try:
            paths = [path for path in self._folder.iterdir() if path.suffix == SUFFIX]
            found = [entry for path in paths if (entry := self._entry(path, check)) is not None]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error("read", error) from error
        return sorted(found, key=lambda e: (-e.modified, e.key))

    def nearest(self, wanted: Fingerprint) -> Entry | None:
        """The sound entry that differs least from `wanted`, which itself does not count."""
        others = [e for e in self.entries() if e.problem is None and e.key != wanted.key]
        return min(others, key=lambda e: wanted.distance(e.fingerprint), default=None)

    def leftovers(self) -> list[Path]:
        """Files that killed writers left behind. They are never read, and go with the next write after an hour."""
        return sorted(abandoned(self._folder, older_than_s=0)) if self._folder.is_dir() else []

    def clear(self) -> tuple[int, int]:
        """Remove everything; returns how many entries and bytes. Raises CacheError when that fails."""
        entries = self.entries()
        try:
            for path in self._folder.iterdir() if self._folder.is_dir() else ():
                path.unlink(missing_ok=True)
        except OSError as error:
            raise self._error("cleared", error) from error
        return len(entries), sum(e.size for e in entries)

    # -- within -------------------------------------------------------------------------------------------------
    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{SUFFIX}"

    def _lock_path(self, key: str) -> Path:
        return self._folder / f"{key}.lock"

    def _entry(self, path: Path, check: bool) -> Entry | None:
        key, problem, metadata = path.stem, None, {}
        try:
            status = path.stat()
            metadata = serialize.load(path).metadata if check else serialize.load_metadata(path)
        except FileNotFoundError:  # cleared meanwhile
            return None
        except CacheError as error:
            problem = error
        return Entry(key, path, status.st_size, status.st_mtime, self._hits(key), metadata, problem)

    def _hits(self, key: str) -> int:
        try:
            return (self._folder / f"{key}.hits").stat().st_size
        except OSError:
            return 0

    def _count_hit(self, key: str) -> None:
        """One appended byte: atomic between processes, and nothing to repair after a crash."""
        with contextlib.suppress(OSError), (self._folder / f"{key}.hits").open("ab", buffering=0) as file:
            file.write(b".")

    def _sweep(self) -> None:
        for path in abandoned(self._folder, older_than_s=ABANDONED_AFTER_S):
            path.unlink(missing_ok=True)

    def _lock(self, key: str) -> int | None:
        """An open, locked file, or None where that does not work. Waits for the process that holds it."""
        told = False
        while self._usable:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self._lock_path(key), os.O_CREAT | os.O_RDWR, 0o666)
            except OSError as error:
                self._give_up("written", error)
                return None
            try:
                lock(descriptor, wait=told)
                # The last holder unlinks the file: what was locked may no longer be what newcomers will open.
                if os.fstat(descriptor).st_nlink:
                    return descriptor
            except BlockingIOError:
                self._say(f"waiting for another process that compiles the same graph ({key[:12]})")
                told = True
            except OSError:  # files cannot be locked here
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    self._lock_path(key).unlink(missing_ok=True)
                return None
            os.close(descriptor)
        return None

    def _unlock(self, key: str, descriptor: int) -> None:
        """Remove the lock's file while it is locked; where open files cannot be removed, then once it is closed."""
        if not CAN_REMOVE_OPEN_FILES:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            self._lock_path(key).unlink(missing_ok=True)
        if CAN_REMOVE_OPEN_FILES:
            os.close(descriptor)

    def _give_up(self, what: str, error: OSError) -> None:
        if self._usable:
            self._say(f"the cache cannot be {what}, going on without it: {why(error)} ({self.root})")
        self._usable = False

    def _error(self, what: str, error: OSError) -> CacheError:
        return CacheError(
            f"the cache {str(self.root)!r} cannot be {what}: {why(error)}", code="TRN603",
            remedy=way_out(error, "name another folder with --cache"),
        )  # fmt: skip
