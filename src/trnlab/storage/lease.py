# SPDX-License-Identifier: Apache-2.0
"""Leases: the right to do something that one of many should do, for as long as its holder shows signs of life.

A lease is an object `<name>/<n>`. Who finds none creates number 1; the store lets one of many succeed. The holder
writes it anew every `BEAT_S`. Who waits takes over by creating the next number, again one of many, when of every
object that is there

- the holder is a process of this host that is gone, or
- the content stayed the same for `EXPIRES_S` of the waiter's own clock, or was written long ago by the store's clock.

Between the look and the creation others may have come and gone, and the number may be free again. So who created an
object looks once more, and gives it back if somebody else's is there that was not found to be over. Of two who create
at the same time at least one sees the other.

No clocks of two hosts are compared more finely than `LONG_AGO_S`. A holder that was only slow, and is taken over,
does no harm: what it makes is named by its content. A lease saves work, and nothing depends on it for being right.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trnlab.files import json_of
from trnlab.storage.store import Item, Store

BEAT_S, EXPIRES_S, LONG_AGO_S = 10.0, 30.0, 600.0
POLL_S, LONGEST_POLL_S = 0.02, 1.0


class Lease:
    """The right to `name` in `store`, tried for and waited for by one process; a context manager once acquired."""

    def __init__(self, store: Store, name: str, *, beat_s: float = BEAT_S, expires_s: float = EXPIRES_S) -> None:
        self._store, self._name = store, name
        self._beat_s, self._expires_s = beat_s, expires_s
        self._token = secrets.token_hex(8)
        self._held: str | None = None
        self._stop = threading.Event()
        self._beats: threading.Thread | None = None
        self._seen: dict[str, tuple[bytes, float]] = {}  # others' objects: their content, since when it is the same
        self.taken_over: str | None = None  # whose lease ended without being given back, when this one was acquired

    def acquire(self, done: Callable[[], bool]) -> bool:
        """Wait until the lease is ours (true), or until `done` says that it is not needed any more (false).

        Raises OSError where the store cannot be used.
        """
        pause = POLL_S
        while not self.try_acquire():
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_POLL_S)
            if done():
                return False
        return True

    def try_acquire(self) -> bool:
        """Take the lease where nobody has it, or whoever had it is gone. Raises OSError."""
        self.taken_over, items = None, self._leases()
        over = [self._is_over(item) for _, item in items]  # each is asked: its time counts from the first look
        if not all(over):
            return False
        self._held = f"{self._name}/{items[-1][0] + 1 if items else 1}"
        if not self._store.create(self._held, self._content(0)):
            self._held = None
            return False
        if not self._is_alone():
            self._give_back()
            return False
        with contextlib.suppress(OSError):
            self._store.delete(*(item.name for _, item in items))
        self._beats = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._beats.start()
        return True

    def release(self) -> None:
        """Give it back."""
        self._stop.set()
        if self._beats is not None:
            self._beats.join()
        self._give_back()

    # -- within -------------------------------------------------------------------------------------------------
    def _leases(self) -> list[tuple[int, Item]]:
        """The objects of this lease by their numbers, the newest last."""
        start = f"{self._name}/"
        items = [(item.name.removeprefix(start), item) for item in self._store.items(start)]
        return sorted(((int(number), item) for number, item in items if number.isdecimal()), key=lambda pair: pair[0])

    def _is_over(self, item: Item) -> bool:
        """Whether the holder of a lease will not come back to it."""
        content = self._content_of(item)
        if content is None:  # given back: the next look shows what is there now
            return False
        now = time.monotonic()
        if item.name not in self._seen or self._seen[item.name][0] != content:
            self._seen[item.name] = (content, now)
        try:
            about = json_of(content)
            holder, here = str(about["holder"]), about["place"] == _place()
            gone = here and not _is_alive(int(about["process"]), str(about["born"]))
        except (ValueError, KeyError, TypeError, OverflowError):  # half written, where a store knows no better
            holder, gone = "a host", False
        since = self._seen[item.name][1]
        over = gone or now - since > self._expires_s or time.time() - item.modified > LONG_AGO_S
        if over:
            self.taken_over = holder
        return over

    def _is_alone(self) -> bool:
        """Whether beside our object there are only those that were found to be over, as they were then."""
        for _, item in self._leases():
            content = self._content_of(item)
            if item.name != self._held and content not in (None, self._seen.get(item.name, (None, 0.0))[0]):
                return False
        return True

    def _content_of(self, item: Item) -> bytes | None:
        """None where it was given back meanwhile. Raises OSError."""
        try:
            return self._store.read(item.name, 1 << 16)
        except FileNotFoundError:
            return None

    def _give_back(self) -> None:
        if self._held is not None:
            with contextlib.suppress(OSError):
                self._store.delete(self._held)
        self._held = None

    def _beat(self) -> None:
        for count in range(1, 1 << 62):
            if self._stop.wait(self._beat_s) or self._held is None:
                return
            with contextlib.suppress(OSError):  # if it lasts, others will take over, and nothing is lost
                self._store.write(self._held, self._content(count))

    def _content(self, count: int) -> bytes:
        holder = f"{socket.gethostname()}:{os.getpid()}"
        process = {"process": os.getpid(), "born": _birth(os.getpid())}
        about = {"holder": holder, "place": _place(), **process, "token": self._token, "beats": count}
        return json.dumps(about).encode()


def _place() -> str:
    """Where process numbers mean the same: this boot of this host, in this namespace of processes."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError, AttributeError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _is_alive(process: int, born: str) -> bool:
    """Whether the process of this number, born then, lives. Where one cannot ask without harm, it is taken to."""
    if os.name != "posix":
        return True
    if born:
        return _birth(process) == born
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _birth(process: int) -> str:
    """When a process that runs was started, in ticks since the boot; empty where that is not known, or it is dead."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else fields[18]
