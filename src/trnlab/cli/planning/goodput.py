# SPDX-License-Identifier: Apache-2.0
"""`trnlab goodput`: what failures leave of a job of many chips, and what keeps it above a target."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from trnlab import chips
from trnlab.chips.spec import Figure
from trnlab.cli import options
from trnlab.errors import UsageError
from trnlab.fleet.bills.energy import HOST, PUE, WATTS
from trnlab.fleet.bills.site import HALL, Site
from trnlab.fleet.models import configurations
from trnlab.fleet.quantities import COUNT, POWER, TIME, parse
from trnlab.fleet.reliability.failures import SimulatedGoodput
from trnlab.fleet.reliability.goodput import FIGURES, SWEEP, Reliability
from trnlab.fleet.reliability.measures import Job, Measure, ReliabilityStudy, examine, simulate
from trnlab.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, format_count

BELOW = 1


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab goodput`."""
    add = command.add_argument
    add("--chips", metavar="N", required=True, help="of the job, e.g. 500000 or 500k")
    add("--target", metavar="NAME", default="trn2.48xlarge", help="the instance they are in; default: trn2.48xlarge")
    size = command.add_mutually_exclusive_group()
    size.add_argument("--model", metavar="NAME", help="a model by name, or its config.json")
    size.add_argument("--parameters", metavar="N", default="1T", help="of a model; default: 1T")
    add(
        "--above",
        metavar="SHARE",
        type=options.real(0, 1, above=True),
        default=0.9,
        help="goodput that is to be kept; default: 0.9",
    )
    add("--step", metavar="TIME", default="10s", help="of one step; default: 10s")
    add(
        "--replica",
        metavar="N",
        type=options.COUNT,
        help="chips of one copy of the model; default: the fewest that hold it",
    )
    add("--store", metavar="NAME", help="of checkpoints: s3, lustre-125 to lustre-1000, neighbour; default: s3")
    add(
        "--device-hours",
        metavar="H",
        type=options.real(0, 1e12, above=True),
        help="between failures of a device; default: that of Llama 3's H100",
    )
    add(
        "--spares",
        metavar="N",
        type=options.whole(0),
        help="instances that stand by; default: as many as are nearly always enough",
    )
    add(
        "--oversubscription",
        metavar="X",
        type=options.real(1, 1e6),
        default=1.0,
        help="of the network's halves; default: 1",
    )
    add("--power", metavar="WATTS", help="that there are, e.g. 2GW")
    add("--seed", type=options.SEED, default=0, help="of the simulation; default: 0")
    add("--json", action="store_true", help="everything as JSON, see docs/goodput.md")


def main(args: argparse.Namespace) -> int:
    """Print what keeps a job's goodput above the target; returns 1 where nothing that is known does."""
    job, how = _job(args), _how(args)
    found = examine(job, how, args.above, args.oversubscription)
    seen = simulate(job, found.enough or found.measures[-1], args.seed)
    watts = parse(args.power, POWER, "--power") if args.power else None
    print(json.dumps(to_json(found, seen), indent=2) if args.json else text(found, seen, watts))
    return 0 if found.enough is not None else BELOW


def _job(args: argparse.Namespace) -> Job:
    parameters = (
        configurations.model(args.model).parameters if args.model else parse(args.parameters, COUNT, "--parameters")
    )
    return Job(
        chips.target(args.target),
        int(parse(args.chips, COUNT, "--chips")),
        parameters,
        parse(args.step, TIME, "--step"),
        args.replica or 0,
    )


