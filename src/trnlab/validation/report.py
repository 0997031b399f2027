# SPDX-License-Identifier: Apache-2.0
"""Results of a validation as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from statistics import median

from trnlab.units import format_time
from trnlab.validation.anchors import Split
from trnlab.validation.compare import Result


def report(results: Sequence[Result]) -> str:
    """Every anchor with its error, then the median and the worst by group and by what the anchors were used for."""
    lines = ["kernels recorded by hand", ""]
    for name in dict.fromkeys(r.measurement.name for r in results):
        mine = [r for r in results if r.measurement.name == name]
        lines += [f"{name} ({mine[0].measurement.chip})", *map(_line, mine), ""]
    lines.append(f"{'':<48}{'anchors':>8}{'median':>9}{'worst':>9}  the worst one")
    return "\n".join(lines + [_summary_line(title, chosen) for title, chosen in sections(results)])


def to_json(results: Sequence[Result]) -> str:
    """The same as JSON: times in seconds, shares as numbers between 0 and 1."""
    anchors = [
        {
            "measurement": r.measurement.name,
            "group": r.measurement.group,
            "chip": r.measurement.chip,
            "kernel": r.measurement.kernel,
            "sizes": dict(r.measurement.sizes),
            "source": r.measurement.source,
            "quantity": r.anchor.quantity,
            "unit": "share" if r.anchor.unit == "%" else "s",
            "measured": _plain(r, r.anchor.value),
            "predicted": _plain(r, r.predicted),
            "error": r.error,
            "used_for": r.anchor.split.value,
            "note": r.anchor.note,
        }
        for r in results
    ]
    summary = [
        {"what": title, "anchors": len(chosen), "median": median(_sizes(chosen)), "worst": max(_sizes(chosen))}
        for title, chosen in sections(results)
    ]
    return json.dumps({"anchors": anchors, "summary": summary}, indent=2)


def _line(r: Result) -> str:
    note = f"  ({r.anchor.note})" if r.anchor.note else ""
    return (
        f"  {r.anchor.quantity:<42}{_show(r, r.anchor.value):>11}{_show(r, r.predicted):>11}{r.error:>+9.1%}"
        f"  {r.anchor.split.value}{note}"
    )


def sections(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Titles and members of the lines of the summary; empty ones are left out. Where the schedule was fitted, the
    lines come last, and count in no other."""
    free = [r for r in results if r.anchor.split is not Split.FITTED]
    fitted = [r for r in results if r.anchor.split is Split.FITTED]
    sections = [(f"{kind}: {what}", chosen) for kind, what, chosen in _by_group(free)]
    sections += [
        (f"all {s.value}", [r for r in free if r.anchor.split is s]) for s in (Split.CALIBRATION, Split.CHECK)
    ]
    sections += [(f"fitted schedule: {kind}, {what}", chosen) for kind, what, chosen in _by_group(fitted)]
    return [(title, chosen) for title, chosen in sections if chosen]


def _by_group(results: Sequence[Result]) -> Iterable[tuple[str, str, list[Result]]]:
    for group in dict.fromkeys(r.measurement.group for r in results):
        mine = [r for r in results if r.measurement.group == group]
        for what in dict.fromkeys(_kind(r) for r in mine):
            yield group, what, [r for r in mine if _kind(r) == what]


def _kind(r: Result) -> str:
    what = r.anchor.quantity.partition(" ")[0]
    return {"total": "total time", "span": "total time", "active": "time active"}.get(what, "single instructions")


def _summary_line(title: str, chosen: Sequence[Result]) -> str:
    worst = max(chosen, key=lambda r: abs(r.error))
    sizes = _sizes(chosen)
    place = f"{worst.measurement.name}, {worst.anchor.quantity}"
    return f"{title:<48}{len(chosen):>8}{median(sizes):>9.1%}{max(sizes):>9.1%}  {place}"


def _sizes(chosen: Sequence[Result]) -> list[float]:
    return [abs(r.error) for r in chosen]


def _show(r: Result, value: float) -> str:
    return f"{value:.2%}" if r.anchor.unit == "%" else format_time(value)


def _plain(r: Result, value: float) -> float:
    return value if r.anchor.unit == "%" else value / 1e12
