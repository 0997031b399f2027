# SPDX-License-Identifier: Apache-2.0
"""What Linux says of this host and of its processes. What it does not say is missing, and never guessed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
STATES = ("user", "nice", "system", "idle", "io_wait", "irq", "soft_irq")  # of /proc/stat, in its order
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Processors:
    """Ticks of each processor by state since boot, the sum of all under ""; and context switches."""

    ticks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    switches: int = 0

    def usage(self, before: Processors, name: str = "") -> dict[str, float]:
        """Percent of the time since `before` in each state, or since boot where nothing was before."""
        now, then = self.ticks.get(name, ()), before.ticks.get(name, ())
        spent = [a - b for a, b in zip(now, then or (0,) * len(now))]
        total = sum(spent)
        return {state: 100 * each / total if total else 0.0 for state, each in zip(STATES, spent)}


def processors() -> Processors:
    """As /proc/stat has it."""
    ticks, switches = {}, 0
    for line in _lines(PROC / "stat"):
        name, *fields = line.split()
        if name.startswith("cpu"):
            ticks[name[3:]] = tuple(map(int, fields[: len(STATES)]))
        elif name == "ctxt":
            switches = int(fields[0])
    return Processors(ticks, switches)


def memory() -> dict[str, int]:
    """Bytes, by the names of /proc/meminfo; pages of HugePages_* are numbers, as there."""
    found = {}
    for line in _lines(PROC / "meminfo"):
        name, _, rest = line.partition(":")
        value, *unit = rest.split() or ["0"]
        found[name] = int(value) * (1024 if unit else 1)
    return found


def used_s(pid: int) -> tuple[float, float]:
    """Seconds of processor that a process has used, in its own code and in the kernel."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if line.strip()]
    except OSError:
        return []
