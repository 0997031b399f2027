# SPDX-License-Identifier: Apache-2.0
"""Runs, benches and kernels in the folders of a site. Nothing is opened that was not found here first."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trnlab.errors import TrnlabError, UsageError, did_you_mean
from trnlab.profile.data import FILE, read_summary
from trnlab.storage import plain_files

Found = TypeVar("Found")

DEEPEST = 4  # folders below one that is named
MOST_FOLDERS = 20_000  # that are looked into
FRESH_S = 1.0  # for which a look is good
BENCH = "bench.json"
HEAD = 1 << 16  # bytes of a file that may have a kernel
_PASSED_OVER = ("node_modules", "__pycache__", "site-packages")


@dataclass(frozen=True)
class FoundRun:
    """A run as lists show it."""

    name: str  # its folder, from the site's folder on; what addresses call it
    folder: Path
    summary: dict[str, Any]
    problem: str = ""  # why there is no summary


def walked(root: Path, deepest: int = DEEPEST) -> Iterator[tuple[Path, list[str]]]:
    """Folders from one on with the names of their files, no links, none that begins with a dot; those of a run
    are not looked into."""
    left, seen = [(root, 0)], 0
    while left and seen < MOST_FOLDERS:
        folder, depth = left.pop()
        seen += 1
        try:
            with os.scandir(folder) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries]
        except OSError:
            continue
        names = sorted(name for name, is_folder, is_link in found if not is_folder and not is_link)
        yield folder, names
        if depth < deepest and FILE not in names:
            inner = (name for name, is_folder, _ in found if is_folder and not name.startswith("."))
            left += [(folder / name, depth + 1) for name in inner if name not in _PASSED_OVER]


class FoundRuns:
    """The runs below some folders; a summary is read again only where its file has changed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._read: dict[Path, tuple[tuple[int, int], FoundRun]] = {}
        self._found: dict[str, FoundRun] = {}
        self._looked = float("-inf")
        self._lock = threading.Lock()

    def all(self) -> dict[str, FoundRun]:
        """Runs by name."""
        with self._lock:
            if time.monotonic() - self._looked > FRESH_S:
                runs = (self._run(root, folder) for root in self._folders for folder in _with(root, FILE))
                self._found = {run.name: run for run in runs if run is not None}
                self._looked = time.monotonic()
            return self._found

    def get(self, name: str) -> FoundRun:
        """The run of this name. Raises UsageError (TRN854)."""
        found = self.all()
        return named(found, name, "is no run", f"{len(found)} runs below {', '.join(map(str, self._folders))}", "it")

    def _run(self, root: Path, folder: Path) -> FoundRun | None:
        try:
            about = (folder / FILE).stat()
        except OSError:
            return None
        stamp = (about.st_mtime_ns, about.st_size)
        known = self._read.get(folder)
        if known is None or known[0] != stamp:
            name = called(folder, root, self._folders)
            try:
                run = FoundRun(name, folder, read_summary(folder))
            except TrnlabError as error:
                run = FoundRun(name, folder, {}, f"{error.code}: {error.what}")
            known = self._read[folder] = stamp, run
        return known[1]


def kernel_files(folders: Sequence[Path]) -> dict[str, Path]:
    """Files of Python that speak of NKI, and those that may be references beside them, by name."""
    found = {}
    for root in folders:
        for folder, names in walked(root, 2):
            for name in (n for n in names if n.endswith(".py")):
                path = folder / name
                try:
                    head = plain_files.read(path, size=HEAD)
                except OSError:
                    continue
                if b"nki" in head or b"def inputs(" in head or b"def reference(" in head:
                    found[called(path, root, folders)] = path
    return found


def kernel_file(files: Mapping[str, Path], name: str) -> Path:
    """The file of this name. Raises UsageError (TRN854)."""
    return named(files, name, "is no kernel", f"{len(files)} files", "it")


def named(found: Mapping[str, Found], name: str, what: str, limit: str, them: str) -> Found:
    """What has this name. Raises UsageError (TRN854), which says that there `what` of it, and of how many."""
    if name not in found:
        raise UsageError(
            f"there {what} {name!r} here",
            code="TRN854",
            got=name,
            limit=limit,
            remedy=did_you_mean(name, found, f"start `trnlab ui` with the folder that has {them}"),
        )
    return found[name]


def called(path: Path, root: Path, roots: Sequence[Path]) -> str:
    """What addresses call something below one of the site's folders."""
    inner = path.relative_to(root).as_posix()
    name = root.name if inner == "." else inner
    return name if len(roots) == 1 else f"{roots.index(root) + 1}:{name}"


def _with(root: Path, file: str) -> Iterator[Path]:
    return (folder for folder, names in walked(root) if file in names)
