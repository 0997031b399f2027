# SPDX-License-Identifier: Apache-2.0
"""Prices of instances, Neuron's and others', each with its kind, date, region and source; kinds are never mixed.

Every report takes them from this table, and has dollars made by `Price.usd`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trnlab.units import SECONDS_PER_HOUR

TOLD = "as told"  # the kind of a price that somebody says they pay
KINDS = ("on-demand", "capacity block", "reserved", "spot")


@dataclass(frozen=True)
class Price:
    """US dollars an hour of one instance."""

    instance: str
    kind: str
    usd_per_hour: float
    # low, high: between which it was seen; equal where it is one figure
    low: float
    high: float
    date: str
    region: str
    tag: str
    source: str

    def usd(self, hours: float) -> float:
        """Dollars of so many hours of one instance."""
        return self.usd_per_hour * hours

    def usd_of(self, seconds: float, instances: int = 1) -> float:
        """Dollars of so many seconds of so many instances."""
        return self.usd(instances * seconds / SECONDS_PER_HOUR)

    @property
    def spelled(self) -> str:
        """Dollars an hour, or between which they were."""
        return f"{self.usd_per_hour:,.2f}" if self.low == self.high else f"{self.low:,.2f}-{self.high:,.2f}"

    @property
    def origin(self) -> str:
        """Kind, date and source, for a line of a report."""
        return f"{self.kind}, {self.date}; {self.source}"

    def __str__(self) -> str:
        place = f", {self.region}" if self.region else ""
        return f"${self.usd_per_hour:.2f}/h {self.kind}, {self.date}{place} ({self.tag}: {self.source})"


def told(instance: str, usd_per_hour: float) -> Price:
    """What somebody says they pay."""
    return Price(instance, TOLD, usd_per_hour, usd_per_hour, usd_per_hour, "today", "", "assumed", "the question")


@cache
def all_of_them() -> tuple[Price, ...]:
    """Every line of the table, those that newer ones took the place of, too."""
    with files(__package__).joinpath("prices.csv").open(encoding="utf-8") as file:
        return tuple(_price(row) for row in csv.DictReader(file))


def _price(row: dict[str, str]) -> Price:
    usd = float(row["usd_per_hour"])
    return Price(
        row["instance"],
        row["kind"],
        usd,
        float(row["low"] or usd),
        float(row["high"] or usd),
        row["date"],
        row["region"],
        row["tag"],
        row["source"],
    )


def history(instance: str) -> list[Price]:
    """All that are known of an instance type, the latest of each kind first."""
    mine = sorted((p for p in all_of_them() if p.instance == instance), key=lambda p: p.date, reverse=True)
    return sorted(mine, key=lambda p: KINDS.index(p.kind))


def latest(instance: str) -> dict[str, Price]:
    """The newest price of each kind."""
    found: dict[str, Price] = {}
    for price in history(instance):
        found.setdefault(price.kind, price)
    return found


@cache
def chosen(instance: str) -> Price | None:
    """The price to reckon with: the newest of the first kind that is known, in the order of `KINDS`."""
    return next(iter(latest(instance).values()), None)


def sources(known: Iterable[Price]) -> dict[str, list[str]]:
    """Where prices are from, each source once, with the kinds that it tells."""
    found: dict[str, list[str]] = {}
    for price in known:
        found.setdefault(f"{price.source} ({price.tag})", []).append(price.kind)
    return found


def alike(first: str, second: str) -> list[tuple[Price, Price]]:
    """The newest prices of both sides of every kind that both have, since only those can be compared."""
    a, b = latest(first), latest(second)
    return [(a[kind], b[kind]) for kind in KINDS if kind in a and kind in b]
