# SPDX-License-Identifier: Apache-2.0
"""Claims of the vendor beside what comes out here: with their date, what they compared, and the prices of that date.

A claim of cost is one of prices, and those of the other side have fallen since: what it says is not what it would say
today. So both are shown: what comes out here at the newest prices, and at those that held when it was made.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trnlab.chips.prices import Price, history


@dataclass(frozen=True)
class Claim:
    """What somebody claims of prices or performance."""

    statement: str
    by: str
    date: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    # low, high: the share by which one of `ours` is said to cost less than one of `theirs`
    low: float
    high: float
    measure: str
    tag: str

    def __str__(self) -> str:
        compared = f", compared with {', '.join(self.theirs)}" if self.theirs else ", compared with: not said"
        return f'"{self.statement}" ({self.by}, {self.date}{compared}; {self.tag})'


@cache
def claims() -> tuple[Claim, ...]:
    """All that are known."""
    data = tomllib.loads(files(__package__).joinpath("claims.toml").read_text("utf-8"))
    return tuple(
        Claim(
            c["says"],
            c["by"],
            c["date"],
            tuple(c["ours"]),
            tuple(c["theirs"]),
            c["low"],
            c["high"],
            c["measure"],
            c["tag"],
        )
        for c in data["claim"]
    )


def about(instance: str) -> list[Claim]:
    """Claims about an instance type of Neuron."""
    return [claim for claim in claims() if instance in claim.ours]


def price_near(instance: str, date: str, kind: str) -> Price | None:
    """The price of a kind that is known from nearest the date; None without any."""
    mine = [p for p in history(instance) if p.kind == kind]
    return min(mine, key=lambda p: (abs(_months(p.date) - _months(date)), p.date), default=None)


def _months(date: str) -> int:
    year, _, month = date.partition("-")
    return int(year) * 12 + int(month or 6)


@dataclass(frozen=True)
class ClaimComparison:
    """A claim and what comes out here. saved: the share that the same work costs less, with prices of now and of the
    claim's date, None without a price; comparable: whether the claim is about the other side at all."""

    claim: Claim
    comparable: bool
    now: tuple[Price, Price, float] | None
    at_claim_date: tuple[Price, Price, float] | None


def compare(ours: str, theirs: str, kind: str, ours_hours: float, theirs_hours: float) -> list[ClaimComparison]:
    """Claims about an instance, beside the cost of the same work: so many hours of instances on both sides."""
    found = []
    for claim in about(ours):
        now = _saved(price_near(ours, "9999", kind), price_near(theirs, "9999", kind), ours_hours, theirs_hours)
        past = _saved(
            price_near(ours, claim.date, kind), price_near(theirs, claim.date, kind), ours_hours, theirs_hours
        )
        found.append(ClaimComparison(claim, theirs in claim.theirs, now, past))
    return found


def _saved(
    ours: Price | None, theirs: Price | None, ours_hours: float, theirs_hours: float
) -> tuple[Price, Price, float] | None:
    if ours is None or theirs is None:
        return None
    return ours, theirs, 1 - ours.usd(ours_hours) / theirs.usd(theirs_hours)
