# SPDX-License-Identifier: Apache-2.0
"""What a run draws, and what that emits: kWh of accelerators, hosts and site, and kg of CO2 equivalent by region.

    E = accelerators * (idle + load * (full - idle)) * hours, times 1 + host share, times the site's overhead

Power of Trainium is not published: every figure has a band, and the result's is what all low and all high ends make.
Intensities are those of the grid where a region lies, averaged over a year; contracts for clean power are left out.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from trnlab.chips.sources import assumed
from trnlab.chips.spec import Figure
from trnlab.errors import UsageError, did_you_mean
from trnlab.fleet.gpus import catalogue
from trnlab.fleet.ranges import PublishedRange

REGION = "us-east-1"
GRID = "cloud-carbon-footprint at b7a049c7 (March 2024), kg CO2e per kWh of the grid, average of a year"

WATTS: Mapping[str, Figure] = {  # of a chip at work
    "trn1": assumed(200, "W", "not published; 150 to 300 are plausible"),
    "inf2": assumed(200, "W", "not published; as Trainium1"),
    "trn2": assumed(500, "W", "SemiAnalysis, December 2024 (press)"),
    "trn3": assumed(1000, "W", "not published; analysts' material, weak"),
}
HOST = assumed(
    0.25, "ratio", "processors, cards and fans of an instance, of what its chips draw: 0.15 to 0.25, a DGX's 0.8"
)
PUE = assumed(1.15, "ratio", "of the site to its machines; AWS' figure for all regions, recalled")


@cache
def _power() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("power.toml").read_text("utf-8"))


@cache
def _regions() -> dict[str, dict[str, str]]:
    with files(__package__).joinpath("regions.csv").open(encoding="utf-8") as file:
        return {row["region"]: row for row in csv.DictReader(file)}


def watts(name: str) -> PublishedRange:
    """Watts of one accelerator at full load, by the name of its chip. Raises UsageError (TRN158) for one of which
    nothing is known."""
    if name in WATTS:
        low, high = _power()["chips"][name]
        figure = WATTS[name]
        return PublishedRange(figure.value, low, high, figure.confidence.value, figure.source)
    known = catalogue.accelerators()
    if name not in known:
        raise UsageError(
            f"nothing is known of the power of {name!r}",
            code="TRN158",
            limit=", ".join([*WATTS, *known]),
            got=name,
            remedy="give one of these",
        )
    return known[name].watts


def share(name: str) -> PublishedRange:
    """`idle`, `busy`, `host` or `site`."""
    found = _power()["shares"][name]
    figure = {"host": HOST, "site": PUE}.get(name)
    if figure is None:
        return PublishedRange(found["value"], found["low"], found["high"], found["tag"], found["source"])
    return PublishedRange(figure.value, found["low"], found["high"], figure.confidence.value, figure.source)


@dataclass(frozen=True)
class Intensity:
    """Carbon intensity of a region's grid."""

    region: str
    place: str
    kg_per_kwh: float
    source: str


def regions() -> list[Intensity]:
    """All that are known, cleanest first."""
    return sorted((intensity(name) for name in _regions()), key=lambda i: (i.kg_per_kwh, i.region))


def intensity(region: str) -> Intensity:
    """Carbon intensity of a region. Raises UsageError (TRN159)."""
    known = _regions()
    if region not in known:
        raise UsageError(
            f"no grid is known of {region!r}",
            code="TRN159",
            limit=", ".join(known),
            got=region,
            remedy=did_you_mean(region, known, "choose one of these regions"),
        )
    row = known[region]
    return Intensity(region, row["place"], float(row["kg_per_kwh"]), f"{row['source']}; {GRID}")


@dataclass(frozen=True)
class Energy:
    """kWh of a run: of accelerators, of hosts and network cards, and of the site beyond both; all with bands."""

    accelerators: PublishedRange
    hosts: PublishedRange
    site: PublishedRange
    basis: tuple[str, ...]

    @property
    def total(self) -> PublishedRange:
        """kWh."""
        return self.accelerators.plus(self.hosts).plus(self.site)

    def kg(self, region: str = REGION) -> PublishedRange:
        """Kilograms of CO2 equivalent, on a region's grid. Raises UsageError (TRN159)."""
        return self.total.times(intensity(region).kg_per_kwh)


def energy(name: str, accelerators: int, hours: float, working: float = 1.0) -> Energy:
    """Energy of so many accelerators for so many hours. working: the share of the time in which steps are made, 0
    to 1; they idle in the rest, while the job is restarted, for example."""
    full, idle, busy, host, over = watts(name), *(share(n) for n in ("idle", "busy", "host", "site"))
    about, least, most = (working * max(b, i) + (1 - working) * i for b, i in zip(_ends(busy), _ends(idle)))
    level = PublishedRange(about, least, most)
    drawn = full.times(level).times(accelerators * hours / 1000.0)
    hosts = drawn.times(host)
    beyond = drawn.plus(hosts).times(PublishedRange(over.value - 1, over.low - 1, over.high - 1))
    basis = tuple(
        f"{what} {_range(s)}: {s.tag}, {s.source}"
        for what, s in (
            (f"{name} at full load, W", full),
            ("idle, of full load", idle),
            ("in a step, of full load", busy),
            ("hosts, of accelerators", host),
            ("site, of its machines", over),
        )
    )
    return Energy(drawn, hosts, beyond, basis)


def _ends(span: PublishedRange) -> tuple[float, float, float]:
    return span.value, span.low, span.high


def _range(span: PublishedRange) -> str:
    if span.low == span.high:
        return f"{span.value:g}"
    return f"{span.value:g} ({span.low:g} to {span.high:g})"


def full_load(name: str) -> PublishedRange:
    """Watts of the site for one accelerator at full load, with its part of host and site."""
    over = share("site")
    host = share("host")
    return watts(name).times(PublishedRange(1 + host.value, 1 + host.low, 1 + host.high)).times(over)


def within(limit: float, name: str) -> tuple[int, int, int]:
    """How many accelerators so many watts are enough for: about, and at the high and low ends of their power."""
    each = full_load(name)
    return int(limit / each.value), int(limit / each.high), int(limit / each.low)