def _how(args: argparse.Namespace) -> Reliability:
    changes: dict[str, object] = {
        "device_hours": args.device_hours,
        "store": args.store,
        "spares": args.spares,
        "blast": args.replica,
    }
    if args.replica is not None and args.replica < 1:
        raise UsageError(
            "no copy of a model is on so few chips",
            code="TRN165",
            limit="at least 1",
            got=args.replica,
            remedy="leave --replica out for the fewest that hold it",
        )
    return Reliability(**{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]


def text(found: ReliabilityStudy, seen: SimulatedGoodput, watts: float | None) -> str:
    """For people."""
    job, last = found.job, found.enough or found.measures[-1]
    lines = [
        f"{job.chips:,} chips of {job.target.name}, {format_count(job.parameters)} parameters, a step of "
        f"{job.step:g} s, a copy of the model on {job.copy:,} chips",
        f"a failure every {_duration(last.goodput.between)}: one in {last.how.device_hours:,.0f} hours of a device "
        "(of 16,384 H100; none of Trainium is published)",
        "",
        f"{'goodput':>8}  {'failures x' + ' / x'.join(f'{r:g}' for r in SWEEP):>22}   with all measures so far",
    ]
    for measure in found.measures:
        swept = " / ".join(f"{share:.1%}" for share in measure.shares)
        mark = "  <- enough" if measure is found.enough else ""
        lines.append(f"{measure.goodput.share:>8.1%}  {swept:>22}   {measure.name}{mark}")
    if found.enough is None:
        lines.append(f"nothing of it keeps goodput above {found.above:.0%}; the best:")
    lines += ["", *_told(last, seen), "", *_limits(found), "", *_place(found.site, watts), "", *_network(found)]
    lines += [
        "",
        "figures:",
        *(f"  {name}: {f.value:g} {f.unit}, {f.confidence}: {f.source}" for name, f in _sources(job)),
    ]
    return "\n".join(lines)


def _sources(job: Job) -> Iterator[tuple[str, Figure]]:
    yield from FIGURES.items()
    yield from (("watts", WATTS[job.target.chip.name]), ("host", HOST), ("pue", PUE), ("hall", HALL))


def _told(last: Measure, seen: SimulatedGoodput) -> list[str]:
    g = last.goodput
    lines = [
        f"saves: every {_duration(g.interval)} of work (Young: {_duration(g.young)}), {_duration(g.stall)} in which "
        f"the work stands still, {_counts(last)}, to {last.how.store}"
        + (f" of {g.file_system_tib:g} TiB" if g.file_system_tib else ""),
        "lost: " + ", ".join(f"{name} {part:.2%}" for name, part in sorted(g.waste.items(), key=lambda w: -w[1])),
        "a restart: "
        + ", ".join(f"{name} {_duration(s)}" for name, s in g.phases.items())
        + f"; without a spare {_duration(last.how.replacement)} more",
        f"spares: {g.spares} instances beside {g.instances:,}"
        + (f" (one is free {g.spared:.2%} of the times)" if g.spares else "")
        + f"; goodput of all that is paid for {g.bought:.1%}",
        f"simulated: {seen.share:.2%} +- {seen.error:.2%} over {seen.stops:,} failures; formula {g.share:.2%}"
        + (f"; Young's and Daly's first order {g.first_order:.2%}" if g.first_order is not None else ""),
    ]
    return lines


def _counts(last: Measure) -> str:
    if not last.how.asynchronous:
        return "all of the writing in it"
    return f"{_duration(last.goodput.upload)} more until one counts"


def _limits(found: ReliabilityStudy) -> list[str]:
    limits, above = found.limits, f"{found.above:.0%}"
    blast = (
        f"at most {limits.blast:,} chips stop together" if limits.blast else "(no number of chips that stop together)"
    )
    pause = f"the others go on within {_duration(limits.pause)}" if limits.pause else "(no pause is short enough)"
    rare = (
        f"a device fails once in {limits.device_hours:,.0f} h or less often" if limits.device_hours else "(no rate)"
    )
    return [
        f"goodput stays above {above}, all else as it is, while",
        *(f"  {limit}" for limit in (blast, pause, rare)),
    ]


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
        lines.append("  none: there is one copy of the model")
    for way in found.crossings:
        lines.append(
            f"  {way.name}: {format_count(way.nbytes)}B, {_duration(way.seconds)}; with {way.bearable:,.3g}:1 less "
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
