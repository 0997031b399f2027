# SPDX-License-Identifier: Apache-2.0
"""Processes that are copies of one which has imported what all of them need: a second of imports once, not for each.

The one that waits (`python -m trnlab.runtime.jobs.forking`) starts with the environment that all have in common,
imports, and copies itself for each request (`os.fork`). A copy gets arguments, environment, folder and files as a new
process would, and then does what `python ARGUMENTS` does. What a copy keeps of the one that waits is what imports
leave: modules, and the seed of hashes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_STATUS = struct.Struct("<i")
_SIZE = struct.Struct("<Q")


def possible() -> bool:
    """Whether processes that have imported much can be copied here. Libraries of macOS do not survive that."""
    return sys.platform.startswith("linux") and hasattr(os, "fork") and hasattr(socket, "send_fds")


class Process:
    """A copy that was started, with the methods of `subprocess.Popen` that ask and end it."""

    def __init__(self, pid: int, ends: int, arguments: Sequence[str]) -> None:
        self.pid, self.args, self.returncode = pid, list(arguments), None  # type: int, list[str], int | None
        self._ends = ends

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        if self.returncode is None and self._told(0):
            said = os.read(self._ends, _STATUS.size)
            os.close(self._ends)
            if not said:  # the one that waits is gone, and with it who would hear of the end: it comes now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.returncode = _STATUS.unpack(said)[0] if said else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not self._told(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def _told(self, timeout: float | None) -> bool:
        """Whether its end is told within the time."""
        import selectors  # some systems lack it, which start no copies

        with selectors.DefaultSelector() as waiting:
            waiting.register(self._ends, selectors.EVENT_READ)
            return bool(waiting.select(timeout))

    def send_signal(self, number: int) -> None:
        """As `Popen.send_signal`: nothing where it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(OSError):
                os.close(self._ends)


class Forks:
    """A process that waits, with its imports made.

    imports: pairs of a module and names of it, imported in this order as far as that goes. environment: of the one
    that waits, which libraries read when they are imported.
    """

    def __init__(self, imports: Sequence[tuple[str, Sequence[str]]], environment: Mapping[str, str]) -> None:
        self._line, theirs = socket.socketpair()
        command = [sys.executable, "-m", "trnlab.runtime.jobs.forking", str(theirs.fileno()), json.dumps(imports)]
        self._used = False
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=dict(environment))
        theirs.close()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        files: Sequence[int],
        folder: str | None = None,
    ) -> Process:
        """Do what `python ARGUMENTS` does. files: its standard output and error, and its input, which is else that of
        the one that waits. Raises OSError where that one is gone."""
        ends, told = os.pipe()
        content = json.dumps([list(arguments), dict(environment), folder or os.getcwd()]).encode()
        try:
            socket.send_fds(self._line, [_SIZE.pack(len(content))], [told, *files])
            self._line.sendall(content)
            said = self._line.recv(_STATUS.size, socket.MSG_WAITALL)
        finally:
            os.close(told)
        self._used = True
        if len(said) < _STATUS.size:
            os.close(ends)
            raise OSError("the process that was to be copied is gone")
        return Process(_STATUS.unpack(said)[0], ends, arguments)

    def close(self) -> None:
        """Let the one that waits end. Copies that still run go on."""
        self._line.close()
        if not self._used:
            self._process.kill()  # it may still import
        self._process.wait()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *of: Any) -> None:
        self.close()
