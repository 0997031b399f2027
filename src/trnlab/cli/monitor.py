# SPDX-License-Identifier: Apache-2.0
"""`trnlab monitor`."""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trnlab.cli import options
from trnlab.cli.listening import ADDRESS, CONNECTIONS, IDLE_S, LONGEST_S, is_own_name
from trnlab.errors import TrnlabError, UsageError
from trnlab.operations import monitor, monitor_text
from trnlab.operations.monitor import MonitorSnapshot
from trnlab.runtime import status_file
from trnlab.runtime.notices import say

SHORTEST_S = 0.1
_CLEAR = "\x1b[H\x1b[2J"


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab monitor`."""
    add = command.add_argument
    how = command.add_mutually_exclusive_group()
    how.add_argument("--top", action="store_true", help="a page for people, renewed on a terminal; the default")
    how.add_argument("--json", action="store_true", help="as neuron-monitor: an object for each instance and period")
    how.add_argument("--prometheus", action="store_true", help="as neuron-monitor-prometheus.py: all metrics, once")
    add(
        "--port",
        type=options.whole(0, 65535),
        metavar="N",
        help="with --prometheus: serve them to this host at /metrics, until stopped",
    )
    add(
        "--period",
        type=options.real(SHORTEST_S, 86400),
        default=5.0,
        metavar="SECONDS",
        help="between two reports; default: 5",
    )
    add("--samples", type=options.COUNT, metavar="N", help="reports; default: until stopped, or one page into a file")


def main(args: argparse.Namespace) -> int:
    """Say what runs on simulated devices of this host and user, once or again and again."""
    place = status_file.folder()
    if place is None:
        told = os.environ.get(status_file.PLACE, "")
        raise UsageError(
            "nothing can be watched: runs say nothing of themselves",
            code="TRN553",
            got=f"{status_file.PLACE}={told}",
            remedy=f"unset {status_file.PLACE}, or name a folder in it, for the runs as for the monitor",
        )
    status_file.look(place)
    if args.port is not None:
        return _serve(place, args.port)
    if args.prometheus:
        print(monitor_text.prometheus(monitor.reports(_now(place), MonitorSnapshot())), end="")
        return 0
    return _watch(place, args, _json if args.json else _top)


def _watch(place: Path, args: argparse.Namespace, show: Callable[[MonitorSnapshot, MonitorSnapshot], None]) -> int:
    """Reports again and again; one where the output is no terminal and nobody asked for more."""
    samples = args.samples or (None if args.json or sys.stdout.isatty() else 1)
    before, shown = MonitorSnapshot(), 0
    while samples is None or shown < samples:
        if shown:
            time.sleep(args.period)
            status_file.look(place)
        now = _now(place)
        show(now, before)
        before, shown = now, shown + 1
    return 0


def _now(place: Path) -> MonitorSnapshot:
    status_file.sweep(place)
    return monitor.moment(status_file.states(place))


def _json(now: MonitorSnapshot, before: MonitorSnapshot) -> None:
    for report in monitor.reports(now, before):
        print(json.dumps(report), flush=True)


def _top(now: MonitorSnapshot, before: MonitorSnapshot) -> None:
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((118, 40)).columns if terminal else 118
    page = monitor_text.top(monitor.reports(now, before), now.states, width)
    print(f"{_CLEAR}{page}" if terminal else page, end="", flush=True)


def handler(place: Path) -> type[http.server.BaseHTTPRequestHandler]:
    """What answers each request with all metrics, as the vendor's exporter does; of those to this host's own names,
    for a page of somewhere may have its name resolved to this host."""

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = IDLE_S

        def do_GET(self) -> None:
            if not is_own_name(self.headers.get("Host") or ""):
                self.send_error(403, "for this host's own names alone")
                return
            try:
                status_file.look(place)
                content = monitor_text.prometheus(monitor.reports(_now(place), MonitorSnapshot())).encode()
            except (OSError, TrnlabError):
                self.send_error(503, "the folder of live records cannot be used")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing for each request."""

    return Handler


class Server(http.server.ThreadingHTTPServer):
    """So many connections at once and no more, each for so long and no longer."""

    request_queue_size = 128  # that wait to be accepted: of more than a few at once, the rest would wait for seconds

    def __init__(self, *args: Any) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, where one is free; else the connection is closed."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Until it is answered, or its time is up."""
        late = threading.Timer(LONGEST_S, self._cut, [request])
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._free.release()

    @staticmethod
    def _cut(request: Any) -> None:
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no trouble of ours; all else is a line."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            say(f"a request could not be answered: {type(error).__name__}")


def _serve(place: Path, port: int) -> int:
    try:
        server = Server((ADDRESS, port), handler(place))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"port {port} cannot be served: {error}",
            code="TRN553",
            got=port,
            limit="a free port of this host",
            remedy="choose another one, such as --port 8008",
        ) from error
    say(f"metrics at http://{ADDRESS}:{server.server_port}/metrics (process {os.getpid()})")
    with server:
        server.serve_forever()
    return 0
