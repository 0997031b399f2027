# SPDX-License-Identifier: Apache-2.0
"""What stands beside a plan: energy and carbon, compiling, claims of the vendor, and the same tokens on other
vendors' accelerators, by what was published of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trnlab.chips.prices import KINDS, alike, latest
from trnlab.errors import UsageError
from trnlab.fleet.bills import energy
from trnlab.fleet.bills.claims import about
from trnlab.fleet.bills.compilation import Recompiles, recompiles
from trnlab.fleet.comparison.contenders import UNHELD, Contender, PlanAccuracy, gpu_contender, off_by, work_of
from trnlab.fleet.gpus import catalogue
from trnlab.fleet.planning.plan import Candidate, Plan, Question
from trnlab.fleet.ranges import PublishedRange
from trnlab.units import DAYS_PER_WEEK, HOURS_PER_DAY, SECONDS_PER_DAY

STATE = 14.0  # bytes of a parameter in a checkpoint: weights in bf16, master, mean and square in fp32
ENERGY, POWER, MASS = (("kWh", "MWh", "GWh"), ("kW", "MW", "GW"), ("kg", "t", "kt"))  # by thousands
NEAR, FAR = 3, 2  # regions that are shown, of the cleanest and of the others


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


def report(plan: Plan, others: Sequence[Alternative], region: str, held: PlanAccuracy = UNHELD) -> str:
    """All sections, each with a line between. held: how plans stand beside published runs."""
    sections: list[Callable[[], Iterator[str]]] = [
        lambda: _drawn(plan, region),
        lambda: _compiled(plan),
        lambda: _claimed(plan),
        lambda: table(others, plan, held),
        lambda: _band(held),
    ]
    return "\n\n".join(text for text in ("\n".join(section()) for section in sections) if text)


def _band(held: PlanAccuracy) -> Iterator[str]:
    """How far off the plan's rate may be, as far as anything is known."""
    band = off_by(held)
    yield f"band: the rate is {band.low:.2f} to {band.high:.2f} times the plan's, if it is as far off as others were:"
    behind = ", planned as this one is, and reached with the vendor's compiler of their release"
    yield f"  {held}{behind if held.errors else ''}"


def of_plan(c: Candidate) -> energy.Energy:
    """The whole run of a candidate; in what failures take its chips idle."""
    return energy.energy(c.cluster.target.chip.name, c.cluster.chips, c.bill.days * 24.0, c.goodput)


def _drawn(plan: Plan, region: str) -> Iterator[str]:
    drawn = of_plan(plan.chosen)
    yield f"energy: {_amount(drawn.total, ENERGY)}, of which accelerators {_amount(drawn.accelerators, ENERGY)}"
    yield f"  {_load(plan)}"
    known = energy.regions()
    shown = {i.region: i for i in (*known[:NEAR], *known[-FAR:], energy.intensity(region))}
    for place in sorted(shown.values(), key=lambda i: i.kg_per_kwh):
        yield f"  {place.region:<16}{place.place:<14}{_amount(drawn.kg(place.region), MASS)} of CO2e"
    yield from (f"  {line}" for line in drawn.basis)
    yield f"  {energy.intensity(region).source}"


def _load(plan: Plan) -> str:
    c = plan.chosen
    load = energy.full_load(c.cluster.target.chip.name).times(c.cluster.chips / 1e3)
    return f"at full load {_amount(load, POWER)}, with hosts and site"


def compiling(plan: Plan) -> Recompiles:
    """What compiling takes in the days of the chosen run."""
    c = plan.chosen
    price, between = c.cluster.target.price, plan.question.reliability.between(c.cluster.chips)
    return recompiles(plan.question.model.parameters, c.bill.days, c.cluster.instances, between, price)


