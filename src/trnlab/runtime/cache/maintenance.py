# SPDX-License-Identifier: Apache-2.0
"""Care for a compile cache: what is removed first, and copies from one cache to another."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from trnlab.errors import CacheError, UsageError
from trnlab.runtime.cache import admission, serialize
from trnlab.runtime.cache.executables import SUFFIX, Cache, CacheEntry
from trnlab.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, SECONDS_PER_WEEK

_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SECONDS = {"s": 1.0, "min": SECONDS_PER_MINUTE, "h": SECONDS_PER_HOUR, "d": SECONDS_PER_DAY, "w": SECONDS_PER_WEEK}


@dataclass(frozen=True)
class CacheLimits:
    """How many bytes may stay, and how many seconds something may stay unused; None for no limit."""

    size: float | None = None
    age_s: float | None = None

    @classmethod
    def read(cls, size: str | None, age: str | None) -> CacheLimits:
        """From text such as 20GiB and 30d. Raises UsageError (TRN525) for other text, or none."""
        if size is None and age is None:
            raise _no_limit("neither --size nor --age", "such as --size 20GiB, --age 30d, or both")
        return cls(
            None if size is None else _number(size.upper(), _BYTES, "a size such as 20GiB"),
            None if age is None else _number(age, _SECONDS, "a time such as 12h or 30d"),
        )


@dataclass
class CopyReport:
    """What a copy did: keys by what became of them."""

    copied: list[CacheEntry] = field(default_factory=list)
    there: list[CacheEntry] = field(default_factory=list)
    damaged: list[CacheEntry] = field(default_factory=list)
    others: list[CacheEntry] = field(default_factory=list)  # of other versions of trnlab


def prune(cache: Cache, limits: CacheLimits, *, dry_run: bool = False) -> list[CacheEntry]:
    """Remove damaged entries, those that were not used for `age_s`, and then the least recently used until `size`
    suffices; returns what went. Raises CacheError when that fails.

    An entry that is read meanwhile is either whole or a miss.
    """
    entries, now = cache.entries(), time.time()
    kept = sorted(entries, key=lambda entry: (entry.used, entry.key))
    gone = [e for e in kept if e.problem is not None and e.problem.code in ("TRN601", "TRN604")]
    if limits.age_s is not None:
        gone += [e for e in kept if e not in gone and now - e.used > limits.age_s]
    kept = [e for e in kept if e not in gone]
    total = sum(e.size for e in kept)
    while limits.size is not None and total > limits.size:
        gone.append(kept.pop(0))
        total -= gone[-1].size
    if not dry_run:
        cache.remove(*(e.key for e in gone))
    return gone


def copy(source: Cache, target: Cache, keys: Sequence[str] = ()) -> CopyReport:
    """Copy sound entries whose key begins with one of `keys` (all where there is none) that the target lacks.

    Raises UsageError (TRN124) for the start of a key that is not there, CacheError when a store fails.
    """
    entries = source.entries()
    for start in keys:
        if not any(e.key.startswith(start.lower()) for e in entries):
            raise UsageError(
                f"nothing in the cache is of {start!r}",
                code="TRN124",
                limit=source.place,
                remedy="give the start of a key from `trnlab cache ls`",
            )
    chosen = [e for e in entries if not keys or e.key.startswith(tuple(k.lower() for k in keys))]
    have, done = {e.key for e in target.entries() if e.problem is None}, CopyReport()
    for entry in chosen:
        if entry.key in have:
            done.there.append(entry)
        else:
            _copy_one(source, target, entry, done)
    return done


def _copy_one(source: Cache, target: Cache, entry: CacheEntry, done: CopyReport) -> None:
    content = source.content(entry.key)
    try:
        if content is None:
            done.damaged.append(entry)
            return
        stored = serialize.loads(content, entry.key + SUFFIX)
        admission.require_metadata(stored.metadata, entry.key, entry.key + SUFFIX)
        admission.admit(stored, entry.key + SUFFIX)
    except CacheError as error:
        (done.others if error.code == "TRN602" else done.damaged).append(entry)
        return
    target.overwrite(entry.key, content)
    done.copied.append(entry)


def _number(text: str, units: dict[str, float] | dict[str, int], what: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2] not in units:
        raise _no_limit(repr(text), what)
    return float(found[1]) * units[found[2]]


def _no_limit(got: str, limit: str) -> UsageError:
    return UsageError(
        "no limit for what may stay in the cache",
        code="TRN525",
        limit=limit,
        got=got,
        remedy="trnlab cache prune --size 20GiB --age 30d",
    )
