# SPDX-License-Identifier: Apache-2.0
"""The user's line: the innermost frame that is not ours."""

from __future__ import annotations

import linecache
import os
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

from trnlab.errors import Location

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep
_MOST = 65536  # places that are remembered
# Where instructions of code are, by the identity of the code (to hash code takes long) and number of the instruction:
# to find the line of an instruction takes a walk through a table.
_known: dict[int, tuple[CodeType, dict[int, Location]]] = {}
_ours: dict[str, bool] = {}  # by file


@lru_cache(maxsize=_MOST)
def _location(file: str, line: int, function: str) -> Location:
    return Location(file, line, function, linecache.getline(file, line).strip())


def _is_ours(file: str) -> bool:
    if len(_ours) >= _MOST:
        _ours.clear()
    _ours[file] = file.startswith((_OURS, "<frozen"))
    return _ours[file]


def _place(frame: FrameType) -> Location:
    code = frame.f_code
    known = _known.get(id(code))
    if known is None or known[0] is not code:
        if len(_known) >= _MOST:
            _known.clear()
        known = _known[id(code)] = code, {}
    found = known[1].get(frame.f_lasti)
    if found is None:
        found = known[1][frame.f_lasti] = _location(code.co_filename, frame.f_lineno, code.co_name)
    return found


def user_line() -> Location | None:
    """Where the kernel is, or None when only our own code is running."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        ours = _ours.get(file)
        if not (_is_ours(file) if ours is None else ours):
            return _place(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return None
