# SPDX-License-Identifier: Apache-2.0
"""What a reader must not do while it reads: hang, eat memory, run code, write elsewhere, open connections."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SECONDS = 10.0  # of this process for one input; sound files take milliseconds
GROWTH = 512 << 20  # bytes that one input may add to the most that the process ever used
_NEVER = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
    "socket.bind",
    "webbrowser.open",
)
_WRITES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "shutil.rmtree",
)


class BrokenError(Exception):
    """A reader did what none may."""


class Guard:
    """One for a process: hears of what Python does, and looks only while it is switched on."""

    def __init__(self, folder: str) -> None:
        self.folder, self.on, self.found = os.path.realpath(folder), False, list[str]()
        self._classes: Callable[[str, str], bool] = lambda module, name: False
        self._most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sys.addaudithook(self._heard)

    @contextmanager
    def watching(self, classes: Callable[[str, str], bool] = lambda module, name: False) -> Iterator[None]:
        """Raises BrokenError for what happened within the block. classes: of a pickle, that may be looked up."""
        self._classes = classes
        before = signal.signal(signal.SIGVTALRM, _too_long)
        self.found.clear()
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        self.on = True
        try:
            yield
        finally:
            self.on = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        self.check()

    def check(self) -> None:
        """Raise BrokenError for what was heard, and for memory."""
        if self.found:
            heard = self.found[0]
            self.found.clear()
            raise BrokenError(heard)
        most, before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, self._most
        self._most = most
        if (most - before) * 1024 > GROWTH:
            raise BrokenError(f"memory grew by {(most - before) >> 10} MiB")

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "pickle.find_class" and self._classes(*map(str, args)):
            return
        if event in _NEVER:
            self.found.append(f"{event} {args!r:.80}")
        elif event == "open" and _writes(args) and not self._within(args[0]):
            self.found.append(f"{args[0]!r} was opened for writing")
        elif event in _WRITES and not self._within(args[0]):
            self.found.append(f"{event} {args[0]!r}")

    def _within(self, path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return True
        where = os.path.realpath(os.fsdecode(path))
        code = "__pycache__" in where or "trnlab-loops" in where  # modules and loops that are used for the first time
        return code or where.startswith((self.folder + os.sep, "/dev/null"))


def _writes(args: tuple[Any, ...]) -> bool:
    mode, flags = args[1], args[2] if len(args) > 2 else 0
    if isinstance(mode, str):
        return bool(set("wax+") & set(mode))
    return bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise BrokenError(f"no answer after {SECONDS:.0f} s of work")
