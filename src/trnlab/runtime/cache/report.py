# SPDX-License-Identifier: Apache-2.0
"""The compile cache as documents, for `trnlab cache`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trnlab.documents import Document, Note, Part, Section, Table
from trnlab.errors import UsageError
from trnlab.quoting import one_line
from trnlab.runtime.cache import compile_cost
from trnlab.runtime.cache.executables import Cache, CacheEntry
from trnlab.runtime.cache.maintenance import CopyReport
from trnlab.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, format_bytes

_SHORT = 12
_HEAD = ("key", "name", "target", "size", "age", "hits")


def listing(cache: Cache, leading: Callable[[str], str] = lambda key: "") -> Document:
    """One line per entry, newest first, and the total. leading: where a page leads from an entry."""
    entries = cache.entries()
    if not entries:
        return _document(cache, [Note(f"{cache.place}: empty"), *_strange(cache)])
    total = f"{len(entries)} entries, {format_bytes(sum(e.size for e in entries))} in {cache.place}"
    table = Table([_row(entry) for entry in entries], _HEAD, links=[leading(entry.key) for entry in entries])
    return _document(cache, [table, Note(total), *_strange(cache)])


def _document(cache: Cache, parts: Sequence[Part]) -> Document:
    return Document(cache.place, parts, over="trnlab cache")


def _strange(cache: Cache) -> Iterator[Note]:
    """What is there and not of the cache, a line each."""
    for name, what in cache.strange():
        yield Note(f"{one_line(name)}  is {one_line(what)}: passed over, never removed")


def verify(cache: Cache) -> tuple[Document, bool]:
    """What is wrong with the cache, and whether nothing is damaged; an entry of another version is not damaged."""
    entries = cache.entries(check=True)
    problems = [(e.key[:_SHORT], f"{e.problem.code}: {e.problem.what}") for e in entries if e.problem is not None]
    left = [Note(f"{name}  left behind by a process that died; never read") for name in cache.leftovers()]
    sound = all(e.problem is None or e.problem.code == "TRN602" for e in entries)
    good = f"{sum(e.problem is None for e in entries)} of {len(entries)} entries are sound in {cache.place}"
    return _document(cache, [Table(problems), *_strange(cache), *left, Note(good)]), sound


def clear(cache: Cache) -> Document:
    """Remove everything and say how much that was."""
    count, size = cache.clear()
    removed = f"removed {count} entries, {format_bytes(size)} from {cache.place}"
    others = cache.strange()
    if others:
        removed += f"; left alone, as no file of a cache: {len(others)}, such as {one_line(others[0][0])}"
    return _document(cache, [Note(removed)])


def pruned(cache: Cache, gone: list[CacheEntry], dry_run: bool) -> Document:
    """What went, least recently used first, and what stays."""
    what = f"{len(gone)} entries, {format_bytes(sum(e.size for e in gone))}"
    said = f"{what} would go from {cache.place}" if dry_run else f"removed {what} from {cache.place}"
    return _document(cache, [Table([_row(entry) for entry in gone]), Note(said)])


def copied(source: Cache, target: Cache, done: CopyReport) -> Document:
    """What was copied, what was there, and what is not sound."""
    parts: list[Part] = [Table([(entry.key[:_SHORT], "damaged, not copied") for entry in done.damaged])]
    if done.others:
        parts.append(Note(f"{len(done.others)} entries are of other versions of trnlab, not copied"))
    size = format_bytes(sum(e.size for e in done.copied))
    parts.append(Note(f"copied {len(done.copied)} entries, {size}, from {source.place} to {target.place}"))
    return _document(target, [*parts, Note(f"{len(done.there)} were there already")])


def explain(cache: Cache, subject: str) -> Document:
    """Why the entries of a key or of a script were compiled: what differs from the nearest older entry of each.

    Raises UsageError when `subject` is neither the start of a key nor a script that compiled something.
    """
    sound = [e for e in cache.entries() if e.problem is None]
    script = str(Path(subject).resolve())
    chosen = [e for e in sound if e.key.startswith(subject.lower()) or e.metadata["script"] == script]
    if not chosen:
        raise UsageError(
            f"nothing in the cache is of {subject!r}",
            code="TRN124",
            limit=cache.place,
            remedy="give the start of a key from `trnlab cache ls`, or a script that `trnlab run` ran",
        )
    return _document(cache, [_explanation(entry, sound) for entry in reversed(chosen)])


def _explanation(entry: CacheEntry, entries: list[CacheEntry]) -> Section:
    fresh = entry.fingerprint
    older = [e for e in entries if e.modified < entry.modified]
    nearest = min(older, key=lambda e: fresh.distance(e.fingerprint), default=None)
    about = entry.metadata
    title = f"{entry.key[:_SHORT]}  {about['name']} for {about['target']}, {about['created']}"
    compiled = f"compiled in {about['compile_seconds']:.2f} s, {about['options']}, {_uses(entry)} since"
    parts: list[Part] = [Note(compiled), *_predicted(entry, entries)]
    if nearest is None:
        return Section(title, [*parts, Note("the first entry: there was nothing to find")])
    of = f"nearest older entry: {nearest.key[:_SHORT]}  {nearest.metadata['name']}; what differs:"
    differences = Section(of, [Note(line) for line in fresh.differences(nearest.fingerprint)])
    return Section(title, [*parts, differences])


def _predicted(entry: CacheEntry, entries: list[CacheEntry]) -> Iterator[Note]:
    """What the other entries would have said of compiling this one."""
    size = compile_cost.size_in(entry.metadata)
    if size is not None:  # else of a version that did not keep it, or a kernel
        found = compile_cost.predicted(size, [e.metadata for e in entries if e.key != entry.key])
        yield Note(f"{size.ops} operations, {size.distinct_ops} distinct: {found.words()} predicted, {found.basis}")


def _uses(entry: CacheEntry) -> str:
    return f"used {entry.hits} times" if entry.hits is not None else f"last used {_age(time.time() - entry.used)} ago"


def _row(entry: CacheEntry) -> tuple[str, ...]:
    age, about = _age(time.time() - entry.modified), entry.metadata
    name = "(damaged)" if entry.problem and entry.problem.code == "TRN601" else about.get("name", "(other version)")
    return (
        entry.key[:_SHORT],
        name,
        about.get("target", "-"),
        format_bytes(entry.size),
        age,
        "-" if entry.hits is None else str(entry.hits),
    )


def _age(seconds: float) -> str:
    for size, unit in ((SECONDS_PER_DAY, "d"), (SECONDS_PER_HOUR, "h"), (SECONDS_PER_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
