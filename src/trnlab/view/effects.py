# SPDX-License-Identifier: Apache-2.0
"""What a script would have done, had it been run: files, processes, messages; and what kept it from doing so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trnlab.view.changes import FileChange, is_cache

NAMESPACES, HOOKS, OPEN = "namespaces", "hooks", "none"
FILES, NETWORK, SUBPROCESSES = "files", "network", "subprocesses"
ALLOWED = (FILES, NETWORK, SUBPROCESSES)
_LIMITS = {
    NAMESPACES: "files were written into an overlay in a namespace of this command, which is gone: nothing of the "
    "script, native code and processes included, reached those that are here",
    HOOKS: "Python's functions were led to a scratch folder, which is gone, and an audit hook refused the rest; "
    "native code that opens files by itself is not seen by it",
    OPEN: "files were written as the script says, as --allow files wants it",
}


@dataclass
class Effects:
    """What the code in a view did there."""

    protection: str = NAMESPACES  # what kept it from this machine
    room: int = 0  # bytes for what it wrote
    allowed: list[str] = field(default_factory=list)  # what was not kept from it
    read_only: list[str] = field(default_factory=list)  # file systems that no view is possible of
    # written, deleted, changed: files by path
    written: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[dict[str, Any]] = field(default_factory=list)
    changed: list[dict[str, Any]] = field(default_factory=list)
    moved: list[dict[str, Any]] = field(default_factory=list)  # from where to where
    started: list[dict[str, Any]] = field(default_factory=list)  # commands
    sent: list[dict[str, Any]] = field(default_factory=list)  # addresses
    refused: list[dict[str, Any]] = field(default_factory=list)
    why_not: str = ""
    stopped: str = ""  # the limit that ended it, and how much it had used

    @property
    def limit(self) -> str:
        """What the protection covers."""
        return _LIMITS[self.protection] + (f" (no namespaces here: {self.why_not})" if self.why_not else "")

    @property
    def none(self) -> bool:
        """Whether there was nothing to keep from this machine."""
        lists = (self.written, self.deleted, self.changed, self.moved, self.started, self.sent, self.refused)
        return not any(lists)

    def as_json(self) -> dict[str, Any]:
        """For a report."""
        return {**asdict(self), "limit": self.limit}


def effects_of(record: dict[str, Any] | None) -> Effects | None:
    """What `as_json` wrote."""
    if record is None:
        return None
    return Effects(**{name: value for name, value in record.items() if name != "limit"})


def collected(protection: str, room: int, found: Sequence[FileChange], log: bytes) -> Effects:
    """What layers hold, with what was noted while they were written."""
    noted = list(_noted(log))
    effects = Effects(protection, room)
    deleted = {change.path.rstrip("/"): change for change in found if change.kind == "deleted"}
    written = {change.path.rstrip("/"): change for change in found if change.kind == "written"}
    for kind, words in noted:
        if kind == "moved" and words[0] in deleted and any(_within(path, words[1]) for path in written):
            effects.moved.append({"from": words[0], "to": words[1]})
            del deleted[words[0]]
            written = {path: change for path, change in written.items() if not _within(path, words[1])}
    effects.written = [{"path": c.path, "bytes": c.size, "new": c.new} for c in written.values()]
    effects.deleted = [{"path": c.path, "bytes": c.size} for c in deleted.values()]
    effects.changed = [{"path": c.path} for c in found if c.kind == "changed"]
    effects.started = _counted("command", (words[0] for kind, words in noted if kind == "started"))
    effects.sent = _counted("to", (words[0] for kind, words in noted if kind == "sent"))
    refused = (f"{words[0]} {words[1]}" for kind, words in noted if kind == "refused" and not is_cache(words[1]))
    effects.refused = _counted("what", refused)
    return effects


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _counted(name: str, found: Iterable[str]) -> list[dict[str, Any]]:
    return [{name: what, "count": count} for what, count in Counter(found).items()]


def _noted(log: bytes) -> Iterable[tuple[str, list[str]]]:
    for line in log.splitlines():
        try:
            kind, *words = json.loads(line)
        except ValueError:  # a process ended within it
            continue
        yield kind, words
