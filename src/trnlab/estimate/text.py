# SPDX-License-Identifier: Apache-2.0
"""Sentences of a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnlab.estimate.result import Report, TargetResult
from trnlab.findings import ERROR, NOTE, WARNING
from trnlab.stacks import OURS
from trnlab.units import format_bytes
from trnlab.view.effects import Effects

_WITHOUT_VALUES = ("", "eager", "recorded", "compile_step", "torch.compile")


def what(report: Report) -> str:
    """What times, rates and prices are of."""
    return "step" if report.learns else "forward pass"


def head(report: Report) -> str:
    """What was looked at."""
    values = "without values" if report.how in _WITHOUT_VALUES else "with the host's values"
    steps = f"{report.steps} {what(report)}{('s' if report.learns else 'es') * (report.steps != 1)} followed {values}"
    how = {"eager": "nothing compiled", "recorded": "operators recorded"}.get(report.how, report.how)
    size = f", {report.parameters:,} parameters" if report.parameters else ""
    per = f", {report.per_step:,} {report.counted or 'tokens'} a {what(report)}" if report.per_step else ""
    known = ", from the last check" if report.cached else ""
    by = f", by {report.stacks[0].about}" if report.stacks and report.stacks[0].stack != OURS else ""
    return f"{report.script}: {how}, {report.precision} matrix products, {steps}{size}{per}{by}{known}"


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


def layout_words(t: TargetResult, what: str = "step") -> str:
    """The smallest layout that holds the step; `t.layout.basis` is what its time leans on."""
    assert t.layout is not None
    lay = t.layout
    share = f", {lay.tensor} of them on each batch" if lay.tensor > 1 else ""
    low, high = lay.time_s
    return (
        f"does not fit one core; the fewest that hold it are {lay.cores}{share}, {format_bytes(lay.bytes_per_core)} "
        f"each: {seconds(low)} to {seconds(high)} a {what}, as communication ({seconds(lay.communication_s)}) is "
        f"hidden or not"
    )


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
