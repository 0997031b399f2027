# SPDX-License-Identifier: Apache-2.0
"""Calls whose results no look at Python's state foretells: of the clock, the file system, objects that are opaque.

They are seen while code runs for a capture, as calls of functions written in C. Who called them decides: what an
import, a logger or a framework reads for itself is no business of the step.
"""

from __future__ import annotations

import builtins
import datetime
import io
import os
import sysconfig
import time
from functools import lru_cache
from types import FrameType, ModuleType
from typing import Any

from trnlab.guards.state_snapshot import StateSnapshot

_CLOCK = frozenset(
    getattr(time, name)
    for name in (
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "process_time_ns",
        "thread_time",
        "thread_time_ns",
        "localtime",
        "gmtime",
        "ctime",
    )
)
_NOW = ("now", "today", "utcnow")
_SYSTEM = frozenset(
    (io.open, os.open, os.read, os.stat, os.lstat, os.listdir, os.scandir, os.access, os.urandom, builtins.input)
)
_STANDARD = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib"))
_OF_ITSELF = (
    "importlib",
    "linecache",
    "logging",
    "warnings",
    "traceback",
    "inspect",
    "tokenize",
    "threading",
    "tempfile",
    "subprocess",
    "multiprocessing",
    "concurrent",
)
_READS_FOR_OTHERS = ("numpy/lib/", "torch/serialization.py")


def unrepeatable(snapshot: StateSnapshot, function: Any, frame: FrameType) -> str | None:
    """What a call of a function written in C asked, for people; None where it can be repeated or is watched."""
    of = getattr(function, "__self__", None)
    if of is None:
        return None
    known = snapshot.opaque.get(id(of)) if snapshot.opaque else None  # asked at every call of a function in C
    if known is not None and known[0] is of:
        return f"calls {known[1]}.{function.__name__}(), of an object that cannot be watched"
    if type(of) is type and issubclass(of, datetime.date) and function.__name__ in _NOW:
        return _asked("the clock", snapshot, frame, installed=False)
    if type(of) is not ModuleType:
        return None
    if function in _CLOCK:
        return _asked("the clock", snapshot, frame, installed=False)
    return _asked("the file system", snapshot, frame, installed=True) if function in _SYSTEM else None


def _asked(whom: str, snapshot: StateSnapshot, frame: FrameType | None, installed: bool) -> str | None:
    """Whether a user's line asked, by itself or through the standard library. installed: also one of a package."""
    while frame is not None and _passes_on(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    file = frame.f_code.co_filename
    if snapshot.framework.library(file) or (not installed and "/site-packages/" in file):
        return None
    return f"asks {whom} at {os.path.basename(file)}:{frame.f_lineno}"


@lru_cache(maxsize=4096)
def _passes_on(file: str) -> bool:
    """Whether code of this file does what its caller wants."""
    if file.startswith("<frozen "):  # os.path and its like; an import is its own business
        return "importlib" not in file
    if any(part in file for part in _READS_FOR_OTHERS):
        return True
    home = next((file.removeprefix(root) for root in _STANDARD if file.startswith(root)), None)
    return home is not None and "site-packages" not in home and not home.startswith(_OF_ITSELF)
