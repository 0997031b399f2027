# SPDX-License-Identifier: Apache-2.0
"""What `trnlab goodput` found, for the terminal, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from trnlab.chips.spec import Figure
from trnlab.documents import PAGE, TERMINAL, Bar, Bars, Document, HeadlineFigure, Note, Part, Section, Table
from trnlab.documents.html import first_up
from trnlab.fleet.bills.energy import HOST, PUE, WATTS
from trnlab.fleet.bills.site import HALL, Site
from trnlab.fleet.reliability.failures import SimulatedGoodput
from trnlab.fleet.reliability.goodput import FIGURES, SWEEP
from trnlab.fleet.reliability.measures import Job, Measure, ReliabilityStudy
from trnlab.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, format_count


def document(found: ReliabilityStudy, seen: SimulatedGoodput, watts: float | None) -> Document:
    """All of it. watts: that there are, None where nobody says."""
    last = found.enough or found.measures[-1]
    about, failures = _about(found, last)
    title, *ways = _network(found)
    return Document(
        f"{last.goodput.share:.1%} of the time advance the training",
        [
            Section(parts=[Note(f"{about}\n{failures}", on=TERMINAL)]),
            Section(
                heading="Measure by measure",
                say="Each line has those above it, too; with 0.3, 1 and 3 times as many failures.",
                parts=[_measures(found), *_missed(found)],
            ),
            Section(heading="What is lost", parts=[_lost(last)], on=PAGE),
            Section(heading="With all of these measures", parts=_told(last, seen)),
            Section(
                f"goodput stays above {_share(found.above)}, all else as it is, while",
                list(map(Note, _limits(found))),
            ),
            Section(heading="The place", parts=list(map(Note, _place(found.site, watts)))),
            Section(title, list(map(Note, ways)), heading="The network", say=first_up(title)),
            Section("figures:", [Note(_figure(*each), on=TERMINAL) for each in _sources(found.job)], on=TERMINAL),
            Section(heading="Figures", parts=[_figures(found.job)], on=PAGE),
        ],
        over="trnlab goodput",
        lede=f"{about}. {first_up(failures)}.",
        figures=list(_large(last, seen)),
        name=f"goodput of {found.job.chips:,} chips",
        record=lambda: to_json(found, seen),
    )


def _about(found: ReliabilityStudy, last: Measure) -> tuple[str, str]:
    """What the job is, and how often something of it fails."""
    job = found.job
    return (
        f"{job.chips:,} chips of {job.target.name}, {format_count(job.parameters)} parameters, a step of "
        f"{job.step:g} s, a copy of the model on {job.copy:,} chips",
        f"a failure every {_duration(last.goodput.between)}: one in {last.how.device_hours:,.0f} hours of a device "
        "(of 16,384 H100; none of Trainium is published)",
    )


def _large(last: Measure, seen: SimulatedGoodput) -> Iterator[HeadlineFigure]:
    g = last.goodput
    yield HeadlineFigure("Goodput", f"{g.share:.1%}", f"simulated {seen.share:.1%}")
    yield HeadlineFigure("A failure every", _duration(g.between))
    yield HeadlineFigure("A save every", _duration(g.interval), f"to {last.how.store}")
    yield HeadlineFigure("Of all that is paid for", f"{g.bought:.1%}", f"{g.spares:,} spares")


def _measures(found: ReliabilityStudy) -> Table:
    rows = []
    for measure in found.measures:
        swept = " / ".join(f"{share:.1%}" for share in measure.shares)
        mark = "  <- enough" if measure is found.enough else ""
        rows.append((f"{measure.goodput.share:.1%}", swept, f"{measure.name}{mark}"))
    rates = "failures x" + " / x".join(f"{rate:g}" for rate in SWEEP)
    return Table(rows, ("goodput", rates, "with all measures so far"), (0, 1))


def _missed(found: ReliabilityStudy) -> Iterator[Note]:
    if found.enough is None:
        yield Note(f"nothing of it keeps goodput above {_share(found.above)}; the last is told", loud=True)


def _share(share: float) -> str:
    return f"{100 * share:g}%"


def _lost(last: Measure) -> Bars:
    waste = sorted(last.goodput.waste.items(), key=lambda each: -each[1])
    most = waste[0][1] if waste and waste[0][1] else 1.0
    return Bars([Bar.of(name, part / most, f"{part:.2%}", colour="var(--scalar)") for name, part in waste])


def _figure(name: str, figure: Figure) -> str:
    return f"{name}: {figure.value:g} {figure.unit}, {figure.confidence}: {figure.source}"


def _figures(job: Job) -> Table:
    rows = [(name, f"{f.value:g} {f.unit}", f.confidence, f.source) for name, f in _sources(job)]
    return Table(rows, ("figure", "value", "known", "source"), (1,))


def _sources(job: Job) -> Iterator[tuple[str, Figure]]:
    yield from FIGURES.items()
    yield from (("watts", WATTS[job.target.chip.name]), ("host", HOST), ("pue", PUE), ("hall", HALL))


def _told(last: Measure, seen: SimulatedGoodput) -> list[Part]:
    g = last.goodput
    lost = ", ".join(f"{name} {part:.2%}" for name, part in sorted(g.waste.items(), key=lambda w: -w[1]))
    return [
        Note(
            f"saves: every {_duration(g.interval)} of work (Young: {_duration(g.young)}), {_duration(g.stall)} in "
            f"which the work stands still, {_counts(last)}, to {last.how.store}"
            + (f" of {g.file_system_tib:g} TiB" if g.file_system_tib else "")
        ),
        Note(f"lost: {lost}", on=TERMINAL),  # a page has bars
        Note(
            "a restart: "
            + ", ".join(f"{name} {_duration(s)}" for name, s in g.phases.items())
            + f"; without a spare {_duration(last.how.replacement)} more"
        ),
        Note(
            f"spares: {g.spares} instances beside {g.instances:,}"
            + (f" (one is free {g.spared:.2%} of the times)" if g.spares else "")
            + f"; goodput of all that is paid for {g.bought:.1%}"
        ),
        Note(
            f"simulated: {seen.share:.2%} +- {seen.error:.2%} over {seen.stops:,} failures; formula {g.share:.2%}"
            + (f"; Young's and Daly's first order {g.first_order:.2%}" if g.first_order is not None else "")
        ),
    ]


def _counts(last: Measure) -> str:
    if not last.how.asynchronous:
        return "all of the writing in it"
    return f"{_duration(last.goodput.upload)} more until one counts"


def _limits(found: ReliabilityStudy) -> list[str]:
    limits = found.limits
    blast = (
        f"at most {limits.blast:,} chips stop together" if limits.blast else "(no number of chips that stop together)"
    )
    pause = f"the others go on within {_duration(limits.pause)}" if limits.pause else "(no pause is short enough)"
    rare = (
        f"a device fails once in {limits.device_hours:,.0f} h or less often" if limits.device_hours else "(no rate)"
    )
    return [blast, pause, rare]


def _place(site: Site, watts: float | None) -> list[str]:
    lines = [
        f"power: {_watts(site.watts)} with spares ({WATTS[site.target.chip.name].value:g} W a chip, "
        f"{HOST.value:.0%} for hosts, PUE {PUE.value:g}), {_halls(site)}"
    ]
    if watts is not None:
        enough = "enough" if site.watts <= watts else f"{_watts(site.watts - watts)} too little"
        lines.append(f"{_watts(watts)} are {enough}: they feed {site.chips_for(watts):,} chips")
    return lines


def _watts(watts: float) -> str:
    return f"{watts / 1e6:,.0f} MW" if watts >= 1e7 else f"{watts / 1e3:,.3g} kW"


def _halls(site: Site) -> str:
    if site.watts < HALL.value:
        return f"{site.watts / HALL.value:.2g} of a hall of {_watts(HALL.value)}"
    return f"{site.halls} halls of {_watts(HALL.value)}"


def _network(found: ReliabilityStudy) -> list[str]:
    if found.site.bisection.value <= 0:
        return ["bisection: none that EFA cards join: one instance, or instances without cards"]
    lines = [
        f"bisection: {found.site.bisection.value / 1e12:,.0f} TB/s ({found.site.bisection.confidence}: "
        f"{found.site.bisection.source}); gradients of a step across it:"
    ]
    if not found.crossings:
        lines.append("none: there is one copy of the model")
    for way in found.crossings:
        lines.append(
            f"{way.name}: {format_count(way.nbytes)}B, {_duration(way.seconds)}; with {way.bearable:,.3g}:1 less "
            "of it a quarter of a step"
        )
    return lines


def _duration(seconds: float) -> str:
    for size, unit in ((SECONDS_PER_DAY, "d"), (SECONDS_PER_HOUR, "h"), (2 * SECONDS_PER_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds / (SECONDS_PER_MINUTE if unit == 'min' else size):.3g} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def to_json(found: ReliabilityStudy, seen: SimulatedGoodput) -> dict[str, object]:
    """For programs; docs/goodput.md says what is what."""
    job, site = found.job, found.site
    return {
        "chips": job.chips,
        "target": job.target.name,
        "parameters": job.parameters,
        "step_s": job.step,
        "replica_chips": job.copy,
        "above": found.above,
        "enough": found.enough.name if found.enough else None,
        "measures": [
            {"name": m.name, "shares": dict(zip(map(str, SWEEP), m.shares)), **m.goodput.as_json()}
            for m in found.measures
        ],
        "limits": asdict(found.limits),
        "simulated": asdict(seen),
        "site": {
            "watts": site.watts,
            "halls": site.halls,
            "chips": site.chips,
            "bisection_bytes_per_s": site.bisection.value,
        },
        "crossings": [asdict(way) for way in found.crossings],
        "figures": {name: f._asdict() for name, f in _sources(job)},
    }
