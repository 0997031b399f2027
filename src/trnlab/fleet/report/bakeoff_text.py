# SPDX-License-Identifier: Apache-2.0
"""A bake-off as text: both sides in columns, then ratios, claims, compiling, and what all of it leans on."""

from __future__ import annotations

from collections.abc import Iterator

from trnlab.chips.prices import latest
from trnlab.fleet.bills import money
from trnlab.fleet.bills.claims import ClaimComparison
from trnlab.fleet.comparison.bakeoff import MILLION, Bakeoff
from trnlab.fleet.comparison.contenders import Contender
from trnlab.fleet.ranges import PublishedRange
from trnlab.units import DAYS_PER_WEEK

LABEL, COLUMN = 30, 38


def report(found: Bakeoff) -> str:
    """All of it."""
    parts = [_head(found), "\n".join(_table(found)), "\n".join(_verdict(found)), "\n".join(_claims(found))]
    parts += ["\n".join(_compiling(found)), "\n".join(_porting(found)), "\n".join(_basis(found))]
    return "\n\n".join(part for part in parts if part)


def _head(found: Bakeoff) -> str:
    work = found.work
    batch = f", {work.batch:,} {work.unit} a step" if work.batch else ""
    size = f"{work.parameters:,.0f} parameters"
    return f"{work.name} ({work.kind}, {size}{batch}), {work.optimizer}, {found.days:g} days"


def _table(found: Bakeoff) -> Iterator[str]:
    unit, a, b = found.work.unit, found.a, found.b
    yield _line("", a.name, b.name)
    yield _line("layout", a.how or "-", b.how or "-")
    steps = [side.step(found.work) for side in found.contenders]
    if steps[0] is not None and steps[1] is not None:
        yield _line("a step", *(_show(s, side, "s") for s, side in zip(steps, found.contenders) if s is not None))
    yield _line(f"{unit} a second", *(_show(s.rate, s) for s in found.contenders))
    yield _line("of the peak", *(_show(s.mfu.times(100), s, "%") for s in found.contenders))
    yield _line("waiting for the network", *(_share(s.exchange) for s in found.contenders))
    yield _line(f"{unit} in {found.days:g} days", *(_show(found.units(s), s) for s in found.contenders))
    if found.epoch:
        yield _line("epochs", *(_show(found.units(s).times(1 / found.epoch), s) for s in found.contenders))
    yield from _dollars(found)
    drawn = [found.energy(s).total for s in found.contenders]
    yield _line("kWh of the run", *(_span(d) for d in drawn))
    yield _line(f"kWh a million {unit}", *(_show(found.kwh(s, MILLION), s) for s in found.contenders))
    yield _line(f"kg CO2e in {found.region}", *(_span(found.energy(s).kg(found.region)) for s in found.contenders))


def _dollars(found: Bakeoff) -> Iterator[str]:
    known = [latest(side.instance) for side in found.contenders]
    for kind in dict.fromkeys(k for prices in known for k in prices):
        of_run: list[str] = []
        rate: list[str] = []
        epoch: list[str] = []
        for side, prices in zip(found.contenders, known):
            price = prices.get(kind)
            if price is None:
                of_run.append("no such price")
                rate.append("-")
                epoch.append("-")
                continue
            of_run.append(f"${price.usd(side.instances * found.days * 24):,.0f} ({price.date})")
            rate.append(_show(found.usd(side, price, MILLION), side, "$"))
            epoch.append(_show(found.usd(side, price, found.epoch), side, "$") if found.epoch else "")
        yield _line(f"{kind}: the run", *of_run)
        yield _line(f"  a million {found.work.unit}", *rate)
        if found.epoch:
            yield _line("  an epoch", *epoch)


def _verdict(found: Bakeoff) -> Iterator[str]:
    ratios = found.ratios()
    if not ratios:
        yield "no kind of price is known of both sides, so that their dollars cannot be compared"
    for kind, first, second, span in ratios:
        middle = (
            f"{span.value:.2f} ({span.low:.2f} to {span.high:.2f})"
            if found.known
            else (f"{span.low:.2f} to {span.high:.2f}")
        )
        open_ = " - the bands overlap: undecided" if span.low < 1 < span.high else ""
        yield f"{kind}: the same work on {found.a.name} costs {middle} of what it does on {found.b.name}{open_}"
        yield f"  {first}"
        yield f"  {second}"


