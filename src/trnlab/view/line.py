# SPDX-License-Identifier: Apache-2.0
"""How the process in which a script is followed talks to the one outside of the view."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable
from typing import Any

from trnlab.view import frames


class ViewChannel:
    """To the process outside. Children that the script makes have it, too, and are not heard."""

    def __init__(self, handle: int) -> None:
        self._handle, self._owner, self._lock = handle, os.getpid(), threading.Lock()

    def say(self, *words: Any) -> None:
        """Send a frame. Raises OSError where nobody listens, or in another process than the script's own."""
        self._check()
        with self._lock:
            frames.send(self._handle, *words)

    def ask(self, *words: Any) -> Any:
        """Send a question; returns the answer. Raises OSError, also the one that the answer is."""
        self._check()
        with self._lock:
            frames.send(self._handle, "ask", *words)
            answer = frames.receive(self._handle)
        if answer is None:
            raise BrokenPipeError("the process outside of the view is gone")
        if isinstance(answer[0], BaseException):
            raise answer[0]
        return answer[0]

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise BrokenPipeError("only the process that follows a script talks to the one outside")


class ViewStderr(io.TextIOBase):
    """Standard error of the process in the view: what comes here is shown by the process outside."""

    def __init__(self, line: ViewChannel) -> None:
        self._line = line

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """As a file's: how many characters were taken."""
        with contextlib.suppress(OSError, ValueError):
            self._line.say("said", text)
        return len(text)


class ViewProcess:
    """What holds in the process in which a script is followed; nothing of it elsewhere."""

    line: ViewChannel | None = None
    to_write: Callable[[str], str] = staticmethod(lambda path: path)
    to_read: Callable[[str], str] = staticmethod(lambda path: path)


def inside() -> bool:
    """Whether this process is in a view, or comes from one that is."""
    return ViewProcess.line is not None


def ask(*words: Any) -> Any:
    """Ask the process outside. Raises OSError; RuntimeError where this process is in no view."""
    if ViewProcess.line is None:
        raise RuntimeError("this process is in no view")
    return ViewProcess.line.ask(*words)


def place_to_write(path: str) -> str:
    """Where native code is to write a file of the script, which may be another place here. Raises OSError."""
    return ViewProcess.to_write(path)


def place_to_read(path: str) -> str:
    """Where native code finds a file of the script. Raises OSError."""
    return ViewProcess.to_read(path)
