# SPDX-License-Identifier: Apache-2.0
"""A report for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trnlab.porting.result import ERROR, NOTE, WARNING, Finding, Report, TargetResult
from trnlab.units import format_bytes

VENDOR_COMPILE = (
    "no model of the vendor's compiler is made here. Published of it: 13 minutes for a step of BERT-Large with "
    "parallel compilation and 40 without, 30 to 60 minutes from 70 billion parameters on"
)
_MOST_OPERATORS = 12
_NAMES = {"copies": "copies of them in bf16", "state": "optimizer state"}


def check(report: Report) -> str:
    """All that `trnlab check` says."""
    parts = [head(report), *(_finding(f) for f in report.ordered()), operators(report), *_targets(report)]
    return "\n\n".join(part for part in [*parts, _vendor(report), conclusion(report)] if part)


def estimate(report: Report) -> str:
    """All that `trnlab estimate` says."""
    grave = [f for f in report.ordered() if f.severity == ERROR]
    parts = [head(report), *(_finding(f) for f in grave), *_targets(report)]
    parts += [part for t in report.targets for part in (_breakdown(t),)]
    return "\n\n".join(part for part in parts if part)


def head(report: Report) -> str:
    """What was looked at."""
    steps = f"{report.steps} step{'s' * (report.steps != 1)} followed without values"
    how = {"eager": "nothing compiled"}.get(report.how, report.how)
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


def _finding(f: Finding) -> str:
    lines = [f"{f.severity:<8} {f.code}  {f.what}"]
    if f.place.file:
        where = f" in {f.place.function}" if f.place.function and f.place.function != "<module>" else ""
        lines.append(f"         at   {f.place}{where}" + (f" ({f.place.layer})" if f.place.layer else ""))
    if f.place.text:
        lines.append(f"              {f.place.text}")
    if any(str(p) != str(f.place) for p in f.places):
        lines_too = list(dict.fromkeys(str(p) for p in f.places if str(p) != str(f.place)))
        more = ", ".join(lines_too[:3]) + (f" and {len(lines_too) - 3} more" if len(lines_too) > 3 else "")
        lines.append(f"         and  {more}")
    lines += [f"         {label:<4} {text}" for label, text in (("why", f.why), ("do", f.do)) if text]
    return "\n".join(lines)


def operators(report: Report) -> str:
    """How many operators are on the chip, refused, not compiled; the latter two by name."""
    lines = []
    for status, words in (("supported", "on the chip"), ("refused", "refused"), ("host", "not compiled")):
        some = [o for o in report.operators if o.status == status]
        named = f"of {len(some)} kinds"
        if status != "supported":
            named = ", ".join(f"{o.name.removeprefix('aten.')} x{o.count}" for o in some[:_MOST_OPERATORS])
            named += f" and {len(some) - _MOST_OPERATORS} more" if len(some) > _MOST_OPERATORS else ""
        if some:
            lines.append(f"  {words:<12} {sum(o.count for o in some):>6}  {named}")
    return "\n".join(["operators of a step", *lines]) if lines else ""


def _targets(report: Report) -> Iterator[str]:
    if not report.targets:
        yield "\n".join(report.notes)
        return
    yield "\n".join(_memory(report))
    yield "\n".join([table(report), *report.notes])
    for t in report.targets:
        if t.why:
            yield f"{t.name}: no time, because the compiler refuses it\n  " + t.why.replace("\n", "\n  ")
        elif t.layout is not None and t.layout.cores > 1:
            yield f"{t.name}: {layout_words(t)}"


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


def _memory(report: Report) -> Iterator[str]:
    names = ("parameters", "copies", "gradients", "state", "activations", "batch", "temporaries")
    yield "memory of one core's step"
    seen = set()
    for t in report.targets:
        if t.chip in seen:
            continue
        seen.add(t.chip)
        parts = ", ".join(
            f"{_NAMES.get(n, n)} {format_bytes(getattr(t.memory, n))}" for n in names if getattr(t.memory, n)
        )
        yield f"  {t.chip:<6} {format_bytes(t.memory.total)} of {format_bytes(t.capacity)}: {parts}"
        for big in t.memory.largest[:5]:
            yield f"         {format_bytes(big.bytes):>10}  {big.kind:<10} {big.name} {big.dtype}{list(big.shape)}"


def table(report: Report) -> str:
    """The targets side by side."""
    unit = report.counted or "tokens"
    columns = (
        "target",
        "one core holds it",
        "step, one core",
        "MFU",
        f"{unit}/s",
        "$/hour",
        "$/step",
        f"$/million {unit}",
    )
    rows = [columns]
    for t in report.targets:
        rows.append((
            t.name, "yes" if t.fits else f"no: {t.layout.cores} cores" if t.layout else "no",
            seconds(t.step_s), f"{100 * t.mfu:.1f} %" if t.mfu is not None else "-",
            f"{t.per_s:,.0f}" if t.per_s else "-", f"{t.usd_per_hour:.2f}" if t.usd_per_hour else "-",
            f"{t.usd_per_step:.3g}" if t.usd_per_step else "-",
            f"{t.usd_per_million:.3g}" if t.usd_per_million else "-",
        ))  # fmt: skip
    return "\n".join(_aligned(rows))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))
        ).rstrip()


def _breakdown(t: TargetResult) -> str:
    if not t.step_s:
        return ""
    lines = [f"{t.name}: where the {seconds(t.step_s)} of one core's step go"]
    lines += [f"  {name:<10} {seconds(s):>10}  {100 * s / t.step_s:5.1f} %" for name, s in t.parts.items()]
    lines.append("")
    lines += [f"  {seconds(s):>10}  {100 * s / t.step_s:5.1f} %  {name}" for name, s in t.modules]
    return "\n".join(lines)


def _vendor(report: Report) -> str:
    return f"compilation on the vendor's stack: {VENDOR_COMPILE}" if report.targets else ""


def seconds(value: float | None) -> str:
    """A time for people; "-" for none."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"
