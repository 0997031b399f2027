# SPDX-License-Identifier: Apache-2.0
"""The compile cache: executables by the digest of what they were made from, in a folder or an object store.

Objects `v1/<key>.trnx` (see `serialize`), each written whole or not at all. Any number of processes on any number of
machines may read and write it at once; a process that dies, at any moment, leaves at worst a temporary file that
nobody reads and a lease that others take over. What is read is checked; what fails the check is told in one line,
built again and replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.errors import CacheError, UsageError
from trnlab.program.routine import Program
from trnlab.quoting import one_line
from trnlab.runtime.cache import admission, serialize
from trnlab.runtime.cache.fingerprint import Fingerprint
from trnlab.runtime.notices import Say, say
from trnlab.storage import Item, Lease, Store, open_store
from trnlab.storage.folder import USES as HITS
from trnlab.storage.folder import FolderStore
from trnlab.storage.keys import SEAL_BYTES, VARIABLE, team_key
from trnlab.storage.plain_files import NotPlainFileError
from trnlab.storage.remote import USES
from trnlab.storage.store_errors import explained, reason
from trnlab.units import SECONDS_PER_HOUR

SUFFIX = ".trnx"
FOLDER = f"v{serialize.FORMAT}/"
LEASES = f"{FOLDER}leases/"
LARGEST = 8 << 30  # bytes of an entry (assumed)
_KEY = "[0-9a-f]{64}"
_ENTRY = re.compile(rf"{FOLDER}{_KEY}{re.escape(SUFFIX)}")
_USED = re.compile(rf"{FOLDER}{_KEY}({re.escape(HITS)}|{re.escape(USES)})")
_LEASE = re.compile(rf"{LEASES}{_KEY}/\d+")
_LEFT = re.compile(rf"{FOLDER}\.{_KEY}{re.escape(SUFFIX)}\.\d+-\d+\.tmp")
HEAD = 1 << 16  # bytes that hold the header of most entries
ABANDONED_AFTER_S = SECONDS_PER_HOUR
NOTICED_AFTER_S = 2.0


@dataclass(frozen=True)
class CacheEntry:
    """One executable of the cache. `problem` is None for a sound one; then `metadata` is complete."""

    key: str
    size: int
    modified: float
    used: float  # when it last was, in seconds since 1970
    hits: int | None  # how often it was used, None where the store does not count
    metadata: dict[str, Any]
    problem: CacheError | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """What the entry was compiled from."""
        return Fingerprint(self.key, self.metadata["name"], self.metadata["parts"])


@dataclass
class CacheMetrics:
    """What a cache did for this process. `taken_over`: leases of hosts or processes that were gone."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    damaged: int = 0
    taken_over: int = 0
    waited_s: float = 0.0


