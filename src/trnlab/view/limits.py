# SPDX-License-Identifier: Apache-2.0
"""Limits of what the processes of a view use: the kernel holds each process to its own, and the first process of the
view, which no other can end, adds up what all of them use and ends them when that is too much."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from trnlab.view.request import ResourceLimits

LOOKS_S = 0.02  # between two looks at what is used
_LARGEST_LOG = 16 << 20  # bytes of a file that is written, the log of effects among them


def hold(limits: ResourceLimits, room: int) -> None:
    """Have the kernel hold this process, and each that it starts, to the limits of one process. room: bytes of the
    layer that files are written to."""
    resource = importlib.import_module("resource")
    seconds = max(int(limits.processor_s + 0.999), 1)
    wanted = {
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_DATA: (limits.memory, limits.memory),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_FSIZE: (max(room, _LARGEST_LOG), max(room, _LARGEST_LOG)),
    }
    for which, pair in wanted.items():
        with contextlib.suppress(OSError, ValueError):  # a lower one holds already
            highest = resource.getrlimit(which)[1]
            resource.setrlimit(which, tuple(value if highest < 0 else min(value, highest) for value in pair))


class UsageWatch:
    """Adds up what the processes of a view use. own: whether all that /proc shows are the view's."""

    def __init__(self, limits: ResourceLimits, own: bool) -> None:
        self._limits, self._own, self._began = limits, own, time.monotonic()
        self._page = os.sysconf("SC_PAGE_SIZE")

    def passed(self) -> str:
        """The first limit that is passed, with what was used; "" for none."""
        seconds = time.monotonic() - self._began
        if seconds > self._limits.seconds:
            return f"{self._limits.seconds:g} seconds of the clock"
        if not self._own:
            return ""
        pages = list(self._resident())
        if len(pages) > self._limits.processes:
            return f"{self._limits.processes} processes at once, and it had {len(pages)}"
        used = sum(pages) * self._page
        if used > self._limits.memory:
            return f"{self._limits.memory / 2**20:,.0f} MiB of memory, and it had {used / 2**20:,.0f}"
        return ""

    @staticmethod
    def _resident() -> Iterator[int]:
        """Pages of memory of each process but this one; what they share with it does not count."""
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and int(place.name) != os.getpid():
                with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended
                    _, resident, shared = (place / "statm").read_text().split()[:3]
                    yield max(int(resident) - int(shared), 0)
