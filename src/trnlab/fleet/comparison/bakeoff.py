# SPDX-License-Identifier: Apache-2.0
"""Two sides of the same training: time, dollars by kind of price, energy, exchange, with bands; claims.

Dollars are compared by kind of price, and only where both sides have one of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnlab.chips.prices import Price, alike, chosen, latest
from trnlab.fleet.bills import energy
from trnlab.fleet.bills.claims import ClaimComparison, compare
from trnlab.fleet.bills.compilation import PortingPayback, Recompiles, recompiles
from trnlab.fleet.comparison.contenders import Contender, RunToMeasure, Workload
from trnlab.fleet.comparison.deciding import as_json, undecided
from trnlab.fleet.ranges import PublishedRange
from trnlab.stacks import OWN, Stack
from trnlab.units import HOURS_PER_DAY, SECONDS_PER_DAY

SCHEMA, VERSION = "trnlab-bakeoff", 1
MILLION = 1e6


@dataclass(frozen=True)
class Bakeoff:
    """a and b do the same work."""

    work: Workload
    a: Contender
    b: Contender
    days: float  # of each run
    epoch: float = 0.0  # units of one pass over the data, 0 without
    region: str = energy.REGION
    between: float = 0.0  # seconds from one restart of a's job to the next
    port: tuple[float, float] | None = None  # engineer days of moving to a, and dollars of one
    stack: Stack = OWN  # whose compiler made the programs of Neuron

    @property
    def contenders(self) -> tuple[Contender, Contender]:
        """Both."""
        return self.a, self.b

    @property
    def known(self) -> bool:
        """Whether both sides have more than a band."""
        return self.a.known and self.b.known

    def units(self, contender: Contender) -> PublishedRange:
        """That a side does in the days."""
        return contender.rate.times(self.days * SECONDS_PER_DAY)

    def usd(self, contender: Contender, price: Price, units: float) -> PublishedRange:
        """Dollars of so many units."""
        return contender.hours(units).times(price.usd(1.0))

    def energy(self, contender: Contender) -> energy.Energy:
        """Energy of the days."""
        return energy.energy(contender.accelerator, contender.accelerators, self.days * HOURS_PER_DAY)

    def kwh(self, contender: Contender, units: float) -> PublishedRange:
        """Kilowatt-hours of so many units."""
        total, done = self.energy(contender).total, self.units(contender)
        return PublishedRange(
            total.value * units / done.value, total.low * units / done.high, total.high * units / done.low
        )

    def ratios(self) -> list[tuple[str, Price, Price, PublishedRange]]:
        """For each kind of price that both have: what a's work costs of b's. The ends are those of both bands."""
        found = []
        for first, second in alike(self.a.instance, self.b.instance):
            mine, theirs = self.usd(self.a, first, MILLION), self.usd(self.b, second, MILLION)
            span = PublishedRange(mine.value / theirs.value, mine.low / theirs.high, mine.high / theirs.low)
            found.append((first.kind, first, second, span))
        return found

    def would_decide(self) -> list[RunToMeasure]:
        """Runs that would narrow the bands of a verdict that these leave open; none where all is decided."""
        if not any(undecided(span) for *_, span in self.ratios()):
            return []
        return [side.measure for side in self.contenders if side.measure is not None]

    def claims(self) -> list[ClaimComparison]:
        """Claims of the vendor about a, beside what comes out here at the kind of price that both have."""
        kinds = [kind for kind, *_ in self.ratios()]
        hours = self.a.hours(MILLION).value, self.b.hours(MILLION).value
        return compare(self.a.instance, self.b.instance, kinds[0] if kinds else "on-demand", *hours)

    def porting(self) -> tuple[str, PortingPayback, PortingPayback] | None:
        """By the first kind of price that both have: what a saves in a run, for the work that it does in the days, at
        the low and the high end of the bands; None without such a price or without a port."""
        if self.port is None or not self.ratios():
            return None
        kind, first, second, _ = self.ratios()[0]
        units = self.units(self.a).value
        mine, theirs = self.usd(self.a, first, units), self.usd(self.b, second, units)
        days, rate = self.port
        return (
            kind,
            PortingPayback(days, rate, theirs.low - mine.high),
            PortingPayback(days, rate, theirs.high - mine.low),
        )

    def compiling(self) -> Recompiles:
        """What compiling takes in the days of a's run."""
        price = chosen(self.a.instance)
        return recompiles(self.work.parameters, self.days, self.a.instances, self.between, price)


