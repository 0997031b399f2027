# SPDX-License-Identifier: Apache-2.0
"""The user's line: the innermost frame that is not ours."""

from __future__ import annotations

import linecache
import os
import sys
from functools import lru_cache
from pathlib import Path

from trnlab.errors import Location

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep


@lru_cache(maxsize=65536)
def _location(file: str, line: int, function: str) -> Location:
    return Location(file, line, function, linecache.getline(file, line).strip())


@lru_cache(maxsize=4096)
def _is_ours(file: str) -> bool:
    return file.startswith((_OURS, "<frozen"))


def user_line() -> Location | None:
    """Where the kernel is, or None when only our own code is running."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not _is_ours(code.co_filename):
            return _location(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None
