# SPDX-License-Identifier: Apache-2.0
"""Units that cross layers: time is an integer number of picoseconds, sizes are bytes."""

from __future__ import annotations

PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_MS = 1_000_000_000
PS_PER_S = 1_000_000_000_000

SECONDS_PER_MINUTE, SECONDS_PER_HOUR, SECONDS_PER_DAY, SECONDS_PER_WEEK = 60.0, 3600.0, 86400.0, 604800.0
HOURS_PER_DAY, DAYS_PER_WEEK = 24.0, 7.0

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_TIME_STEPS = ((PS_PER_S, "s"), (PS_PER_MS, "ms"), (PS_PER_US, "us"), (PS_PER_NS, "ns"), (1, "ps"))
_SIZE_STEPS = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))


def cycles_to_ps(cycles: float, clock_hz: float) -> int:
    """Picoseconds that `cycles` take at `clock_hz`, rounded to the nearest picosecond."""
    return round(cycles * PS_PER_S / clock_hz)


def format_time(ps: float) -> str:
    """A duration for people: three significant digits and the largest unit that keeps it above one."""
    return _format(ps, _TIME_STEPS)


def format_bytes(size: float) -> str:
    """A size for people, in binary units."""
    return _format(size, _SIZE_STEPS)


def format_count(value: float) -> str:
    """A count for people: 1.24 M rather than 1240000."""
    return _format(value, ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))).strip()


def _format(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for scale, unit in steps:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}" if abs(value) < 1000 * scale else f"{value / scale:.0f} {unit}"
    return f"{value:.3g} {steps[-1][1]}"