def to_json(found: Bakeoff) -> dict[str, Any]:
    """Everything, see docs/bakeoff.md. A value is null where only its band is known."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "days": found.days,
        "region": found.region,
        "stack": found.stack.text,
        "work": {
            "name": found.work.name,
            "class": found.work.kind,
            "unit": found.work.unit,
            "flops_per_unit": found.work.flops,
            "parameters": found.work.parameters,
            "batch": found.work.batch,
        },
        "sides": [_side(found, side) for side in found.contenders],
        "ratios": [
            {
                "kind": kind,
                "of_a": _price(one),
                "of_b": _price(other),
                "cost_of_a_in_b": _span(span, found.known),
                "undecided": undecided(span),
            }
            for kind, one, other, span in found.ratios()
        ],
        "would_decide": [as_json(run) for run in found.would_decide()],
        "claims": [_claim(b) for b in found.claims()],
        "compilation": _compiling(found.compiling()),
        "porting": _porting(found),
    }


def _side(found: Bakeoff, contender: Contender) -> dict[str, Any]:
    step, drawn = contender.step(found.work), found.energy(contender)
    return {
        "name": contender.name,
        "accelerator": contender.accelerator,
        "accelerators": contender.accelerators,
        "layout": contender.how,
        "per_s": _span(contender.rate, contender.known),
        "mfu": _span(contender.mfu, contender.known),
        "step_s": _span(step, contender.known) if step is not None else None,
        "exchange_share": contender.exchange,
        "units": _span(found.units(contender), contender.known),
        "kwh": drawn.total.as_json(),
        "kg_co2e": drawn.kg(found.region).as_json(),
        "kwh_per_million": _span(found.kwh(contender, MILLION), contender.known),
        "usd": [
            {
                **_price(price),
                "of_run": price.usd(contender.instances * found.days * HOURS_PER_DAY),
                "per_million": _span(found.usd(contender, price, MILLION), contender.known),
                "per_epoch": _span(found.usd(contender, price, found.epoch), contender.known)
                if found.epoch
                else None,
            }
            for price in latest(contender.instance).values()
        ],
        "basis": [*contender.basis, *drawn.basis],
    }


def _span(span: PublishedRange, known: bool) -> dict[str, float | None]:
    return {"value": span.value if known else None, "low": span.low, "high": span.high}


def _price(price: Price) -> dict[str, Any]:
    return {
        "kind": price.kind,
        "usd_per_hour": price.usd_per_hour,
        "date": price.date,
        "tag": price.tag,
        "source": price.source,
    }


def _claim(b: ClaimComparison) -> dict[str, Any]:
    saved = {
        name: {"of_a": _price(found[0]), "of_b": _price(found[1]), "saved": found[2]} if found is not None else None
        for name, found in (("now", b.now), ("then", b.at_claim_date))
    }
    return {
        "says": b.claim.statement,
        "by": b.claim.by,
        "date": b.claim.date,
        "compared": list(b.claim.theirs),
        "about_this_pair": b.comparable,
        "low": b.claim.low,
        "high": b.claim.high,
        "measure": b.claim.measure,
        "tag": b.claim.tag,
        **saved,
    }


def _porting(found: Bakeoff) -> dict[str, Any] | None:
    port = found.porting()
    if port is None:
        return None
    kind, least, most = port
    return {
        "kind": kind,
        "engineer_days": least.engineer_days,
        "usd_per_day": least.usd_per_day,
        "saved_per_run": {"low": least.saved_per_run, "high": most.saved_per_run},
        "runs_until_repaid": {"least": most.runs, "most": least.runs},
    }


def _compiling(found: Recompiles) -> dict[str, Any]:
    saved, yearly = found.saved_usd, found.repeated()
    return {
        "minutes": found.minutes.as_json(),
        "source": found.minutes.source,
        "tag": found.minutes.tag,
        "times_without_cache": found.without,
        "times_with_cache": found.with_cache,
        "instance_hours_saved": found.saved_hours.as_json(),
        "usd_saved": saved.as_json() if saved else None,
        "usd_saved_in_52_runs": yearly.as_json() if yearly else None,
    }
