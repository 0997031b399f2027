# SPDX-License-Identifier: Apache-2.0
"""Views for a process that cannot be copied, since it has threads: it has one started that waits, with the framework
imported and nothing run, and is copied for each request."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from trnlab.view.request import ViewRequest

_MAIN = "from trnlab.view.ready import serve; serve({handle}, {ready!r})"
_waiting: dict[str, tuple[subprocess.Popen[bytes], socket.socket]] = {}


def start(request: ViewRequest, handles: Sequence[int]) -> None:
    """Have the request run in a copy of the waiting process. handles: the files of it, see `within.enter`."""
    _, line = _of(request.ready)
    state = (request, dict(os.environ), os.getcwd(), list(sys.path))
    content = pickle.dumps(state)
    socket.send_fds(line, [len(content).to_bytes(8, "little")], list(handles))
    line.sendall(content)


def _of(ready: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    known = _waiting.get(ready)
    if known is not None and known[0].poll() is None:
        return known
    ours, theirs = socket.socketpair()
    program = _MAIN.format(handle=theirs.fileno(), ready=ready)
    process = subprocess.Popen([sys.executable, "-c", program], pass_fds=[theirs.fileno()])
    theirs.close()
    if not _waiting:
        atexit.register(_end)
    _waiting[ready] = process, ours
    return _waiting[ready]


def _end() -> None:
    for process, line in _waiting.values():
        line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    _waiting.clear()


def serve(handle: int, ready: str) -> None:
    """What the waiting process does, until the one that started it is gone."""
    from trnlab.view import within

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    line = socket.socket(fileno=handle)
    if ready:
        module, _, name = ready.partition(":")
        getattr(importlib.import_module(module), name)()
    while True:
        head, handles, _, _ = socket.recv_fds(line, 8, 8)
        if len(head) < 8:
            return
        request, environment, folder, path = pickle.loads(_exactly(line, int.from_bytes(head, "little")))
        if os.fork() == 0:
            try:
                line.close()
                os.environ.clear()
                os.environ.update(environment)
                os.chdir(folder)
                sys.path[:] = path
                within.enter(request, *handles)
            finally:
                os._exit(1)
        for each in handles:
            os.close(each)


def _exactly(line: socket.socket, size: int) -> Any:
    parts = bytearray()
    while len(parts) < size:
        part = line.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
