# SPDX-License-Identifier: Apache-2.0
"""What stands beside a plan: energy and carbon, compiling, claims of the vendor, and the same tokens on other
vendors' accelerators, by what was published of them. `fleet.report.beside_document` says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnlab.chips.prices import latest
from trnlab.errors import UsageError
from trnlab.fleet.bills import energy
from trnlab.fleet.bills.claims import about
from trnlab.fleet.bills.compilation import Recompiles, recompiles
from trnlab.fleet.comparison.contenders import Contender, gpu_contender, work_of
from trnlab.fleet.gpus import catalogue
from trnlab.fleet.planning.plan import Candidate, Plan
from trnlab.fleet.planning.question import Question
from trnlab.fleet.ranges import PublishedRange
from trnlab.units import HOURS_PER_DAY, SECONDS_PER_DAY

STATE = 14.0  # bytes of a parameter in a checkpoint: weights in bf16, master, mean and square in fp32


@dataclass(frozen=True)
class Alternative:
    """A side that trains on the tokens of a question. days: with failures, at the goodput of that many devices."""

    contender: Contender
    days: PublishedRange
    tokens: float
    goodput: float

    def usd(self, kind: str) -> PublishedRange | None:
        """Dollars of the whole run by a kind of price; None without one."""
        price = latest(self.contender.instance).get(kind)
        return None if price is None else self.days.times(price.usd(HOURS_PER_DAY * self.contender.instances))

    @property
    def energy(self) -> energy.Energy:
        """Energy of the whole run, of about as many days as it takes."""
        return energy.energy(
            self.contender.accelerator, self.contender.accelerators, self.days.value * 24.0, self.goodput
        )


def others(question: Question, names: Sequence[str], days: float | None = None) -> list[Alternative]:
    """The fewest instances of each instance type that are as fast as `days` (or the deadline), or else the most, of
    the numbers that were asked for. Raises UsageError (TRN156) for an unknown type, TRN157 where none fits."""
    wanted = days if days is not None else (question.deadline or float("inf")) / SECONDS_PER_DAY
    return [_other(question, name, wanted) for name in names]


def hold(plan: Plan, limit: float) -> None:
    """Take what draws more than so many watts out of a plan; counted with its reason.

    Raises UsageError (TRN178) where nothing is left.
    """
    kept = [t for t in plan.tables if t.cluster.chips <= energy.within(limit, t.cluster.target.chip.name)[0]]
    taken = [t for t in plan.tables if t not in kept]
    if plan.tables and not kept:
        least = min(plan.tables, key=lambda t: t.cluster.chips).cluster
        need = energy.full_load(least.target.chip.name).value * least.chips
        raise UsageError(
            "every cluster that fits draws more than the site has",
            code="TRN178",
            limit=f"{limit / 1e6:.4g} MW",
            got=f"{need / 1e6:.4g} MW for {least.name}",
            remedy="ask for fewer --instances, or for more --power",
        )
    plan.tables[:] = kept
    plan.refused["draws more than --power"] += sum(len(t.days) for t in taken)


def _other(question: Question, name: str, wanted: float) -> Alternative:
    instance = catalogue.instance(name)
    work = work_of(question.model, question.batch, question.training.sequence)
    found, refused = None, None
    for instances in _numbers(*question.instances):
        try:
            side = gpu_contender(work, name, instances)
        except UsageError as error:
            if error.code != "TRN157":
                raise
            refused = error
            continue
        count, scale = instance.count * instances, 1 if work.unit == "tokens" else work.sequence
        share = question.reliability.goodput(
            count, STATE * question.model.parameters, instance.count, instance.scaleout
        ).share
        seconds = question.tokens / scale / share
        rate = side.rate
        about_, least, most = (seconds / r / SECONDS_PER_DAY for r in (rate.value, rate.high, rate.low))
        spent = PublishedRange(about_, least, most)
        found = Alternative(side, spent, question.tokens, share)
        if spent.value <= wanted:
            break
    if found is None:
        assert refused is not None
        raise refused
    return found


def _numbers(low: int, high: int) -> list[int]:
    return sorted({*(low << k for k in range((high // low).bit_length())), high} & set(range(low, high + 1)))


def of_plan(c: Candidate) -> energy.Energy:
    """The whole run of a candidate; in what failures take its chips idle."""
    return energy.energy(c.cluster.target.chip.name, c.cluster.chips, c.bill.days * 24.0, c.goodput)


def compiling(plan: Plan) -> Recompiles:
    """What compiling takes in the days of the chosen run."""
    c = plan.chosen
    price, between = c.cluster.target.price, plan.question.reliability.between(c.cluster.chips)
    return recompiles(plan.question.model.parameters, c.bill.days, c.cluster.instances, between, price)


def to_json(plan: Plan | None, others: Sequence[Alternative], region: str) -> dict[str, Any]:
    """Fields that stand beside those of a plan, see docs/plan.md."""
    found: dict[str, Any] = {"others": [_json(other, region) for other in others]}
    if plan is not None:
        drawn, made = of_plan(plan.chosen), compiling(plan)
        found |= {
            "energy": {
                "kwh": drawn.total.as_json(),
                "basis": list(drawn.basis),
                "kg_co2e": {i.region: drawn.kg(i.region).as_json() for i in energy.regions()},
            },
            "compilation": {
                "minutes": made.minutes.as_json(),
                "times_without_cache": made.without,
                "times_with_cache": made.with_cache,
                "instance_hours_saved": made.saved_hours.as_json(),
                "usd_saved": made.saved_usd.as_json() if made.saved_usd is not None else None,
            },
            "claims": [str(claim) for claim in about(plan.chosen.cluster.target.name)],
        }
    return found


def _json(other: Alternative, region: str) -> dict[str, Any]:
    known = other.contender.known
    prices = {kind: (price, other.usd(kind)) for kind, price in latest(other.contender.instance).items()}
    return {
        "cluster": other.contender.name,
        "accelerator": other.contender.accelerator,
        "accelerators": other.contender.accelerators,
        "layout": other.contender.how,
        "published": known,
        "days": _span(other.days, known),
        "goodput": other.goodput,
        "mfu": _span(other.contender.mfu, known),
        "kwh": other.energy.total.as_json(),
        "kg_co2e": other.energy.kg(region).as_json(),
        "usd": {
            kind: {**_span(usd, known), "usd_per_hour": price.usd_per_hour, "date": price.date, "tag": price.tag}
            for kind, (price, usd) in prices.items()
            if usd is not None
        },
        "basis": list(other.contender.basis),
    }


def _span(span: PublishedRange, known: bool) -> dict[str, float | None]:
    return {"value": span.value if known else None, "low": span.low, "high": span.high}
