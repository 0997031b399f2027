# SPDX-License-Identifier: Apache-2.0
"""What listens (`trnlab monitor --prometheus --port`): other names of the host, halves of requests, resets, floods.

Each input is a handful of clients at once. The server answers its own names alone, keeps no more threads than it has
connections for, writes no traceback, and answers the next one who asks properly.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import socket
import struct
import tempfile
import threading
from pathlib import Path
from unittest import mock

from tools.attack import Outcome
from trnlab.cli import monitor
from trnlab.runtime import status_file

HOSTS = (
    "evil.example",
    "evil.example:80",
    "127.0.0.1.evil.example",
    "",
    "localhost:x",
    "[::1]",
    "localhost\0",
    "0x7f.1",
    "local host",
)
REQUESTS = (
    b"GET /",
    b"",
    b"\0" * 99,
    b"GET /metrics HTTP/1.1\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n",
    b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"A: b\r\n" * 5000,
)


def listening(inputs: int, seed: int) -> Outcome:
    """As the module says."""
    outcome, said = Outcome(), io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(monitor, "IDLE_S", 0.2),
        mock.patch.object(monitor, "LONGEST_S", 1.0),
        mock.patch.dict(os.environ, {status_file.PLACE: folder}),
        contextlib.redirect_stderr(said),
        monitor.Server(("127.0.0.1", 0), monitor.handler(Path(folder))) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        before = threading.active_count()
        try:
            for number in range(inputs):
                wrong = _clients(server.server_port, random.Random(f"{seed} {number}"), before)
                outcome.counts["handfuls of clients"] += 1
                outcome.failures += [f"input {number} of seed {seed}: {what}" for what in wrong]
        finally:
            server.shutdown()
            thread.join()
    if "Traceback" in said.getvalue():
        outcome.failures.append(f"a traceback is written: {said.getvalue()[-300:]}")
    return outcome


def _clients(port: int, pick: random.Random, before: int) -> list[str]:
    wrong = []
    host = pick.choice(HOSTS)
    if b" 200 " in _asked(port, host):
        wrong.append(f"answered as {host!r}")
    left = [_half(port, pick) for _ in range(pick.choice((1, 5, 40)))]
    if threading.active_count() > before + 2 * monitor.CONNECTIONS + 2:
        wrong.append(f"{threading.active_count()} threads")
    for each in left:
        if pick.random() < 0.5:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
        each.close()
    for _ in range(100):  # until those before are cut off
        if b" 200 " in _asked(port, "localhost"):
            return wrong
    return [*wrong, "the next one is not answered"]


def _half(port: int, pick: random.Random) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    with contextlib.suppress(OSError):
        client.sendall(pick.choice(REQUESTS))
    return client


def _asked(port: int, host: str) -> bytes:
    """The first line of the answer, nothing where there is none."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(f"GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            return client.makefile("rb").readline()
    except OSError:
        return b""