class Cache:
    """A cache in a folder, made when first written to, or at a URL.

    With a team's key (`storage.keys`) entries end in a seal, and those without are not read.
    Raises UsageError: TRN122 when `root` is a file, TRN520 for a URL of no known kind or without its package, TRN605
    for a key that is none.
    """

    def __init__(self, root: Path | str | Store, say: Say = say, *, writable: bool = True) -> None:
        self.store = open_store(root) if isinstance(root, str | Path) else root
        if isinstance(self.store, FolderStore):
            self.store.guarded = True  # others may write there, and any file may have the name of an entry
        self.metrics = CacheMetrics()
        self._say = say
        self._key = team_key()
        self._readable, self._writable = True, writable
        self.sizes: dict[str, int] = {}  # bytes of the entries that this process read or wrote, by key
        self._replaceable: set[str] = set()  # keys whose entry was found damaged, or of another version
        self._strange: set[str] = set()  # keys whose name something else has: it stays, and nothing is stored

    @property
    def place(self) -> str:
        """The folder or URL."""
        return self.store.url

    # -- one entry ----------------------------------------------------------------------------------------------
    def has(self, key: str) -> bool:
        """Whether there is an entry for `key`; it is not opened."""
        if not self._readable:
            return False
        try:
            return self.store.exists(_name(key))
        except OSError as error:
            self._go_on_without_reading(error)
            return False

    def get(
        self, key: str, chip: Chip | None = None, wanted: Mapping[str, Any] | None = None
    ) -> serialize.Stored | None:
        """The executable of `key`, checked and verified, or None. Trouble is told in one line and counts as a miss.

        chip, wanted: that it is to run on, and metadata that it has to have, see `admission.admit`.
        """
        content = self.content(key)
        stored = self._checked(key, content, chip, wanted) if content is not None else None
        self.metrics.hits += stored is not None
        self.metrics.misses += stored is None
        if stored is not None and content is not None:
            self.sizes[key] = len(content)
            self._note_use(key)
        return stored

    def content(self, key: str) -> bytes | None:
        """The bytes of an entry, not checked but for the seal of a team's key where there is one; or None. Trouble is
        told in one line."""
        if not self._readable:
            return None
        try:
            return self._opened(key, self.store.read(_name(key), most=_most()))
        except CacheError as error:
            self._replace(key, error)
            return None
        except FileNotFoundError as error:
            if "bucket" in str(error):
                self._go_on_without_reading(error)
            return None
        except NotPlainFileError as error:
            self._pass_over(key, error)
            return None
        except OSError as error:
            self._go_on_without_reading(error)
            return None

    def put(self, key: str, program: Program, metadata: dict[str, Any], graph: str) -> bool:
        """Store an executable; false, with one line said, when it could not be written."""
        return self._writable and self.put_content(key, *serialize.dump(program, {**metadata, "key": key}, graph))

    def put_content(self, key: str, *parts: bytes | memoryview) -> bool:
        """Store what `serialize.dump` made, unless another process was first: the same key is the same program."""
        if not self._writable or key in self._strange:
            return False
        try:
            self._sweep()
            if key in self._replaceable:
                self.store.write(_name(key), *self._sealed(key, parts))
                self._replaceable.discard(key)
            else:
                self.store.create(_name(key), *self._sealed(key, parts))
        except NotPlainFileError as error:
            self._pass_over(key, error)
            return False
        except OSError as error:
            self._go_on_without_writing(error)
            return False
        self.metrics.stored += 1
        self.sizes[key] = sum(map(len, parts))
        return True

    @contextlib.contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Hold the right to build `key`: others that ask for it wait here, then find it in the cache.

        Where the holder dies another takes over, see `storage.lease`. Where there can be no leases everyone builds;
        that is safe, only slower.
        """
        lease = self._lease(key) if self._writable else None
        try:
            yield
        finally:
            if lease is not None:
                lease.release()

    def record(self) -> dict[str, Any]:
        """What the cache did for this process, for the summary of a run."""
        return {"place": self.place, **asdict(self.metrics), **self.store.usage.record()}

    # -- the whole cache ----------------------------------------------------------------------------------------
    def entries(self, *, check: bool = False) -> list[CacheEntry]:
        """All entries, newest first; with `check` each is read and verified to its last byte.

        Raises CacheError when the store cannot be read.
        """
        try:
            items = {item.name: item for item in self.store.items(FOLDER)}
            names = [name for name in items if _ENTRY.fullmatch(name)]
            found = [entry for name in names if (entry := self._entry(items[name], items, check)) is not None]
        except OSError as error:
            raise self._error("read", error) from error
        return sorted(found, key=lambda e: (-e.modified, e.key))

    def strange(self) -> list[tuple[str, str]]:
        """What is in the cache's folder and none of its files, by name, with what it is: nothing reads, follows or
        removes it. Raises CacheError when the store cannot be read."""
        if not isinstance(self.store, FolderStore):
            return []
        try:
            others = [
                (item.name, "no file of a cache") for item in self.store.items(FOLDER) if not _is_ours(item.name)
            ]
            return sorted([*self.store.strange(FOLDER), *others])
        except OSError as error:
            raise self._error("read", error) from error

    def nearest(self, wanted: Fingerprint) -> CacheEntry | None:
        """The sound entry that differs least from `wanted`, which itself does not count."""
        others = [e for e in self.entries() if e.problem is None and e.key != wanted.key]
        return min(others, key=lambda e: wanted.distance(e.fingerprint), default=None)

    def leftovers(self, older_than_s: float = 0.0) -> list[str]:
        """What killed writers left behind. It is never read, and goes with the next write after an hour."""
        return [name for name in self.store.leftovers(FOLDER, older_than_s=older_than_s) if _LEFT.fullmatch(name)]

    def remove(self, *keys: str) -> None:
        """Remove entries, with what is known of their use. Raises CacheError when that fails."""
        try:
            for key in keys:
                self.store.delete(_name(key), FOLDER + key + HITS, FOLDER + key + USES)
        except OSError as error:
            raise self._error("cleared", error) from error

    def overwrite(self, key: str, content: bytes) -> None:
        """Store what `serialize.dump` made, whatever is there. Raises CacheError when that fails."""
        try:
            self.store.write(_name(key), *self._sealed(key, (content,)))
        except OSError as error:
            raise self._error("written", error) from error

    def clear(self) -> tuple[int, int]:
        """Remove the cache's own files, which are known by their names; returns how many entries and bytes. What else
        is in its folder stays, see `strange`. Raises CacheError when that fails."""
        entries = self.entries()
        try:
            names = [item.name for item in self.store.items(FOLDER) if _is_ours(item.name)]
            self.store.delete(*names, *self.leftovers())
            for folder in sorted({name.rpartition("/")[0] for name in names if name.startswith(LEASES)}):
                self.store.remove_folder(f"{folder}/")
        except OSError as error:
            raise self._error("cleared", error) from error
        return len(entries), sum(e.size for e in entries)

    # -- within -------------------------------------------------------------------------------------------------
    def _checked(
        self, key: str, content: bytes, chip: Chip | None, wanted: Mapping[str, Any] | None
    ) -> serialize.Stored | None:
        name = key + SUFFIX
        try:
            stored = serialize.loads(content, name)
            admission.require_metadata(stored.metadata, key, name)
            admission.admit(stored, name, chip, wanted)
        except CacheError as error:
            self._replace(key, error)
            return None
        return stored

    def _replace(self, key: str, error: CacheError) -> None:
        self._replaceable.add(key)
        self.metrics.damaged += 1
        self._say(f"cache entry {key[:12]} is not usable and is rebuilt ({one_line(error.what)})")

    def _sealed(self, key: str, parts: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """The parts of an entry, behind them the team's seal where there is a key."""
        return parts if self._key is None else [*parts, self._key.seal(_name(key), *parts)]

    def _opened(self, key: str, content: bytes) -> bytes:
        """An entry without its seal. Raises CacheError (TRN604) for one that lacks the seal that is asked for."""
        if self._key is None:
            return content
        entry, seal = memoryview(content)[:-SEAL_BYTES], content[-SEAL_BYTES:]
        if not self._key.fits(seal, _name(key), entry):
            raise CacheError(
                f"{key}{SUFFIX} has not the seal of the team's key",
                code="TRN604",
                limit=f"the key that {VARIABLE} names",
                remedy="it is rebuilt by the next run; `trnlab cache prune` removes it",
            )
        return bytes(entry)

    def _entry(self, item: Item, items: dict[str, Item], check: bool) -> CacheEntry | None:
        key = item.name.removeprefix(FOLDER).removesuffix(SUFFIX)
        problem: CacheError | None = None
        metadata: dict[str, Any] = {}
        try:
            metadata = self._metadata(item, key, check)
        except FileNotFoundError:  # cleared meanwhile, or a listing that is not of now
            return None
        except NotPlainFileError as error:
            problem = serialize.damaged(key + SUFFIX, error.what)
        except CacheError as error:
            problem = error
        hits, mark = items.get(FOLDER + key + HITS), items.get(FOLDER + key + USES)
        count = None if not isinstance(self.store, FolderStore) else hits.size if hits is not None else 0
        used = max(each.modified for each in (item, hits, mark) if each is not None)
        return CacheEntry(key, item.size, item.modified, used, count, metadata, problem)

    def _metadata(self, item: Item, key: str, check: bool) -> dict[str, Any]:
        name = key + SUFFIX
        if check:
            stored = serialize.loads(self._opened(key, self.store.read(item.name, most=_most())), name)
            admission.require_metadata(stored.metadata, key, name)
            admission.admit(stored, name)
            return stored.metadata
        head = self.store.read(item.name, HEAD)
        if len(head) < (needed := serialize.header_size(head)):
            head = self.store.read(item.name, min(needed, _most()))
        metadata = serialize.loads_metadata(head, name)
        admission.require_metadata(metadata, key, name)
        admission.require_complete(metadata, name)
        return metadata

    def _note_use(self, key: str) -> None:
        if self._writable:
            self.store.note_use(FOLDER + key)

    def _sweep(self) -> None:
        self.store.delete(*self.leftovers(ABANDONED_AFTER_S))

    def _lease(self, key: str) -> Lease | None:
        """The lease of `key`, or None where it is not needed any more, or cannot be had."""
        lease, started = Lease(self.store, LEASES + key), time.monotonic()
        try:
            with self._long_waits_told(key):
                held = lease.acquire(lambda: self.store.exists(_name(key)))
        except NotPlainFileError as error:  # everyone builds what this lease is of
            self._say(f"the lease of {key[:12]} is passed over: {one_line(error.filename)} is {error.what}")
            return None
        except OSError as error:
            self._go_on_without_writing(error)
            return None
        finally:
            self.metrics.waited_s += time.monotonic() - started
        if held and lease.taken_over is not None:
            self.metrics.taken_over += 1
            self._say(f"{lease.taken_over} died while it compiled this graph ({key[:12]}); it is compiled here")
        return lease if held else None

    @contextlib.contextmanager
    def _long_waits_told(self, key: str) -> Iterator[None]:
        """Ranks of one job wait for each other at every graph; only what somebody notices is worth a line."""
        notice = f"waiting for another process that compiles the same graph ({key[:12]})"
        timer = threading.Timer(NOTICED_AFTER_S, self._say, [notice])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _pass_over(self, key: str, error: NotPlainFileError) -> None:
        """One name is taken by something else: the rest of the cache serves."""
        if key not in self._strange:
            self._strange.add(key)
            self._say(f"cache entry {key[:12]} is passed over: {one_line(error.filename)} is {one_line(error.what)}")

    def _go_on_without_reading(self, error: OSError) -> None:
        self._readable = False
        self._give_up("read", error)

    def _go_on_without_writing(self, error: OSError) -> None:
        self._give_up("written", error)

    def _give_up(self, what: str, error: OSError) -> None:
        if self._writable or what == "read":
            self._say(f"the cache cannot be {what}, going on without it: {reason(error)} ({self.place})")
        self._writable = False

    def _error(self, what: str, error: OSError) -> CacheError:
        return explained(f"the cache {self.place!r}", what, error)


