# SPDX-License-Identifier: Apache-2.0
"""Sections of a report about a step of all ranks, and about what a step reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnlab.documents import Note, Part, Section, Table
from trnlab.estimate.job import JobStep
from trnlab.estimate.result import Report, TargetResult
from trnlab.estimate.text import seconds, what
from trnlab.profile import communication
from trnlab.profile.summary import from_store
from trnlab.runtime.faults import DegradedStep
from trnlab.units import format_bytes


def job(found: JobStep, t: TargetResult, report: Report) -> Section:
    """A step of all ranks: its time, what of it is communication, rate and price."""
    unit = report.counted or "samples"
    fits = "" if t.fits else ", which does not fit a rank's memory"
    once = f"{seconds(found.step_s)} a {what(report)}"
    title = f"{found.cluster}, {found.ranks} ranks, as rank {found.rank} does it: {once}{fits}"
    parts: list[Part] = []
    if found.batches and found.per_s:
        batches = f"{found.batches} {'batch' if found.batches == 1 else 'batches'}"
        parts.append(Note(f"{found.per_s:,.0f} {unit}/s of {batches}"))
    elif found.step_s:
        parts.append(Note("how many batches all ranks have is not known: --batches N says it, for rate and price"))
    if found.usd_per_step:
        each = f", {found.usd_per_million:.3g} a million {unit}" if found.usd_per_million else ""
        parts.append(Note(f"$ {found.usd_per_hour:,.2f} an hour, {found.usd_per_step:.3g} a {what(report)}{each}"))
    return Section(title, [*parts, *_collectives(found), *_pipeline(found.pipeline), *_degraded(found.degraded)])


def _collectives(found: JobStep) -> Iterator[Part]:
    """What the ranks do together, and what would help."""
    if found.communication is None:
        yield Note("no collectives in compiled code")
        return
    first, *rest = communication.lines(found.communication, found.step_s)
    yield Section(f"collectives: {first}", [Note(line) for line in rest])
    helps = [Note(line) for line in communication.remedies(found.communication)]
    if helps:
        yield Section("would help", helps)


def _pipeline(found: dict[str, Any] | None) -> Iterator[Section]:
    """A pipeline: the schedule, what waiting costs, each stage and each rank."""
    if found is None:
        return
    stages, members = found["stages"], found["ranks"]
    title = (
        f"pipeline: {found['schedule']}, {len(stages)} stages on {len(members)} ranks, {found['microbatches']} "
        f"microbatches; the busiest rank waits {100 * found['bubble']:.0f}% of the passes"
    )
    lines = []
    for s in stages:
        sent = f", sends {format_bytes(s['sends'])} in {seconds(s['send_s'])}" if s["send_s"] else ""
        passes = f"forward {seconds(s['forward_s'])}, backward {seconds(s['backward_s'])} a microbatch"
        lines.append(f"stage {s['stage']} on rank {s['rank']}: {passes}{sent}")
    for r in members:
        held = f"{format_bytes(r['activations'])} for {r['in_flight']} microbatches in flight"
        lines.append(f"rank {r['rank']}: {format_bytes(r['bytes'])}, of which {held}")
    yield Section(title, [Note(line) for line in lines])


def _degraded(found: DegradedStep | None) -> Iterator[Section]:
    """What faults of the network do to the step."""
    if found is None:
        return
    taken = (
        "never ends"
        if found.degraded_s is None
        else f"takes {seconds(found.degraded_s)}, {found.slowdown:.2f} times as long"
    )
    rows = []
    for each in found.slowed:
        longer = (
            f"stops at {each.link}" if each.degraded_s is None else f"{seconds(each.degraded_s)}, held by {each.link}"
        )
        size = format_bytes(each.bytes)
        rows.append((each.kind, str(each.count), size, seconds(each.healthy_s), f"-> {longer}"))
    parts: list[Part] = [Table(rows, numbers=(1, 2, 3))] if rows else []
    if found.degraded_s is not None:
        held = f"bottleneck: {found.link}, {seconds(found.link_s)} a step" if found.link else "nothing slows"
        parts.append(Note(held))
    yield Section(f"with {', '.join(found.faults)} the step {taken}", parts)


def reading(t: TargetResult) -> Iterator[Section]:
    """What a step waits for its data, and what each data set costs."""
    if not t.reading or not t.step_s:
        return
    step = t.step_s if t.job is None else t.job.step_s
    title = f"{t.name}: no step waits for its data"
    if t.input_s:
        takes = f"takes {seconds(step + t.input_s)} with that, as rates, MFU and prices have it"
        title = f"{t.name}: a step waits {seconds(t.input_s)} for its data and {takes}"
    yield Section(title, [_read(read) for read in t.reading])


def _read(read: dict[str, Any]) -> Section:
    """What a step reads of one data set."""
    batches = f"{read['batches']} batch{'es' * (read['batches'] != 1)}"
    title = f"{batches} of {read['place']} a step, read in {seconds(read['reading_s'])}"
    return Section(title, [Note(line) for line in from_store(read)])
