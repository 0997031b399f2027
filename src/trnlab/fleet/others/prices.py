# SPDX-License-Identifier: Apache-2.0
"""Prices of instances, Neuron's and others', each with its kind, date, region and source; kinds are never mixed."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

KINDS = ("on-demand", "capacity block", "reserved", "spot")


@dataclass(frozen=True)
class Price:
    """US dollars an hour of one instance. low, high: between which it was seen; equal where it is one figure."""

    instance: str
    kind: str
    usd_per_hour: float
    low: float
    high: float
    date: str
    region: str
    tag: str
    source: str

    def __str__(self) -> str:
        place = f", {self.region}" if self.region else ""
        return f"${self.usd_per_hour:.2f}/h {self.kind}, {self.date}{place} ({self.tag}: {self.source})"


@cache
def _all() -> tuple[Price, ...]:
    with files(__package__).joinpath("prices.csv").open(encoding="utf-8") as file:
        return tuple(_price(row) for row in csv.DictReader(file))


def _price(row: dict[str, str]) -> Price:
    usd = float(row["usd_per_hour"])
    return Price(
        row["instance"], row["kind"], usd, float(row["low"] or usd), float(row["high"] or usd), row["date"],
        row["region"], row["tag"], row["source"],
    )  # fmt: skip


def history(instance: str) -> list[Price]:
    """All that are known of an instance type, the latest of each kind first."""
    mine = sorted((p for p in _all() if p.instance == instance), key=lambda p: p.date, reverse=True)
    return sorted(mine, key=lambda p: KINDS.index(p.kind))


def latest(instance: str) -> dict[str, Price]:
    """The newest price of each kind."""
    found: dict[str, Price] = {}
    for price in history(instance):
        found.setdefault(price.kind, price)
    return found


def alike(first: str, second: str) -> list[tuple[Price, Price]]:
    """The newest prices of both sides of every kind that both have, since only those can be compared."""
    a, b = latest(first), latest(second)
    return [(a[kind], b[kind]) for kind in KINDS if kind in a and kind in b]
