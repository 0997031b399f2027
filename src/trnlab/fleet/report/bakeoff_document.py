# SPDX-License-Identifier: Apache-2.0
"""A bake-off as a document: both sides in columns, then ratios, claims, compiling, and what all of it leans on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trnlab.chips.prices import Price, latest
from trnlab.documents import TERMINAL, Document, Note, Section, Table
from trnlab.fleet.bills import money
from trnlab.fleet.bills.claims import ClaimComparison
from trnlab.fleet.comparison.bakeoff import MILLION, Bakeoff, to_json
from trnlab.fleet.comparison.contenders import Contender
from trnlab.fleet.comparison.deciding import undecided, words
from trnlab.fleet.ranges import PublishedRange
from trnlab.units import DAYS_PER_WEEK

Row = tuple[str, str, str]


def document(found: Bakeoff, stacked: Sequence[Bakeoff] = ()) -> Document:
    """All of it. stacked: by all stacks that were asked for, this one the first."""
    about = _about(found)
    return Document(
        f"{found.a.name} and {found.b.name}",
        [
            Note(f"{found.work.name} {about}", on=TERMINAL),
            Section(heading="Side by side", parts=[Table(list(_rows(found)), ("", found.a.name, found.b.name))]),
            Section(heading="What the same work costs", parts=list(_ratios(found))),
            *_stacks(stacked),
            Section(heading="Claims of the vendor", parts=_claims(found)) if found.claims() else Section(),
            *_compiling(found),
            *_porting(found),
            _basis(found),
        ],
        over="trnlab bakeoff",
        lede=f"{found.work.name} {about}.",
        name=f"bake-off of {found.work.name}",
        record=lambda: to_json(found) | {"stacks": [to_json(one) for one in stacked]},
    )


def _stacks(stacked: Sequence[Bakeoff]) -> Iterator[Section]:
    """What programs of each stack make of it."""
    if not stacked:
        return
    unit = stacked[0].work.unit
    head = (
        "by",
        *(f"{unit} a second, {side.name}" for side in stacked[0].contenders),
        "kind of price",
        "cost of a in b",
    )
    rows = []
    for one in stacked:
        about = (one.stack.title, *(_show(side.rate, side) for side in one.contenders))
        ratios = [(kind, f"{span.value:.2f} ({span.low:.2f} to {span.high:.2f})") for kind, *_, span in one.ratios()]
        rows += [(*about, *ratio) for ratio in ratios or [("-", "-")]]
    say = "The chip is the same; which instructions reach it is not."
    yield Section("by whose software", [Table(rows, head)], say=say)


def _about(found: Bakeoff) -> str:
    work = found.work
    batch = f", {work.batch:,} {work.unit} a step" if work.batch else ""
    size = f"{work.parameters:,.0f} parameters"
    return f"({work.kind}, {size}{batch}), {work.optimizer}, {found.days:g} days"


def _rows(found: Bakeoff) -> Iterator[Row]:
    """What is set against each other: its name, and the value of each side."""
    unit, (a, b) = found.work.unit, found.contenders
    yield "layout", a.how or "-", b.how or "-"
    steps = [side.step(found.work) for side in found.contenders]
    if steps[0] is not None and steps[1] is not None:
        yield "a step", _show(steps[0], a, "s"), _show(steps[1], b, "s")
    yield f"{unit} a second", _show(a.rate, a), _show(b.rate, b)
    yield "of the peak", _show(a.mfu.times(100), a, "%"), _show(b.mfu.times(100), b, "%")
    yield "waiting for the network", _share(a.exchange), _share(b.exchange)
    yield f"{unit} in {found.days:g} days", _show(found.units(a), a), _show(found.units(b), b)
    if found.epoch:
        epochs = [_show(found.units(side).times(1 / found.epoch), side) for side in found.contenders]
        yield "epochs", epochs[0], epochs[1]
    yield from _dollars(found)
    drawn = [found.energy(side) for side in found.contenders]
    yield "kWh of the run", _span(drawn[0].total), _span(drawn[1].total)
    yield f"kWh a million {unit}", _show(found.kwh(a, MILLION), a), _show(found.kwh(b, MILLION), b)
    yield f"kg CO2e in {found.region}", _span(drawn[0].kg(found.region)), _span(drawn[1].kg(found.region))


def _dollars(found: Bakeoff) -> Iterator[Row]:
    """Dollars of the run, of a million units and of an epoch, by each kind of price that one of both has."""
    first, second = (latest(side.instance) for side in found.contenders)
    for kind in dict.fromkeys((*first, *second)):
        a, b = _priced(found, found.a, first.get(kind)), _priced(found, found.b, second.get(kind))
        yield f"{kind}: the run", a[0], b[0]
        yield f"  a million {found.work.unit}", a[1], b[1]
        if found.epoch:
            yield "  an epoch", a[2], b[2]


def _priced(found: Bakeoff, side: Contender, price: Price | None) -> Row:
    """Dollars of the run, of a million units and of an epoch on one side."""
    if price is None:
        return "no such price", "-", "-"
    run = f"${price.usd(side.instances * found.days * 24):,.0f} ({price.date})"
    epoch = _show(found.usd(side, price, found.epoch), side, "$") if found.epoch else ""
    return run, _show(found.usd(side, price, MILLION), side, "$"), epoch


def _ratios(found: Bakeoff) -> Iterator[Note | Section]:
    """By each kind of price that both sides have."""
    ratios = found.ratios()
    if not ratios:
        yield Note("no kind of price is known of both sides, so that their dollars cannot be compared")
    for kind, first, second, span in ratios:
        ends = f"{span.low:.2f} to {span.high:.2f}"
        middle = f"{span.value:.2f} ({ends})" if found.known else ends
        left_open = " - the bands overlap: undecided" if undecided(span) else ""
        title = f"{kind}: the same work on {found.a.name} costs {middle} of what it does on {found.b.name}{left_open}"
        yield Section(title, [Note(str(first)), Note(str(second))])
    for run in found.would_decide():
        what, line = words(run)
        yield Section(what, [Note(line)])


def _claims(found: Bakeoff) -> list[Section]:
    return [Section(f"claim: {b.claim}", [Note(_meaning(b, found))]) for b in found.claims()]


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


def _compiling(found: Bakeoff) -> Iterator[Section]:
    """What compiling takes on a side of Neuron."""
    if found.a.accelerator not in ("trn1", "trn2", "trn3", "inf2"):
        return
    made = found.compiling()
    minutes, saved, yearly, hours = made.minutes, made.saved_usd, made.repeated(), made.saved_hours
    line = f"the cache saves {hours.low:.2g} to {hours.high:.2g} instance hours"
    if saved is not None:
        line += f", ${saved.low:,.0f} to ${saved.high:,.0f}"
    if yearly is not None and found.days <= DAYS_PER_WEEK:
        line += f"; repeated weekly for a year ${yearly.low:,.0f} to ${yearly.high:,.0f}"
    notes = [
        Note(f"{minutes.tag}: {minutes.source}"),
        Note(f"{made.without:.1f} times in the run without a cache, {made.with_cache:.1f} with one"),
        Note(line),
    ]
    yield Section(f"compiling on {found.a.name}: {minutes.low:g} to {minutes.high:g} minutes a time", notes)


def _porting(found: Bakeoff) -> Iterator[Section]:
    """What a port costs, and after how many runs that is repaid."""
    if found.port is None:
        return
    days, rate = found.port
    port = found.porting()
    if port is None:
        notes = [Note("no kind of price is known of both sides, so that nothing says what it saves")]
    else:
        kind, least, most = port
        saves = f"{money.spelled(least.saved_per_run)} to {money.spelled(most.saved_per_run)}"
        runs = [f"{p.runs:,.1f} runs" if p.runs is not None else "never" for p in (most, least)]
        notes = [
            Note(f"a run saves {saves} ({kind})"),
            Note(f"repaid after {runs[0]} at best, at worst {runs[1]}"),
        ]
    yield Section(f"porting: {days:g} engineer days at ${rate:,.0f} are ${days * rate:,.0f}", notes)


def _basis(found: Bakeoff) -> Section:
    rows = [
        (f"{side.name}:", line) for side in found.contenders for line in (*side.basis, *found.energy(side).basis[:1])
    ]
    rows += [("both:", line) for line in found.energy(found.a).basis[1:]]
    title = "what this leans on (failures are left out on both sides: see trnlab goodput)"
    return Section(title, [Table(rows)])


def _show(span: PublishedRange, side: Contender, unit: str = "") -> str:
    """A value with its band; the band alone where nothing more is known."""
    return _span(span, unit) if side.known else _ends(span, unit)


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
