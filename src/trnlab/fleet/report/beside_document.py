# SPDX-License-Identifier: Apache-2.0
"""What stands beside a plan, as sections: energy and carbon, compiling, claims of the vendor, and the same tokens on
other vendors' accelerators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trnlab.chips.prices import KINDS, alike, latest
from trnlab.documents import Document, Note, Section, Table
from trnlab.documents.html import sentence
from trnlab.fleet.bills import energy
from trnlab.fleet.bills.claims import about
from trnlab.fleet.comparison.alternatives import Alternative, compiling, of_plan, to_json
from trnlab.fleet.comparison.contenders import UNHELD, PlanAccuracy, off_by
from trnlab.fleet.comparison.deciding import KEPT, OPEN, days_of, deadline, words
from trnlab.fleet.comparison.deciding import of_plan as of_run
from trnlab.fleet.planning.plan import Plan
from trnlab.fleet.ranges import PublishedRange
from trnlab.units import DAYS_PER_WEEK

ENERGY, POWER, MASS = (("kWh", "MWh", "GWh"), ("kW", "MW", "GW"), ("kg", "t", "kt"))  # by thousands
NEAR, FAR = 3, 2  # regions that are shown, of the cleanest and of the others
_deadline = {
    KEPT: "the deadline is kept at both ends of the band",
    OPEN: "the deadline is kept at one end of the band and missed at the other: undecided",
}
_OTHERS = "the same tokens on other accelerators, by what was published of them (a band alone where nothing was):"


def beside_document(beside: Sequence[Alternative], region: str) -> Document:
    """The same tokens on other accelerators, where no plan stands beside them."""
    return Document("The same tokens", list(others(beside)), record=lambda: to_json(None, beside, region))


def sections(
    plan: Plan, beside: Sequence[Alternative], region: str, held: PlanAccuracy = UNHELD
) -> Iterator[Section]:
    """All of them. held: how plans stand beside published runs."""
    yield _energy(plan, region)
    yield _compiling(plan)
    yield from claims(plan.chosen.cluster.target.name)
    yield from others(beside, plan, held)
    yield _band(plan, held)


def _energy(plan: Plan, region: str) -> Section:
    """The energy of the chosen run, what it emits in some regions, and what both lean on."""
    c = plan.chosen
    drawn, load = of_plan(c), energy.full_load(c.cluster.target.chip.name).times(c.cluster.chips / 1e3)
    title = f"energy: {_amount(drawn.total, ENERGY)}, of which accelerators {_amount(drawn.accelerators, ENERGY)}"
    known = energy.regions()
    shown = {i.region: i for i in (*known[:NEAR], *known[-FAR:], energy.intensity(region))}
    rows = [
        (i.region, i.place, f"{_amount(drawn.kg(i.region), MASS)} of CO2e")
        for i in sorted(shown.values(), key=lambda i: i.kg_per_kwh)
    ]
    basis = [*drawn.basis, energy.intensity(region).source]
    parts = [Note(f"at full load {_amount(load, POWER)}, with hosts and site"), Table(rows), *map(Note, basis)]
    return Section(title, parts, heading="Energy and carbon", say=sentence(title))


def _compiling(plan: Plan) -> Section:
    """What compiling takes in the days of the chosen run, and what a cache saves of it."""
    made, c = compiling(plan), plan.chosen
    minutes, hours, saved, yearly = made.minutes, made.saved_hours, made.saved_usd, made.repeated()
    title = f"compiling: {minutes.low:g} to {minutes.high:g} minutes a time ({minutes.tag}: {minutes.source})"
    when = f"at the start, at {made.with_cache - 1:g} changes of the step, after each restart"
    times = f"{made.without:.1f} times without a cache: {when}; {made.with_cache:g} times with one"
    line = f"this {c.bill.days:.3g}-day run saves {hours.low:,.2g} to {hours.high:,.2g} instance hours by its cache"
    if saved is not None:
        line += f", ${saved.low:,.0f} to ${saved.high:,.0f}"
    if yearly is not None and c.bill.days <= DAYS_PER_WEEK:
        line += f"; repeated weekly, ${yearly.low:,.0f} to ${yearly.high:,.0f} a year"
    return Section(title, [Note(times), Note(line)], heading="Compiling", say=sentence(title))


def claims(instance: str) -> Iterator[Section]:
    """What the vendor claims of an instance type; nothing where that is nothing."""
    found = about(instance)
    if found:
        yield Section("claims of the vendor, which nothing here leans on:", [Note(str(claim)) for claim in found])


def others(beside: Sequence[Alternative], plan: Plan | None = None, held: PlanAccuracy = UNHELD) -> Iterator[Section]:
    """The same tokens elsewhere, a row each, and what it leans on; nothing where nobody asked."""
    if not beside:
        return
    head = ("", "days", "price", "$ of the run", "energy")
    rows = [row for other in beside for row in _rows(other)]
    basis = [(f"{other.contender.name}:", line) for other in beside for line in other.contender.basis]
    ratios = map(Note, _ratios(beside, plan, held))
    yield Section(
        _OTHERS, [Table(rows, head), *ratios, Table(basis)], heading="On other accelerators", say=sentence(_OTHERS)
    )


def _rows(other: Alternative) -> Iterator[tuple[str, ...]]:
    """One for each kind of price, the first with what is of all of them."""
    ends = f"{other.days.low:.3g} to {other.days.high:.3g}"
    days = f"{other.days.value:.3g} ({ends})" if other.contender.known else ends
    first = (other.contender.name, days), _amount(other.energy.total, ENERGY)
    paid = [(kind, usd) for kind in KINDS if (usd := other.usd(kind)) is not None]
    if not latest(other.contender.instance):
        yield *first[0], "none known", "-", first[1]
    for kind, usd in paid:
        yield *first[0], kind, _usd(usd, other.contender.known), first[1]
        first = ("", ""), ""


def _ratios(beside: Sequence[Alternative], plan: Plan | None, held: PlanAccuracy) -> Iterator[str]:
    """Dollars of the plan over those of each other, for kinds of price that both have, with the bands of both."""
    if plan is None:
        return
    c = plan.chosen
    hours, band = c.bill.device_hours / c.cluster.target.chips, off_by(held)
    yield f"the plan's rate has a band, too: {held}"
    for other in beside:
        pairs = alike(c.cluster.target.name, other.contender.instance)
        if not pairs:
            yield f"no kind of price is known of both {c.cluster.target.name} and {other.contender.instance}"
        for mine, theirs in pairs:
            usd = other.usd(theirs.kind)
            assert usd is not None
            paid = mine.usd(hours)
            low, high = paid / band.high / usd.high, paid / band.low / usd.low
            ends = f"{low:.2f} to {high:.2f}" + (" (undecided)" if low < 1 < high else "")
            ratio = f"{paid / usd.value:.2f}, {ends}" if other.contender.known else ends
            yield f"{mine.kind} ({mine.date}; {theirs.date}): the plan costs {ratio} of {other.contender.name}"


def _band(plan: Plan, held: PlanAccuracy) -> Section:
    """How far off the plan's rate may be, as far as anything is known."""
    band = off_by(held)
    times = f"{band.low:.2f} to {band.high:.2f} times"
    title = f"band: the rate is {times} the plan's, if it is as far off as others were:"
    behind = ", planned as this one is, and reached with the vendor's compiler of their release"
    notes = [f"{held}{behind if held.errors else ''}", _within(plan, held)]
    verdict = deadline(plan, held)
    if verdict is not None:
        notes.append(_deadline[verdict])
    run = of_run(plan)
    if verdict == OPEN and run is not None:
        notes += words(run)
    return Section(title, [Note(said) for said in notes], heading="How far off it may be", say=sentence(title))


def _within(plan: Plan, held: PlanAccuracy) -> str:
    """Days and dollars of the whole run at both ends."""
    days, usd, band = days_of(plan, held), plan.chosen.bill.usd, off_by(held)
    said = f"so the run takes {days.low:,.3g} to {days.high:,.3g} days"
    paid = f" and ${usd / band.high:,.0f} to ${usd / band.low:,.0f}" if usd is not None else ""
    return f"{said}{paid}, all instances together"


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
