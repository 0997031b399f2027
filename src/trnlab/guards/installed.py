# SPDX-License-Identifier: Apache-2.0
"""Which code belongs to installed packages, and is taken as fixed."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from pathlib import Path
from typing import Any

OURS = str(Path(__file__).parent.parent) + os.sep


@functools.cache
def _installed() -> tuple[str, ...]:
    """Folders of installed packages, the innermost first."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    unique = {f"{Path(folder)}{os.sep}" for folder in folders} | {OURS}
    return tuple(sorted(unique, key=len, reverse=True))


@functools.lru_cache(maxsize=8192)
def package_of(file: str) -> str | None:
    """The installed package that a source file belongs to, by its folder or file; None for code of the user's own."""
    if file.startswith("<frozen"):
        return file
    for folder in _installed():
        if file.startswith(folder):
            return folder + file[len(folder) :].split(os.sep)[0] if folder != OURS else OURS
    return None


def file_of(module: Any) -> str:
    """Where a module's code is. What has no file is part of the interpreter, but for the main module."""
    named = getattr(module, "__name__", "")
    return getattr(module, "__file__", None) or ("" if named == "__main__" else "<frozen>")
