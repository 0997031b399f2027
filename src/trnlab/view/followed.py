# SPDX-License-Identifier: Apache-2.0
"""A function runs in a view, and returns its result and the effects that the code had which it ran.

Three processes: this one waits, answers questions and hears the result. The first of the view makes it, outlives the
script, ends all that the script left behind, and reads what it wrote. The script's own runs the function.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trnlab.errors import UsageError
from trnlab.view import frames
from trnlab.view.effects import FILES, HOOKS, NAMESPACES, OPEN, Effects, effects_of
from trnlab.view.request import ResourceLimits, ViewRequest

CHOICE, ROOM = "TRNLAB_VIEW", "TRNLAB_VIEW_ROOM"
ENDED, NO_VIEW, STOPPED = "TRN583", "TRN584", "TRN589"
LINGERS_S = 10.0  # that a script's threads and exit handlers have after its result is known
_FRAMEWORKS = ("torch", "jax", "tensorflow")
Serve = Callable[..., Any]


@dataclass
class ScriptExitedError(Exception):
    """The script ended its process before there was a result."""

    status: int
    effects: Effects

    def error(self) -> UsageError:
        """As a command tells it."""
        if self.effects.stopped:
            return UsageError(
                "the code passed a limit of the process in which it ran",
                code=STOPPED,
                limit=self.effects.stopped,
                remedy="it was ended with all that it had started; allow it more, or have it use less",
            )
        how = f"exit status {os.waitstatus_to_exitcode(self.status)}"
        if os.WIFSIGNALED(self.status):
            how = f"signal {signal.Signals(os.WTERMSIG(self.status)).name}"
        return UsageError(
            "the script ended the process in which it was followed",
            code=ENDED,
            got=how,
            remedy="it left no report; nothing that it did there reached this machine",
        )


class ViewUnavailableError(Exception):
    """There is no such view here."""


def follow(request: ViewRequest, serve: Serve) -> tuple[Any, Effects]:
    """Run the work in a view. serve: answers what it asks. Raises what the work raised of ours, Ended, and UsageError
    (TRN584) where a view was asked for that cannot be made."""
    chosen = os.environ.get(CHOICE, "")
    if chosen not in ("", NAMESPACES, HOOKS):
        raise UsageError(
            f"there is no such protection of {CHOICE}", code=NO_VIEW, got=chosen, limit=f"{NAMESPACES}, {HOOKS}"
        )
    if not hasattr(os, "fork"):
        raise UsageError(
            "no process can be copied on this system, so a script cannot be followed without harm",
            code=NO_VIEW,
            limit="Linux, macOS",
            got=sys.platform,
            remedy="trnlab run; on Windows, its subsystem for Linux",
        )
    request = replace(request, room=request.room or _room())
    if FILES in request.allowed:
        return _followed(replace(request, protection=OPEN), serve)
    why = "not on this system" if not sys.platform.startswith("linux") else ""
    if chosen != HOOKS and not why:
        try:
            return _followed(replace(request, protection=NAMESPACES), serve)
        except ViewUnavailableError as error:
            why = str(error)
    if chosen == NAMESPACES:
        raise UsageError(
            "no namespace with an overlay can be had here",
            code=NO_VIEW,
            got=why,
            remedy=f"unset {CHOICE}: then Python's functions are led elsewhere, see docs/check.md",
        )
    scratch = tempfile.mkdtemp(prefix="trnlab-")
    try:
        result, effects = _followed(replace(request, protection=HOOKS, scratch=scratch), serve)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    effects.why_not = why
    return result, effects


def _room() -> int:
    """Bytes for what a script writes: half of the memory that is free."""
    said = os.environ.get(ROOM, "")
    if said:
        try:
            return max(int(float(said) * (1 << 30)), 1 << 20)
        except (ValueError, OverflowError):
            raise UsageError(f"{ROOM} is a number of GiB", code=NO_VIEW, got=said, remedy="such as 8") from None
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) << 9
    return 4 << 30


def _followed(request: ViewRequest, serve: Serve) -> tuple[Any, Effects]:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ours, theirs = socket.socketpair()
    hears, tells = os.pipe()
    ends, goes_on = os.pipe()
    given = [theirs.fileno(), tells, ends]
    process = None
    try:
        if any(name in sys.modules for name in _FRAMEWORKS) or threading.active_count() > 1:
            from trnlab.view import ready  # there is a thread that a copy would lack

            ready.start(request, given)
        else:
            process = _forked(request, given, [ours.fileno(), hears, goes_on])
        theirs.close()
        os.close(tells)
        os.close(ends)
        given.clear()
        conversation = _Conversation(ours, hears, serve, request.limits)
        try:
            while not conversation.over:
                if conversation.lingers():
                    goes_on = _closed(goes_on)
                conversation.next()
        except ValueError as error:  # frames that nobody of us wrote
            raise UsageError(
                "what the script's process says cannot be read",
                code=ENDED,
                got=str(error),
                remedy="the script may write to files that it did not open",
            ) from error
        return conversation.result()
    finally:
        _closed(goes_on)
        ours.close()
        theirs.close()
        for handle in (hears, *given[1:]):
            os.close(handle)
        if process is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)


def _closed(handle: int) -> int:
    if handle >= 0:
        os.close(handle)
    return -1


def _forked(request: ViewRequest, given: Sequence[int], others: Sequence[int]) -> int:
    from trnlab.view import within

    process = os.fork()
    if process == 0:
        try:
            for handle in others:
                os.close(handle)
            within.enter(request, *given)
        finally:
            os._exit(1)
    return process


class _Conversation:
    """With the processes of the view, until the first of them says that all is over."""

    def __init__(self, script: socket.socket, first: int, serve: Serve, limits: ResourceLimits | None) -> None:
        self.over = False
        self._most = limits.said if limits is not None else None
        self._to_show = limits.said if limits is not None else 1 << 62  # characters of standard error
        self._script, self._first, self._serve = script.fileno(), first, serve
        self._result: tuple[Any, ...] = ()
        self._end: tuple[Any, ...] = ()
        self._known_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._script, selectors.EVENT_READ)
        self._selector.register(first, selectors.EVENT_READ)

    def lingers(self) -> bool:
        """Whether the script goes on for too long after its result."""
        if self._known_at is None or time.monotonic() - self._known_at < LINGERS_S:
            return False
        self._known_at = None
        return True

    def next(self) -> None:
        """Hear what comes next. Raises what cannot be read, and Unavailable."""
        for key, _ in sorted(
            self._selector.select(0.5 if self._known_at else None), key=lambda e: e[0].fd != self._script
        ):
            if key.fd == self._script:
                self._hear_script()
            elif self._hear_first():
                while any(k.fd == self._script for k, _ in self._selector.select(0)):
                    self._hear_script()
                self.over = True
                self._selector.close()
                return

    def _hear_script(self) -> None:
        words = frames.receive(self._script, self._most)
        if words is None:
            self._selector.unregister(self._script)
        elif words[0] == "said":
            shown = words[1][: self._to_show]
            self._to_show -= len(shown)
            sys.stderr.write(shown)
            sys.stderr.flush()
        elif words[0] == "ask":
            try:
                answer = self._serve(*words[1:])
            except (OSError, UsageError) as error:
                answer = error
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                frames.send(self._script, answer)
        else:
            self._result, self._known_at = words, time.monotonic()

    def _hear_first(self) -> bool:
        words = frames.receive(self._first)
        if words is None:
            raise UsageError("the process around the script was killed", code=ENDED, remedy="is there enough memory?")
        if words[0] == "no":
            raise ViewUnavailableError(words[1])
        self._end = words
        return True

    def result(self) -> tuple[Any, Effects]:
        """What was heard. Raises what the work raised, or Ended."""
        _, status, record, carried = self._end
        effects = effects_of(record)
        assert effects is not None
        for path, content in carried:
            _keep(path, content)
        if not self._result:
            raise ScriptExitedError(status, effects)
        kind, value = self._result
        if kind == "failed":
            raise RuntimeError(f"in the process that follows the script:\n{value}")
        if kind == "error":
            value.effects = effects
            raise value
        return value, effects


def _keep(path: str, content: bytes) -> None:
    """Write a file that this command keeps for itself."""
    from trnlab.files import replace as put

    with contextlib.suppress(OSError):
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        put(Path(path), content)
