# SPDX-License-Identifier: Apache-2.0
"""The compile cache as text, for `trnlab cache`."""

from __future__ import annotations

import time
from pathlib import Path

from trnlab.errors import UsageError
from trnlab.files import one_line
from trnlab.runtime.cache import compile_cost
from trnlab.runtime.cache.executables import Cache, CacheEntry
from trnlab.runtime.cache.maintenance import CopyReport
from trnlab.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, format_bytes

_SHORT = 12


def listing(cache: Cache) -> str:
    """One line per entry, newest first, and the total."""
    entries = cache.entries()
    if not entries:
        return "\n".join([f"{cache.place}: empty", *_strange(cache)])
    rows = [("key", "name", "target", "size", "age", "hits"), *(_row(entry) for entry in entries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.append(f"{len(entries)} entries, {format_bytes(sum(e.size for e in entries))} in {cache.place}")
    return "\n".join([*lines, *_strange(cache)])


def _strange(cache: Cache) -> list[str]:
    """What is there and not of the cache, a line each."""
    return [f"{one_line(name)}  is {one_line(what)}: passed over, never removed" for name, what in cache.strange()]


def verify(cache: Cache) -> tuple[str, bool]:
    """What is wrong with the cache, and whether nothing is damaged; an entry of another version is not damaged."""
    entries, lines = cache.entries(check=True), []
    for entry in entries:
        if entry.problem is not None:
            lines.append(f"{entry.key[:_SHORT]}  {entry.problem.code}: {entry.problem.what}")
    lines += _strange(cache)
    lines += [f"{name}  left behind by a process that died; never read" for name in cache.leftovers()]
    sound = all(e.problem is None or e.problem.code == "TRN602" for e in entries)
    good = sum(e.problem is None for e in entries)
    lines.append(f"{good} of {len(entries)} entries are sound in {cache.place}")
    return "\n".join(lines), sound


def clear(cache: Cache) -> str:
    """Remove everything and say how much that was."""
    count, size = cache.clear()
    removed = f"removed {count} entries, {format_bytes(size)} from {cache.place}"
    others = cache.strange()
    if not others:
        return removed
    return f"{removed}; left alone, as no file of a cache: {len(others)}, such as {one_line(others[0][0])}"


def pruned(cache: Cache, gone: list[CacheEntry], dry_run: bool) -> str:
    """What went, least recently used first, and what stays."""
    lines = ["  ".join(_row(entry)) for entry in gone]
    what = f"{len(gone)} entries, {format_bytes(sum(e.size for e in gone))}"
    lines.append(f"{what} would go from {cache.place}" if dry_run else f"removed {what} from {cache.place}")
    return "\n".join(lines)


def copied(source: Cache, target: Cache, done: CopyReport) -> str:
    """What was copied, what was there, and what is not sound."""
    lines = [f"{entry.key[:_SHORT]}  damaged, not copied" for entry in done.damaged]
    if done.others:
        lines.append(f"{len(done.others)} entries are of other versions of trnlab, not copied")
    size = format_bytes(sum(e.size for e in done.copied))
    lines.append(f"copied {len(done.copied)} entries, {size}, from {source.place} to {target.place}")
    return "\n".join([*lines, f"{len(done.there)} were there already"])


def explain(cache: Cache, subject: str) -> str:
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
    return "\n\n".join(_explanation(entry, sound) for entry in reversed(chosen))


def _explanation(entry: CacheEntry, entries: list[CacheEntry]) -> str:
    fresh = entry.fingerprint
    older = [e for e in entries if e.modified < entry.modified]
    nearest = min(older, key=lambda e: fresh.distance(e.fingerprint), default=None)
    about = entry.metadata
    lines = [f"{entry.key[:_SHORT]}  {about['name']} for {about['target']}, {about['created']}"]
    lines.append(f"  compiled in {about['compile_seconds']:.2f} s, {about['options']}, {_uses(entry)} since")
    lines += _predicted(entry, entries)
    if nearest is None:
        return "\n".join([*lines, "  the first entry: there was nothing to find"])
    lines.append(f"  nearest older entry: {nearest.key[:_SHORT]}  {nearest.metadata['name']}; what differs:")
    return "\n".join([*lines, *(f"    {line}" for line in fresh.differences(nearest.fingerprint))])


def _predicted(entry: CacheEntry, entries: list[CacheEntry]) -> list[str]:
    """What the other entries would have said of compiling this one."""
    size = compile_cost.size_in(entry.metadata)
    if size is None:
        return []  # of a version that did not keep it, or a kernel
    found = compile_cost.predicted(size, [e.metadata for e in entries if e.key != entry.key])
    return [f"  {size.ops} operations, {size.distinct_ops} distinct: {found.words()} predicted, {found.basis}"]


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
