# SPDX-License-Identifier: Apache-2.0
"""Sentences of a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnlab.estimate.job import JobStep
from trnlab.estimate.result import Report, TargetResult
from trnlab.findings import ERROR, NOTE, WARNING
from trnlab.profile import communication
from trnlab.profile.summary import from_store
from trnlab.runtime.faults import DegradedStep
from trnlab.units import format_bytes
from trnlab.view.effects import Effects

_WITHOUT_VALUES = ("", "eager", "recorded", "compile_step", "torch.compile")


def head(report: Report) -> str:
    """What was looked at."""
    what = "step" if report.learns else "forward pass"
    values = "without values" if report.how in _WITHOUT_VALUES else "with the host's values"
    steps = f"{report.steps} {what}{('s' if report.learns else 'es') * (report.steps != 1)} followed {values}"
    how = {"eager": "nothing compiled", "recorded": "operators recorded"}.get(report.how, report.how)
    size = f", {report.parameters:,} parameters" if report.parameters else ""
    per = f", {report.per_step:,} {report.counted or 'tokens'} a step" if report.per_step else ""
    known = ", from the last check" if report.cached else ""
    return f"{report.script}: {how}, {report.precision} matrix products, {steps}{size}{per}{known}"


def conclusion(report: Report) -> str:
    """The last line."""
    counts = [(len(report.having(s)), s) for s in (ERROR, WARNING, NOTE)]
    said = ", ".join(f"{n} {s}{'s' * (n != 1)}" for n, s in counts if n)
    rest = "" if report.complete else "; the walk ended early, so there may be more"
    return f"{said}{rest}" if said else "nothing is in the way"


def effects_rows(effects: Effects) -> Iterator[tuple[str, list[str]]]:
    """What a script would have done, by kind."""
    written = [
        f"{w['path']}"
        + ("" if w["path"].endswith("/") else f"  {format_bytes(w['bytes'])}")
        + ("" if w["new"] else ", in the place of what is there")
        for w in effects.written
    ]
    yield "write", written
    yield "delete", [d["path"] for d in effects.deleted]
    yield "move", [f"{m['from']} to {m['to']}" for m in effects.moved]
    yield "change", [f"{c['path']}: its rights or times" for c in effects.changed]
    for label, name, found in (
        ("start", "command", effects.started),
        ("send to", "to", effects.sent),
        ("refused", "what", effects.refused),
    ):
        yield label, [each[name] + (f"  {each['count']} times" if each["count"] > 1 else "") for each in found]
    if effects.read_only:
        yield "", ["these file systems were read-only for it: " + ", ".join(effects.read_only)]


def reading(t: TargetResult) -> Iterator[str]:
    """What a step waits for its data, and what each data set costs."""
    if not t.reading or not t.step_s:
        return
    step = t.step_s if t.job is None else t.job.step_s
    if t.input_s:
        yield (
            f"{t.name}: a step waits {seconds(t.input_s)} for its data and takes {seconds(step + t.input_s)} with "
            "that, as rates, MFU and prices have it"
        )
    else:
        yield f"{t.name}: no step waits for its data"
    for read in t.reading:
        count = read["batches"]
        yield f"  {count} batch{'es' * (count != 1)} of {read['place']} a step, read in {seconds(read['reading_s'])}"
        yield from (f"    {line}" for line in from_store(read))


def layout_words(t: TargetResult) -> str:
    """The smallest layout that holds the step, and what its time leans on."""
    assert t.layout is not None
    lay = t.layout
    share = f", {lay.tensor} of them on each batch" if lay.tensor > 1 else ""
    low, high = lay.time_s
    return (
        f"does not fit one core; the fewest that hold it are {lay.cores}{share}, {format_bytes(lay.bytes_per_core)} "
        f"each: {seconds(low)} to {seconds(high)} a step, as communication ({seconds(lay.communication_s)}) is "
        f"hidden or not\n  {lay.basis}"
    )


def job(found: JobStep, t: TargetResult, report: Report) -> str:
    """A step of all ranks: its time, what of it is communication, rate and price."""
    unit = report.counted or "samples"
    lines = [
        f"{found.cluster}, {found.ranks} ranks, as rank {found.rank} does it: {seconds(found.step_s)} a step"
        + ("" if t.fits else ", which does not fit a rank's memory")
    ]
    if found.batches and found.per_s:
        lines.append(
            f"  {found.per_s:,.0f} {unit}/s of {found.batches} {'batch' if found.batches == 1 else 'batches'}"
        )
    elif found.step_s:
        lines.append("  how many batches all ranks have is not known: --batches N says it, for rate and price")
    if found.usd_per_step:
        each = f", {found.usd_per_million:.3g} a million {unit}" if found.usd_per_million else ""
        lines.append(f"  $ {found.usd_per_hour:,.2f} an hour, {found.usd_per_step:.3g} a step{each}")
    return "\n".join([*lines, *_talk(found), *_stages(found.pipeline), *_sick(found.degraded)])


def _stages(found: dict[str, Any] | None) -> Iterator[str]:
    """Lines about a pipeline: the schedule, what waiting costs, each stage and each rank."""
    if found is None:
        return
    stages, members = found["stages"], found["ranks"]
    yield (
        f"  pipeline: {found['schedule']}, {len(stages)} stages on {len(members)} ranks, {found['microbatches']} "
        f"microbatches; the busiest rank waits {100 * found['bubble']:.0f}% of the passes"
    )
    for s in stages:
        sent = f", sends {format_bytes(s['sends'])} in {seconds(s['send_s'])}" if s["send_s"] else ""
        yield (
            f"    stage {s['stage']} on rank {s['rank']}: forward {seconds(s['forward_s'])}, backward "
            f"{seconds(s['backward_s'])} a microbatch{sent}"
        )
    for r in members:
        yield (
            f"    rank {r['rank']}: {format_bytes(r['bytes'])}, of which {format_bytes(r['activations'])} for "
            f"{r['in_flight']} microbatches in flight"
        )


def _talk(found: JobStep) -> Iterator[str]:
    if found.communication is None:
        yield "  no collectives in compiled code"
        return
    first, *rest = communication.lines(found.communication, found.step_s)
    yield f"  collectives: {first}"
    yield from (f"    {line}" for line in rest)
    helps = list(communication.remedies(found.communication))
    if helps:
        yield "  would help"
        yield from (f"    {line}" for line in helps)


def _sick(found: DegradedStep | None) -> Iterator[str]:
    """What faults of the network do to the step."""
    if found is None:
        return
    sick = (
        "never ends"
        if found.degraded_s is None
        else f"takes {seconds(found.degraded_s)}, {found.slowdown:.2f} times as long"
    )
    yield f"  with {', '.join(found.faults)} the step {sick}"
    for each in found.slowed:
        longer = (
            f"stops at {each.link}" if each.degraded_s is None else f"{seconds(each.degraded_s)}, held by {each.link}"
        )
        yield (
            f"    {each.kind:<18} {each.count:>5}  {format_bytes(each.bytes):>10}  {seconds(each.healthy_s):>9} "
            f"-> {longer}"
        )
    if found.degraded_s is not None:
        yield f"    bottleneck: {found.link}, {seconds(found.link_s)} a step" if found.link else "    nothing slows"


def vendor_words(found: dict[str, Any]) -> str:
    """Minutes of compiling a step on the vendor's stack."""
    low, high = found["low_min"], found["high_min"]
    minutes = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return f"on the vendor's stack {minutes} minutes, {found['tag']}: {found['source']}"


def seconds(value: float | None) -> str:
    """A time for people; "-" for none."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"
