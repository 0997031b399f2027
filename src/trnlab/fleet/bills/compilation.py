# SPDX-License-Identifier: Apache-2.0
"""Compile once, counted: what compiling costs on the vendor's stack, how often a run does it, what a cache saves.

Minutes are the vendor's published ones, a range: between the sizes that were published, all that lies between the
least and the most of both; beyond them nothing is known, and that of the nearest is assumed.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from trnlab.chips.prices import Price
from trnlab.fleet.ranges import PublishedRange
from trnlab.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE

BEYOND = 3.0  # times the largest size, or a part of the smallest, to which its minutes are taken to hold
CHANGES = 2  # times that a run's step is changed after its start: batch, schedule, a new release; assumed
WEEKS = 52  # of a year


@cache
def _rows() -> list[dict[str, Any]]:
    return list(tomllib.loads(files(__package__).joinpath("compile_times.toml").read_text("utf-8"))["row"])


def minutes(parameters: float) -> PublishedRange:
    """Minutes of compiling the training step of a model of so many parameters."""
    sizes = sorted({row["parameters"] for row in _rows()})
    below = max((s for s in sizes if s <= parameters), default=sizes[0])
    above = min((s for s in sizes if s >= parameters), default=sizes[-1])
    near = [row for row in _rows() if row["parameters"] in (below, above)]
    low, high = min(r["low"] for r in near), max(r["high"] for r in near)
    known = sizes[0] / BEYOND <= parameters <= sizes[-1] * BEYOND
    source = "; ".join(dict.fromkeys(f"{r['what']}, {r['stack']}: {r['source']}" for r in near))
    tag = "documented" if known else "assumed"
    return PublishedRange(
        math.sqrt(low * high), low, high, tag, source if known else f"nothing published so small or large; {source}"
    )


@dataclass(frozen=True)
class Recompiles:
    """Recompiles of a run."""

    minutes: PublishedRange
    # times that it compiles when nothing is kept: at its start, at each change of its step, and after each
    # restart
    without: float
    with_cache: float  # what is left when programs are kept. hours: of all instances, waiting
    instances: int
    price: Price | None

    def hours(self, times: float) -> PublishedRange:
        """Instance hours of so many compilations, during which all instances wait."""
        return self.minutes.times(times * self.instances * SECONDS_PER_MINUTE / SECONDS_PER_HOUR)

    @property
    def saved_hours(self) -> PublishedRange:
        """Instance hours that the cache saves in one run."""
        return self.hours(self.without - self.with_cache)

    @property
    def saved_usd(self) -> PublishedRange | None:
        """Dollars that the cache saves in one run; None without a price."""
        return self.usd(self.without - self.with_cache)

    def usd(self, times: float) -> PublishedRange | None:
        """Dollars of so many compilations; None without a price."""
        return None if self.price is None else self.hours(times).times(self.price.usd(1.0))

    def repeated(self, runs: int = WEEKS) -> PublishedRange | None:
        """Dollars that a cache saves when the run is repeated so many times, the same step each time: later runs
        compile nothing."""
        return self.usd(runs * self.without - self.with_cache)


def recompiles(
    parameters: float, days: float, instances: int, between: float, price: Price | None, changes: int = CHANGES
) -> Recompiles:
    """Recompiles of a run of so many days. between: seconds from one restart of the job to the next."""
    restarts = days * SECONDS_PER_DAY / between if between > 0 else 0.0
    return Recompiles(minutes(parameters), 1 + changes + restarts, 1 + changes, instances, price)


@dataclass(frozen=True)
class PortingPayback:
    """runs: after how many the saving has repaid so many engineer days; None where there is no saving."""

    engineer_days: float
    usd_per_day: float
    saved_per_run: float

    @property
    def usd(self) -> float:
        """Dollars of the port."""
        return self.engineer_days * self.usd_per_day

    @property
    def runs(self) -> float | None:
        """Until it is repaid."""
        return self.usd / self.saved_per_run if self.saved_per_run > 0 else None

    @property
    def break_even_days(self) -> float | None:
        """Engineer days that one run's saving pays for."""
        return self.saved_per_run / self.usd_per_day if self.saved_per_run > 0 else None
