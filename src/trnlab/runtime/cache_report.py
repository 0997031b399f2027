# SPDX-License-Identifier: Apache-2.0
"""The compile cache as text, for `trnlab cache`."""

from __future__ import annotations

import time
from pathlib import Path

from trnlab.errors import UsageError
from trnlab.runtime.cache import Cache, Entry
from trnlab.units import format_bytes

_SHORT = 12


def listing(cache: Cache) -> str:
    """One line per entry, newest first, and the total."""
    entries = cache.entries()
    if not entries:
        return f"{cache.root}: empty"
    rows = [("key", "name", "target", "size", "age", "hits"), *(_row(entry) for entry in entries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.append(f"{len(entries)} entries, {format_bytes(sum(e.size for e in entries))} in {cache.root}")
    return "\n".join(lines)


def verify(cache: Cache) -> tuple[str, bool]:
    """What is wrong with the cache, and whether nothing is damaged; an entry of another version is not damaged."""
    entries, lines = cache.entries(check=True), []
    for entry in entries:
        if entry.problem is not None:
            lines.append(f"{entry.key[:_SHORT]}  {entry.problem.code}: {entry.problem.what}")
    lines += [f"{path.name}  left behind by a process that died; never read" for path in cache.leftovers()]
    sound = all(e.problem is None or e.problem.code == "TRN602" for e in entries)
    good = sum(e.problem is None for e in entries)
    lines.append(f"{good} of {len(entries)} entries are sound in {cache.root}")
    return "\n".join(lines), sound


def clear(cache: Cache) -> str:
    """Remove everything and say how much that was."""
    count, size = cache.clear()
    return f"removed {count} entries, {format_bytes(size)} from {cache.root}"


def explain(cache: Cache, subject: str) -> str:
    """Why the entries of a key or of a script were compiled: what differs from the nearest older entry of each.

    Raises UsageError when `subject` is neither the start of a key nor a script that compiled something.
    """
    sound = [e for e in cache.entries() if e.problem is None]
    script = str(Path(subject).resolve())
    chosen = [e for e in sound if e.key.startswith(subject.lower()) or e.metadata["script"] == script]
    if not chosen:
        raise UsageError(
            f"nothing in the cache is of {subject!r}", code="TRN124", limit=str(cache.root),
            remedy="give the start of a key from `trnlab cache ls`, or a script that `trnlab run` ran",
        )  # fmt: skip
    return "\n\n".join(_explanation(entry, sound) for entry in reversed(chosen))


def _explanation(entry: Entry, entries: list[Entry]) -> str:
    fresh = entry.fingerprint
    older = [e for e in entries if e.modified < entry.modified]
    nearest = min(older, key=lambda e: fresh.distance(e.fingerprint), default=None)
    about = entry.metadata
    lines = [f"{entry.key[:_SHORT]}  {about['name']} for {about['target']}, {about['created']}"]
    lines.append(f"  compiled in {about['compile_seconds']:.2f} s, {about['options']}, used {entry.hits} times since")
    if nearest is None:
        return "\n".join([*lines, "  the first entry: there was nothing to find"])
    lines.append(f"  nearest older entry: {nearest.key[:_SHORT]}  {nearest.metadata['name']}; what differs:")
    return "\n".join([*lines, *(f"    {line}" for line in fresh.differences(nearest.fingerprint))])


def _row(entry: Entry) -> tuple[str, ...]:
    age, about = _age(time.time() - entry.modified), entry.metadata
    name = "(damaged)" if entry.problem and entry.problem.code == "TRN601" else about.get("name", "(other version)")
    return entry.key[:_SHORT], name, about.get("target", "-"), format_bytes(entry.size), age, str(entry.hits)


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
