# SPDX-License-Identifier: Apache-2.0
"""Where compiled loops are kept: in one folder of the user's, for all checkouts and environments with these sources.

Numba keeps what it compiles beside the source, so that each environment would compile the same loops again. They are
told apart by the digest of their sources and Numba's version here, and by Numba itself by processor and Python. Where
NUMBA_CACHE_DIR is set, or the folder cannot be written to or belongs to somebody else, Numba's own places serve.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, _CacheLocator

from trnlab.loops.places import VERSIONED, own_folder
from trnlab.storage.plain_files import removed
from trnlab.units import SECONDS_PER_DAY

_FOLDER = re.compile(r"numba-.+")
_FILE = re.compile(r".+\.nb[ic](\.tmp\..+)?")
_KEPT_S = 30 * SECONDS_PER_DAY  # seconds that loops of other sources stay after they were made (assumed)


class Shared(_CacheLocator):  # type: ignore[misc]
    """Tells Numba where; for loops alone."""

    def __init__(self, digest: str, line: int) -> None:
        self._digest, self._line = digest, line

    def get_cache_path(self) -> str:
        """A folder for these sources and this Numba."""
        return str(own_folder() / f"numba-{numba.__version__}-{self._digest[:32]}")

    def get_source_stamp(self) -> str:
        """What has to be the same for a loop to be used."""
        return self._digest

    def get_disambiguator(self) -> str:
        """What tells functions with one name in one file apart."""
        return str(self._line)

    def ensure_cache_path(self) -> None:
        """Make the folder, for its owner alone. Raises OSError where that cannot be, or others could write to it."""
        path = Path(self.get_cache_path())
        if not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _forget_old(path.parent)
            path.mkdir(exist_ok=True, mode=0o700)
        for place in (path.parent, path):
            state = place.stat()
            if state.st_uid != os.getuid() or state.st_mode & 0o022:
                raise PermissionError(f"{place} can be written to by others")
        super().ensure_cache_path()

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Shared | None:
        """The place of a loop; None where Numba has to look elsewhere."""
        code = py_func.__code__
        if config.CACHE_DIR or VERSIONED not in code.co_freevars or not hasattr(os, "getuid"):
            return None
        made = cls(py_func.__closure__[code.co_freevars.index(VERSIONED)].cell_contents, code.co_firstlineno)
        try:
            made.ensure_cache_path()
        except (OSError, RuntimeError):  # RuntimeError: there is no home
            return None
        return made


def _forget_old(loops: Path) -> None:
    """Remove what Numba kept for sources of long ago: its files, by name, in folders that are ours, by name."""
    for place in loops.iterdir():
        if _FOLDER.fullmatch(place.name) is None or place.is_symlink() or not place.is_dir():
            continue
        if time.time() - place.stat().st_mtime > _KEPT_S:
            with contextlib.suppress(OSError):  # another process may do the same
                for path in place.iterdir():
                    if _FILE.fullmatch(path.name):
                        removed(path)
                place.rmdir()


def install() -> None:
    """Have Numba ask here first."""
    places = CompileResultCacheImpl._locator_classes
    if Shared not in places:
        places.insert(0, Shared)