def _compiled(plan: Plan) -> Iterator[str]:
    made, c = compiling(plan), plan.chosen
    minutes, hours, saved, yearly = made.minutes, made.saved_hours, made.saved_usd, made.repeated()
    yield f"compiling: {minutes.low:g} to {minutes.high:g} minutes a time ({minutes.tag}: {minutes.source})"
    when = f"at the start, at {made.with_cache - 1:g} changes of the step, after each restart"
    yield f"  {made.without:.1f} times without a cache: {when}; {made.with_cache:g} times with one"
    line = f"  this {c.bill.days:.3g}-day run saves {hours.low:,.2g} to {hours.high:,.2g} instance hours by its cache"
    if saved is not None:
        line += f", ${saved.low:,.0f} to ${saved.high:,.0f}"
    if yearly is not None and c.bill.days <= DAYS_PER_WEEK:
        line += f"; repeated weekly, ${yearly.low:,.0f} to ${yearly.high:,.0f} a year"
    yield line


def _claimed(plan: Plan) -> Iterator[str]:
    found = about(plan.chosen.cluster.target.name)
    if found:
        yield "claims of the vendor, which nothing here leans on:"
        yield from (f"  {claim}" for claim in found)


def table(others: Sequence[Alternative], plan: Plan | None = None, held: PlanAccuracy = UNHELD) -> Iterator[str]:
    """The same tokens elsewhere, a row each, and what it leans on."""
    if not others:
        return
    yield "the same tokens on other accelerators, by what was published of them (a band alone where nothing was):"
    yield f"  {'':<24}{'days':<24}{'price':<18}{'$ of the run':<30}energy"
    for other in others:
        label = other.contender.name
        middle = f"{other.days.value:.3g} ({other.days.low:.3g} to {other.days.high:.3g})"
        days = middle if other.contender.known else f"{other.days.low:.3g} to {other.days.high:.3g}"
        drawn = other.energy.total
        for kind, usd in (
            [(k, other.usd(k)) for k in KINDS] if latest(other.contender.instance) else [("none known", None)]
        ):
            if usd is None and kind in KINDS:
                continue
            paid = "-" if usd is None else _usd(usd, other.contender.known)
            power = _amount(drawn, ENERGY) if label else ""
            yield f"  {label:<24}{days:<24}{kind:<18}{paid:<30}{power}".rstrip()
            label = days = ""
    yield from _ratios(others, plan, held)
    for other in others:
        yield from (f"  {other.contender.name}: {line}" for line in other.contender.basis)


def _ratios(others: Sequence[Alternative], plan: Plan | None, held: PlanAccuracy) -> Iterator[str]:
    """Dollars of the plan over those of each other, for kinds of price that both have, with the bands of both."""
    if plan is None:
        return
    c = plan.chosen
    hours, band = c.bill.device_hours / c.cluster.target.chips, off_by(held)
    yield f"  the plan's rate has a band, too: {held}"
    for other in others:
        pairs = alike(c.cluster.target.name, other.contender.instance)
        if not pairs:
            yield f"  no kind of price is known of both {c.cluster.target.name} and {other.contender.instance}"
        for mine, theirs in pairs:
            usd = other.usd(theirs.kind)
            assert usd is not None
            paid = mine.usd(hours)
            low, high = paid / band.high / usd.high, paid / band.low / usd.low
            ends = f"{low:.2f} to {high:.2f}" + (" (undecided)" if low < 1 < high else "")
            ratio = f"{paid / usd.value:.2f}, {ends}" if other.contender.known else ends
            yield f"  {mine.kind} ({mine.date}; {theirs.date}): the plan costs {ratio} of {other.contender.name}"


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


def _usd(span: PublishedRange, known: bool) -> str:
    ends = f"{span.low:,.0f} to {span.high:,.0f}"
    return f"{span.value:,.0f} ({ends})" if known else ends


def _amount(span: PublishedRange, units: Sequence[str]) -> str:
    """With the unit that keeps it short."""
    size = _size(span.value, units)
    value, low, high = (x / 1000.0**size for x in (span.value, span.low, span.high))
    return f"{_short(value)} {units[size]} ({_short(low)} to {_short(high)})"


def scaled(value: float, units: Sequence[str]) -> str:
    """A figure with the unit that keeps it short."""
    size = _size(value, units)
    return f"{_short(value / 1000.0**size)} {units[size]}"


def _size(value: float, units: Sequence[str]) -> int:
    size = 0
    while size + 1 < len(units) and value >= 1000.0 ** (size + 1):
        size += 1
    return size


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
