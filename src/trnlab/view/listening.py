# SPDX-License-Identifier: Apache-2.0
"""Hears, through Python's audit hook, which processes a script starts and whom it sends to, notes that, and refuses
it unless it is allowed. The children of `multiprocessing` are the script itself, and go on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

CLOSED_NETWORK, CLOSED_PROCESSES = "TRN580", "TRN581"
_STARTS = frozenset(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.startfile", "pty.spawn"))
_SENDS = frozenset(
    ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname")
)
_OF_LOOKS = frozenset(("builtins.id", "object.__getattr__"))  # come by the million from whoever looks at frames
_HERE = ("localhost", "::1", "0.0.0.0", "::", "")
_NATIVE_STARTS = frozenset(("system", "popen", "execv", "execve", "execvp", "posix_spawn", "posix_spawnp"))


class EventWriter:
    """Writes what it hears to a file, a line each, as several processes may at once."""

    def __init__(self, log: int, allowed: frozenset[str], own_network: bool) -> None:
        """own_network: whether the process has a network to itself, where what is on this machine is the script's."""
        self._log, self._allowed, self._own_network = log, allowed, own_network
        self._asked: set[str] = set()
        self._bound: set[int] = set()
        self.more: Callable[[str, tuple[Any, ...]], None] | None = None

    def install(self) -> None:
        """Listen until the process ends."""
        sys.addaudithook(self._heard)

    def note(self, *words: str) -> None:
        """Write a line."""
        with contextlib.suppress(OSError):  # the script has closed it
            os.write(self._log, json.dumps(words).encode() + b"\n")

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _OF_LOOKS:
            return
        if event in _STARTS:
            self._starts(event, args)
        elif event in _SENDS:
            self._sends(event, args)
        elif event == "socket.bind":
            self._bound |= {args[1][1]} if isinstance(args[1], tuple) else set()
        elif event == "urllib.Request":
            self._asked.add(_address(args[0]))
            self.note("sent", str(args[0]))
        elif event == "os.rename":
            self.note("moved", _absolute(args[0]), _absolute(args[1]))
        elif event == "ctypes.dlsym" and args[1] in _NATIVE_STARTS:
            self.note("started", f"{args[1]}() of the C library")
            self._refuse_processes(f"{args[1]}()")
        elif event == "os.kill" and not self._own_network:
            self._signals(args[0])
        if self.more is not None:
            self.more(event, args)

    def _signals(self, process: int) -> None:
        if process not in (0, os.getpid()) and not is_descendant(process):
            self.note("refused", "signal to", f"process {process}")
            raise PermissionError(errno.EPERM, f"{CLOSED_PROCESSES}: process {process} is not of the script")

    # -- processes ------------------------------------------------------------------------------------------------
    def _starts(self, event: str, args: tuple[Any, ...]) -> None:
        command = _command(event, args)
        self.note("started", command)
        self._refuse_processes(command)

    def _refuse_processes(self, command: str) -> None:
        if "subprocesses" not in self._allowed:
            raise PermissionError(
                errno.EPERM,
                f"{CLOSED_PROCESSES}: no process is started for a script that is only followed: "
                f"{command[:80]} (--allow subprocesses starts it)",
            )

    # -- the network ----------------------------------------------------------------------------------------------
    def _sends(self, event: str, args: tuple[Any, ...]) -> None:
        where = args[0] if event in ("socket.getaddrinfo", "socket.gethostbyname") else args[1]
        if event == "socket.getaddrinfo":
            where = (args[0], args[1])
        by_path = isinstance(where, bytes) or (isinstance(where, str) and event != "socket.gethostbyname")
        if by_path or where is None:
            if where is not None and event == "socket.connect":
                self._to_socket(os.fsdecode(where))
            return  # a socket with a path: those of others are not connected to
        host, port = (where, 0) if isinstance(where, str) else (_text(where[0]), where[1])
        looks_up = event in ("socket.getaddrinfo", "socket.gethostbyname")
        if host in _HERE or host.startswith("127."):
            if looks_up or port in self._bound or (self._own_network and not _is_number(port)):
                return
            self._told(host, port)
            if self._own_network:  # whoever listens is the script
                return
        elif self._known_here(host) and looks_up:
            return
        else:
            self._told(host, port)
        if "network" not in self._allowed:
            raise ConnectionRefusedError(
                errno.ECONNREFUSED,
                f"{CLOSED_NETWORK}: the network is closed while a script is only followed: "
                f"{host}:{port} (--allow network opens it)",
            )

    def _told(self, host: str, port: Any) -> None:
        address = f"{host}:{port}" if port else host
        if address not in self._asked and not (_is_number(host) and any(a.endswith(f":{port}") for a in self._asked)):
            self.note("sent", address)

    def _to_socket(self, path: str) -> None:
        if path in self.foreign:
            self.note("sent", path)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{CLOSED_NETWORK}: {path} is of another process")

    foreign: frozenset[str] = frozenset()  # sockets of others that have a path

    @staticmethod
    def _known_here(host: str) -> bool:
        return host == os.uname().nodename


def is_descendant(process: int) -> bool:
    """Whether a process was started by this one; also where the system does not say."""
    if not os.path.exists("/proc/self/stat"):
        return True
    try:
        while process > 1:
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
            if process == os.getpid():
                return True
    except (OSError, ValueError):
        pass
    return False


def _text(host: Any) -> str:
    return os.fsdecode(host) if isinstance(host, bytes) else str(host or "")


def _is_number(text: Any) -> bool:
    return isinstance(text, int) or (
        isinstance(text, str)
        and text.replace(".", "").replace(":", "").isalnum()
        and (text.replace(".", "").isdigit() or ":" in text)
    )


def _address(url: Any) -> str:
    """Host and port of an address of the web."""
    from urllib.parse import urlsplit

    parts = urlsplit(str(url))
    return f"{parts.hostname}:{parts.port or {'https': 443}.get(parts.scheme, 80)}"


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else str(path)


def _command(event: str, args: tuple[Any, ...]) -> str:
    if event == "subprocess.Popen":
        words = args[1]
        return words if isinstance(words, str) else shlex.join(map(os.fsdecode, words))
    if event in ("os.exec", "os.posix_spawn"):
        return shlex.join(map(os.fsdecode, args[1]))
    if event == "pty.spawn" and not isinstance(args[0], str):
        return shlex.join(map(os.fsdecode, args[0]))
    return os.fsdecode(args[0])