def _claims(found: Bakeoff) -> Iterator[str]:
    for b in found.claims():
        yield f"claim: {b.claim}"
        yield f"  {_meaning(b, found)}"


def _meaning(b: ClaimComparison, found: Bakeoff) -> str:
    if not b.comparable:
        return f"it is not about {found.b.instance}; {b.claim.measure}"
    parts = []
    for when, saved in (("at today's prices", b.now), (f"at prices of {b.claim.date}", b.at_claim_date)):
        if saved is not None and found.b.known:
            parts.append(f"{saved[2]:+.0%} {when} (${saved[0].usd_per_hour:.2f} and ${saved[1].usd_per_hour:.2f})")
    if not parts:
        return "here: no figure, since one side has only a band or no price"
    return f"here, between the middles of both bands, saved: {'; '.join(parts)}; {b.claim.measure}"


def _compiling(found: Bakeoff) -> Iterator[str]:
    made = found.compiling()
    if found.a.accelerator not in ("trn1", "trn2", "trn3", "inf2"):
        return
    minutes, saved, yearly = made.minutes, made.saved_usd, made.repeated()
    yield f"compiling on {found.a.name}: {minutes.low:g} to {minutes.high:g} minutes a time"
    yield f"  {minutes.tag}: {minutes.source}"
    yield f"  {made.without:.1f} times in the run without a cache, {made.with_cache:.1f} with one"
    hours = made.saved_hours
    line = f"  the cache saves {hours.low:.2g} to {hours.high:.2g} instance hours"
    if saved is not None:
        line += f", ${saved.low:,.0f} to ${saved.high:,.0f}"
    if yearly is not None and found.days <= DAYS_PER_WEEK:
        line += f"; repeated weekly for a year ${yearly.low:,.0f} to ${yearly.high:,.0f}"
    yield line


def _porting(found: Bakeoff) -> Iterator[str]:
    port = found.porting()
    if found.port is None:
        return
    days, rate = found.port
    yield f"porting: {days:g} engineer days at ${rate:,.0f} are ${days * rate:,.0f}"
    if port is None:
        yield "  no kind of price is known of both sides, so that nothing says what it saves"
        return
    kind, least, most = port
    yield f"  a run saves {money.spelled(least.saved_per_run)} to {money.spelled(most.saved_per_run)} ({kind})"
    runs = [f"{p.runs:,.1f} runs" if p.runs is not None else "never" for p in (most, least)]
    yield f"  repaid after {runs[0]} at best, at worst {runs[1]}"


def _basis(found: Bakeoff) -> Iterator[str]:
    yield "what this leans on (failures are left out on both sides: see trnlab goodput)"
    for side in found.contenders:
        for line in (*side.basis, *found.energy(side).basis[:1]):
            yield f"  {side.name}: {line}"
    for line in found.energy(found.a).basis[1:]:
        yield f"  both: {line}"


def _line(label: str, first: str, second: str) -> str:
    return f"{label:<{LABEL}}{first:<{COLUMN}}{second}".rstrip()


def _show(span: PublishedRange, contender: Contender, unit: str = "") -> str:
    """A value with its band; the band alone where nothing more is known."""
    return _span(span, unit) if contender.known else _ends(span, unit)


def _span(span: PublishedRange, unit: str = "") -> str:
    if span.low == span.high:
        return _unit(span.value, unit)
    return f"{_unit(span.value, unit)} ({_number(span.low)} to {_number(span.high)})"


def _ends(span: PublishedRange, unit: str) -> str:
    return f"{_unit(span.low, unit)} to {_unit(span.high, unit)}"


def _unit(value: float, unit: str) -> str:
    number = _number(value)
    return f"${number}" if unit == "$" else f"{number} {unit}".rstrip()


def _number(value: float) -> str:
    if value and not 1e-3 <= abs(value) < 1e4:
        for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.3g}{name}"
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1%}"
