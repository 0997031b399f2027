# SPDX-License-Identifier: Apache-2.0
"""What everything that listens keeps (docs/trust.md): this host's own names alone, so many connections, so long."""

from __future__ import annotations

ADDRESS = "127.0.0.1"
CONNECTIONS = 16  # that are answered at the same time
IDLE_S, LONGEST_S = 5.0, 15.0  # without a byte of a request, and of a connection
_HOSTS = (ADDRESS, "localhost")  # by which a request may call this host


def is_own_name(host: str) -> bool:
    """Whether a Host header calls this host by its own name: a page of somewhere may have its name resolved here."""
    name, _, port = host.partition(":")
    return name.lower() in _HOSTS and (port == "" or port.isdecimal())
