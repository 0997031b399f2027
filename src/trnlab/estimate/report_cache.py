# SPDX-License-Identifier: Apache-2.0
"""Reports of the last time, and whether they still hold.

A report depends on the command, on Python and trnlab, on the environment variables that this process has, and on the
files that were read while it was made: the script, the modules that it imported, its configuration and data. Python
tells of every file that it opens. Small ones are compared by content, others by size and time of change; folders that
were listed, by their time of change.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trnlab
from trnlab.storage.content import ContentStore

CONTENT = 1 << 22  # bytes up to which a file is compared by content
_EVENTS = frozenset(("open", "os.listdir", "os.scandir"))
_PREFIXES = ("/proc/", "/dev/", "/sys/")
_IGNORED = ("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST", "WINDOWID")


Noted = list[str]


class _Ears:
    """Hears for the reports that are being made. One for a process, as Python never lets go of an audit hook: one for
    each report would be asked at every event until the process ends."""

    def __init__(self) -> None:
        self.listening: list[ReportCache] = []
        self._hooked = False

    def begin(self, kept: ReportCache) -> None:
        self.listening.append(kept)
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _EVENTS:
            for kept in self.listening:
                kept.heard(event, args)


_EARS = _Ears()


class ReportCache:
    """The report for one command. `watch` comes before what opens files, `noted` after it, both within a block:
    behind it nothing is noted any more. The process that noted may be another than the one that keeps."""

    def __init__(self, folder: Path, request: Sequence[str]) -> None:
        environment = sorted((k, v) for k, v in os.environ.items() if k not in _IGNORED)
        self._store = ContentStore(folder)
        self._own = str(folder.parent) + os.sep
        self._path = self._store.file([list(request), sys.version, trnlab.__version__, environment])
        self._opened: set[str] = set()
        self._listed: set[str] = set()

    def watch(self) -> None:
        """Begin to note the files that this process reads, until the block ends."""
        _EARS.begin(self)

    def __enter__(self) -> ReportCache:
        return self

    def __exit__(self, *_: object) -> None:
        _EARS.listening = [kept for kept in _EARS.listening if kept is not self]

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit event of Python, with its arguments."""
        if event == "open" and isinstance(args[0], str | bytes) and _reads(args):
            self._opened.add(os.path.abspath(os.fsdecode(args[0])))
        elif event != "open" and isinstance(args[0], str | bytes):
            self._listed.add(os.path.abspath(os.fsdecode(args[0])))

    def get(self) -> dict[str, Any] | None:
        """The record, if there is one and nothing that it depended on has changed."""
        entry = self._store.record(self._path)
        if entry is None or any(_state(path) != state for path, state in entry["files"].items()):
            return None
        return dict(entry["record"])

    def noted(self) -> Noted:
        """The files and the folders that a report depends on which was made in this process."""
        modules = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
        paths = {os.path.abspath(m) for m in modules if isinstance(m, str)} | self._opened
        paths = {p for p in paths if not p.startswith((*_PREFIXES, self._own)) and not p.endswith(".pyc")}
        return sorted(paths | self._folders())

    def put(self, record: dict[str, Any], noted: Noted | None = None) -> None:
        """Keep a record of what was noted, here unless it is said. What cannot be written is not kept."""
        files = {path: _state(path) for path in (self.noted() if noted is None else noted)}
        self._store.write_record(self._path, {"files": files, "record": record})

    def _folders(self) -> set[str]:
        """Folders that the script listed; those that Python searches for modules change with every byte code file."""
        searched = {os.path.abspath(p) for p in sys.path}
        others = (*_PREFIXES, sys.prefix, sys.base_prefix)
        return {p for p in self._listed - searched if not p.startswith(others) and "site-packages" not in p}


def _reads(args: tuple[Any, ...]) -> bool:
    mode, flags = args[1], args[2] if len(args) > 2 else 0
    if isinstance(mode, str):
        return not set("wax") & set(mode)
    return not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _state(path: str) -> str | None:
    """What a file is now: a digest of a small one, size and time of a large one; None for one that is not there."""
    try:
        stat = os.stat(path)
        if os.path.isdir(path) or stat.st_size > CONTENT or "site-packages" in path:
            return f"{stat.st_size} {stat.st_mtime_ns}"
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
