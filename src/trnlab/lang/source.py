# SPDX-License-Identifier: Apache-2.0
"""The user's line: the innermost frame that is not ours."""

from __future__ import annotations

import linecache
import os
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType

from trnlab.errors import Location

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep
_MOST = 65536  # places that are remembered
# By code and instruction in it: the location, and None for our own code. A line number takes a walk through a table.
_known: dict[tuple[CodeType, int], Location] = {}
_ours: dict[CodeType, bool] = {}


@lru_cache(maxsize=_MOST)
def _location(file: str, line: int, function: str) -> Location:
    return Location(file, line, function, linecache.getline(file, line).strip())


def _is_ours(code: CodeType) -> bool:
    if len(_ours) >= _MOST:
        _ours.clear()
    _ours[code] = code.co_filename.startswith((_OURS, "<frozen"))
    return _ours[code]


def _place(code: CodeType, line: int, at: int) -> Location:
    if len(_known) >= _MOST:
        _known.clear()
    _known[code, at] = _location(code.co_filename, line, code.co_name)
    return _known[code, at]


def user_line() -> Location | None:
    """Where the kernel is, or None when only our own code is running."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        ours = _ours.get(code)
        if not (_is_ours(code) if ours is None else ours):
            return _known.get((code, frame.f_lasti)) or _place(code, frame.f_lineno, frame.f_lasti)
        frame = frame.f_back  # type: ignore[assignment]
    return None
