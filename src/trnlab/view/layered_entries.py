# SPDX-License-Identifier: Apache-2.0
"""What listing a folder of a view gives: entries of the scratch folder and of what lies under it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Any


class LayeredEntry:
    """What `os.scandir` finds, for folders that are partly in the layer."""

    def __init__(self, folder: Any, name: str, actual: str) -> None:
        self.name, self.path = name, os.path.join(folder, name)
        self._actual = actual

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """See `os.DirEntry`, as the next ones."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Its number."""
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file."""
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        return self._is(stat.S_ISLNK, False)

    def _is(self, kind: Callable[[int], bool], follow: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow).st_mode)
        except FileNotFoundError:
            return False


class Entries:
    """An iterator that is a block, too, as that of `os.scandir`."""

    def __init__(self, entries: list[LayeredEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[LayeredEntry]:
        return self._entries

    def __next__(self) -> LayeredEntry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Nothing is open."""
