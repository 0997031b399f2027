# SPDX-License-Identifier: Apache-2.0
"""A report for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trnlab.porting.job import Job
from trnlab.porting.result import ERROR, NOTE, WARNING, Finding, Report, TargetResult
from trnlab.profile import communication
from trnlab.profile.summary import from_store
from trnlab.runtime.faults import Sickness
from trnlab.units import format_bytes
from trnlab.view.effects import NAMESPACES, Effects

VENDOR_COMPILE = (
    "no model of the vendor's compiler is made here. Published of it: 13 minutes for a step of BERT-Large with "
    "parallel compilation and 40 without, 30 to 60 minutes from 70 billion parameters on"
)
_MOST_OPERATORS = 12
_MOST_EFFECTS = 12
_NAMES = {"copies": "copies of them in bf16", "state": "optimizer state"}


def check(report: Report) -> str:
    """All that `trnlab check` says."""
    parts = [head(report), *(_finding(f) for f in report.ordered()), operators(report), *_targets(report)]
    parts += ["\n".join(effects_lines(report.effects)), _vendor(report), conclusion(report)]
    return "\n\n".join(part for part in parts if part)


def estimate(report: Report) -> str:
    """All that `trnlab estimate` says."""
    grave = [f for f in report.ordered() if f.severity == ERROR]
    parts = [head(report), *(_finding(f) for f in grave), *_targets(report)]
    parts += [part for t in report.targets for part in (_breakdown(t), _compiling(t))]
    parts.append("\n".join(effects_lines(report.effects)))
    return "\n\n".join(part for part in parts if part)


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


def effects_lines(effects: Effects | None) -> Iterator[str]:
    """What the script would have done besides, and what kept it from that; nothing where it was not kept."""
    if effects is None:
        return
    if effects.none:
        yield "the script writes, deletes, starts and sends nothing"
    else:
        done = ", ".join(effects.allowed)
        yield "the script was kept from this, which it would do when it is run" + (f" (but {done})" if done else "")
    for label, found in effects_rows(effects):
        for line in found[:_MOST_EFFECTS]:
            yield f"  {label:<8} {line}"
        if len(found) > _MOST_EFFECTS:
            yield f"  {label:<8} and {len(found) - _MOST_EFFECTS} more"
    if not effects.none or effects.protection != NAMESPACES:
        yield f"  {effects.limit}"


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
    jobs = [t for t in report.targets if t.job is not None]
    yield "\n".join(
        [*(job(t.job, t, report) for t in jobs if t.job), *report.notes] if jobs else [table(report), *report.notes]
    )
    yield "\n".join(line for t in report.targets for line in reading(t))
    for t in report.targets:
        if t.why:
            yield f"{t.name}: no time, because the compiler refuses it\n  " + t.why.replace("\n", "\n  ")
        elif t.layout is not None and t.layout.cores > 1:
            yield f"{t.name}: {layout_words(t)}"


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


def _memory(report: Report) -> Iterator[str]:
    names = ("parameters", "copies", "gradients", "state", "activations", "batch", "temporaries")
    yield f"memory of one {'rank' if any(t.job for t in report.targets) else 'core'}'s step"
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


def job(found: Job, t: TargetResult, report: Report) -> str:
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
    return "\n".join([*lines, *_talk(found), *_stages(found.pipeline), *_sick(found.sick)])


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


def _talk(found: Job) -> Iterator[str]:
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


def _sick(found: Sickness | None) -> Iterator[str]:
    """What faults of the network do to the step."""
    if found is None:
        return
    sick = (
        "never ends" if found.sick_s is None else f"takes {seconds(found.sick_s)}, {found.slowdown:.2f} times as long"
    )
    yield f"  with {', '.join(found.faults)} the step {sick}"
    for each in found.slowed:
        longer = f"stops at {each.link}" if each.sick_s is None else f"{seconds(each.sick_s)}, held by {each.link}"
        yield (
            f"    {each.kind:<18} {each.count:>5}  {format_bytes(each.bytes):>10}  {seconds(each.healthy_s):>9} "
            f"-> {longer}"
        )
    if found.sick_s is not None:
        yield f"    bottleneck: {found.link}, {seconds(found.link_s)} a step" if found.link else "    nothing slows"


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
        rows.append(
            (
                t.name,
                "yes" if t.fits else f"no: {t.layout.cores} cores" if t.layout else "no",
                seconds(t.step_s),
                f"{100 * t.mfu:.1f} %" if t.mfu is not None else "-",
                f"{t.per_s:,.0f}" if t.per_s else "-",
                f"{t.usd_per_hour:.2f}" if t.usd_per_hour else "-",
                f"{t.usd_per_step:.3g}" if t.usd_per_step else "-",
                f"{t.usd_per_million:.3g}" if t.usd_per_million else "-",
            )
        )
    of = "rates and dollars are of all cores of an instance, or of the fewest that hold the step where it has too few"
    return "\n".join([*_aligned(rows), *([of] if any(t.per_s for t in report.targets) else [])])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))
        ).rstrip()


def _breakdown(t: TargetResult) -> str:
    if not t.step_s:
        return ""
    lines = [f"{t.name}: where the {seconds(t.step_s)} of one {'rank' if t.job else 'core'}'s step go"]
    lines += [f"  {name:<10} {seconds(s):>10}  {100 * s / t.step_s:5.1f} %" for name, s in t.parts.items()]
    if t.input_s:
        lines.append(f"  and then   {seconds(t.input_s):>10}  waiting for data")
    if t.on_both is not None:
        lines.append(f"  both cores of the rank's logical core share {t.on_both:.0%} of what is no collective")
    lines.append("")
    lines += [f"  {seconds(s):>10}  {100 * s / t.step_s:5.1f} %  {name}" for name, s in t.modules]
    return "\n".join(lines)


def _compiling(t: TargetResult) -> str:
    """What compiling the step's programs took here, and takes on the vendor's stack."""
    if not t.compiling_s or not t.vendor:
        return ""
    return f"{t.name}: compiling took {seconds(t.compiling_s)} here, measured; {vendor_words(t.vendor)}"


def vendor_words(found: dict[str, Any]) -> str:
    """Minutes of compiling a step on the vendor's stack."""
    low, high = found["low_min"], found["high_min"]
    minutes = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return f"on the vendor's stack {minutes} minutes, {found['tag']}: {found['source']}"


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