class LayeredCache(Cache):
    """A cache of one's own over others that are only read: what is used of them is copied into one's own."""

    def __init__(self, own: Path | str | Store, others: list[Path | str], say: Say = say) -> None:
        super().__init__(own, say)
        self.others = [Cache(other, say, writable=False) for other in others]

    def has(self, key: str) -> bool:
        """See `Cache`."""
        return super().has(key) or any(other.has(key) for other in self.others)

    def get(
        self, key: str, chip: Chip | None = None, wanted: Mapping[str, Any] | None = None
    ) -> serialize.Stored | None:
        """See `Cache`."""
        if super().has(key) and (found := super().get(key, chip, wanted)) is not None:
            return found
        for other in self.others:
            if (found := other.get(key, chip, wanted)) is not None:
                self.put(key, found.program, found.metadata, found.graph)
                return found
        return None

    def record(self) -> dict[str, Any]:
        """See `Cache`."""
        return {**super().record(), "others": [other.record() for other in self.others]}


def open_cache(where: Path | str, say: Say = say) -> Cache:
    """The cache of a folder or URL, or of several, with commas: the first is written, the others are only read.

    Raises UsageError: TRN122 for a file, TRN520 for a URL of no known kind, TRN526 for an empty name.
    """
    text = str(where)
    names = [text] if Path(text).exists() else [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(
            "an empty name among the caches",
            code="TRN526",
            got=text,
            remedy="one's own first, then those that are read: ~/.cache/trnlab,s3://team/cache",
        )
    if len(names) == 1:
        return Cache(names[0], say)
    return LayeredCache(names[0], [*names[1:]], say)


def _is_ours(name: str) -> bool:
    """Whether a file of this name, below `FOLDER`, is one that a cache writes."""
    return any(form.fullmatch(name) for form in (_ENTRY, _USED, _LEASE, _LEFT))


def _most() -> int:
    """Bytes of the largest file that can be an entry: half of the memory, at most."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return LARGEST
    return min(LARGEST, memory // 2) if memory > 0 else LARGEST


def _name(key: str) -> str:
    return FOLDER + key + SUFFIX
