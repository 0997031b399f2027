# SPDX-License-Identifier: Apache-2.0
"""The server of `trnlab ui`: uvicorn on 127.0.0.1, with the bounds of all that listens (`cli.listening`)."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trnlab.cli.listening import ADDRESS, CONNECTIONS, IDLE_S
from trnlab.cli.web.app import made
from trnlab.cli.web.guard import TOKEN
from trnlab.cli.web.site import ServedSite
from trnlab.errors import UsageError
from trnlab.runtime.notices import say

MOST = 4 * CONNECTIONS  # browsers hold six of each open, for each tab


class BoundedConnection(H11Protocol):
    """A connection that is cut where a request does not come whole within IDLE_S, or where there are too many."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take it, if there is room."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            transport.abort()
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A piece of a request; the clock stops when all of its head is there."""
        if self._late is None:
            self._await_request()
        super().data_received(data)
        if self.conn.our_state is h11.SEND_RESPONSE:
            self._cancel()

    def on_response_complete(self) -> None:
        """An answer is out; the next request begins with its first byte."""
        self._cancel()
        super().on_response_complete()

    def _await_request(self) -> None:
        self._late = self.loop.call_later(IDLE_S, self.transport.abort)

    def _cancel(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None


def server(site: ServedSite) -> uvicorn.Server:
    """What answers for a site; it writes nothing."""
    config = uvicorn.Config(
        made(site),
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def bound(port: int) -> socket.socket:
    """A socket of this host. Raises UsageError (TRN852) where the port is taken."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((ADDRESS, port))
    except OSError as error:
        found.close()
        raise UsageError(
            f"port {port} cannot be served: {error.strerror}",
            code="TRN852",
            got=port,
            limit="a free port of this host",
            remedy="choose another one, or --port 0 for any that is free",
        ) from error
    return found


def serve(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    listener = bound(args.port)
    port = listener.getsockname()[1]
    site = ServedSite.of(args, secrets.token_urlsafe(24), port)
    say(f"open http://{ADDRESS}:{port}/?{TOKEN}={site.token}")
    say("addresses within it can be shared with who has opened this one; Ctrl-C ends it")
    try:
        server(site).run(sockets=[listener])
    finally:
        site.close()
        listener.close()
    return 0
