# SPDX-License-Identifier: Apache-2.0
"""What `trnlab check` and `trnlab estimate` say of a script, as documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trnlab.documents import BOTH, PAGE, TERMINAL, Bar, Bars, Document, Key, Note, Part, Section, Slice, Table
from trnlab.documents.html import sentence
from trnlab.estimate import text
from trnlab.estimate.job_document import job, reading
from trnlab.estimate.result import Report, TargetResult, to_json
from trnlab.estimate.text import seconds
from trnlab.findings import ERROR, WARNING, Finding
from trnlab.units import format_bytes
from trnlab.view.effects import NAMESPACES, Effects

VENDOR_COMPILE = (
    "how long the vendor's compiler takes is not modelled. Published of it: 13 minutes for a step of BERT-Large with "
    "parallel compilation and 40 without, 30 to 60 minutes from 70 billion parameters on"
)
Held = Callable[[str, str], str]
_MOST_OPERATORS, _MOST_EFFECTS, _MOST_TENSORS = 12, 12, 5
_KINDS = {
    "parameters": "var(--tensor)",
    "copies": "var(--latency)",
    "gradients": "var(--vector)",
    "state": "var(--scalar)",
    "activations": "var(--gpsimd)",
    "batch": "var(--sync)",
    "temporaries": "var(--dma)",
}
_NAMES = {"copies": "copies of them in bf16", "state": "optimizer state"}
_IN_THE_WAY = (
    "Errors do not run as they are, warnings run otherwise than meant, notes hold for the vendor's stack alone."
)
_FULLEST = "At the moment at which one core holds most; what is not updated in place lives as long as it is read."
_COUNTS = "Each call of a program counts by how much its end moves the end of all before it."
_PRICES = (
    "One core's {what} as simulated. Prices are of whole instances with all cores at work, each on batches of its own"
    "{and_gradients}; "
)
_AND_GRADIENTS = ", the exchange of gradients counted in full"


def _unheld(_target: str, _stack: str) -> str:
    """Nothing is known."""
    return ""


def check(report: Report, held: Held = _unheld) -> Document:
    """All that is known. Where a step's time goes stands on the page alone. held: see `by_stack`."""
    sections = [*_findings(report.ordered()), *_operators(report), *_targets(report), *by_stack(report, held)]
    sections += _times(report, PAGE)
    sections += [*_operators_by_name(report), *effects(report.effects), *_vendor(report)]
    said = text.conclusion(report)
    return Document(
        Path(report.script).name,
        [Note(text.head(report), on=TERMINAL), *sections, Note(said, on=TERMINAL)],
        over=f"trnlab check for {', '.join(t.name for t in report.targets)}",
        lede="" if report.failed else sentence(said),
        notice=said if report.failed else "",
        about=text.head(report).removeprefix(f"{report.script}: "),
        name=f"check {Path(report.script).name}",
        record=lambda: to_json(report),
    )


def estimate(report: Report, held: Held = _unheld) -> Document:
    """What a step takes; of what is only in the way, a line each. held: see `by_stack`."""
    sections = [*_findings(f for f in report.ordered() if f.severity == ERROR), *_targets(report)]
    sections += [*by_stack(report, held), *_times(report, TERMINAL), *effects(report.effects), *_warned(report)]
    return Document(Path(report.script).name, [Note(text.head(report)), *sections], record=lambda: to_json(report))


def _findings(found: Iterable[Finding]) -> Iterator[Section]:
    parts = [_finding(f) for f in found]
    if parts:
        yield Section(heading="In the way", say=_IN_THE_WAY, parts=parts)


def _warned(report: Report) -> Iterator[Section]:
    """What a reader of a time has to know of it, such as that the host computes a part. Checks say where and why."""
    found = report.having(WARNING)
    if found:
        lines = Table([(f.code, f.what) for f in found])
        yield Section("warnings, of which trnlab check says where and why", [lines], heading="Warnings")


def _finding(f: Finding) -> Section:
    rows = []
    if f.place.file:
        where = f" in {f.place.function}" if f.place.function and f.place.function != "<module>" else ""
        rows.append(("at", f"{f.place}{where}" + (f" ({f.place.layer})" if f.place.layer else "")))
    rows += [("", f.place.text)] if f.place.text else []
    others = list(dict.fromkeys(str(p) for p in f.places if str(p) != str(f.place)))
    if others:
        rows.append(("and", ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")))
    rows += [(label, said) for label, said in (("why", f.why), ("do", f.do)) if said]
    return Section(f.what, [Table(rows)], mark=f"{f.severity:<8} {f.code}", grave=f.severity == ERROR)


def _operators(report: Report) -> Iterator[Section]:
    """How many operators are on the chip, refused, not compiled; the latter two by name."""
    rows = []
    for status, words in (("supported", "on the chip"), ("refused", "refused"), ("host", "not compiled")):
        some = [o for o in report.operators if o.status == status]
        named = f"of {len(some)} kinds"
        if status != "supported":
            named = ", ".join(f"{o.name.removeprefix('aten.')} x{o.count}" for o in some[:_MOST_OPERATORS])
            named += f" and {len(some) - _MOST_OPERATORS} more" if len(some) > _MOST_OPERATORS else ""
        if some:
            rows.append((words, f"{sum(o.count for o in some)}", named))
    if rows:
        yield Section(f"operators of a {text.what(report)}", [Table(rows, numbers=[1])])


def _operators_by_name(report: Report) -> Iterator[Section]:
    if report.operators:
        table = Table([(o.status, o.name, str(o.count)) for o in report.operators], ("", "operator", "times"), [2])
        yield Section(heading="Operators by name", parts=[table], on=PAGE)


def _targets(report: Report) -> Iterator[Section]:
    if not report.targets:
        yield Section(parts=[Note(note) for note in report.notes])
        return
    yield from _memory(report)
    jobs = [job(t.job, t, report) for t in report.targets if t.job is not None]
    notes = [Note(note) for note in report.notes]
    priced = "; ".join(dict.fromkeys(f"{t.name}: {t.price}" for t in report.targets if t.price))
    beside = [
        *jobs,
        *side_by_side(report, PAGE if jobs else BOTH),
        *notes,
        *(section for t in report.targets for section in reading(t)),
        *_not_alone(report),
    ]
    say = _PRICES.format(what=text.what(report), and_gradients=_AND_GRADIENTS * report.learns)
    yield Section(heading="Targets side by side", say=say + priced, parts=beside)


def _memory(report: Report) -> Iterator[Section]:
    """Bytes by what fills them, and the largest tensors, of each chip."""
    chips = {t.chip: t for t in reversed(report.targets)}
    parts: list[Part] = []
    for chip in dict.fromkeys(t.chip for t in report.targets):
        t = chips[chip]
        room = max(t.capacity, t.memory.total)
        sizes = {name: getattr(t.memory, name) for name in _KINDS if getattr(t.memory, name)}
        slices = [Slice(_NAMES.get(n, n), s / room, format_bytes(s), _KINDS[n]) for n, s in sizes.items()]
        bar = Bar(chip, [f"{format_bytes(t.memory.total)} of {format_bytes(t.capacity)}"], slices)
        rows = [(format_bytes(x.bytes), x.kind, x.name, f"{x.dtype}{list(x.shape)}") for x in t.memory.largest]
        head = ("bytes", "kind", "largest tensors", "shape")
        own = [Bars([bar]), Key([(s.name, s.colour, s.value) for s in slices])]
        own += [Table(rows[:_MOST_TENSORS], numbers=[0], on=TERMINAL), Table(rows, head, [0], on=PAGE)]
        parts.append(Section(heading=f"Memory of a core of {chip}", parts=own))
    which = "rank" if any(t.job for t in report.targets) else "core"
    yield Section(f"memory of one {which}'s {text.what(report)}", parts, say=_FULLEST)


def side_by_side(report: Report, on: str = BOTH) -> list[Part]:
    """The targets in rows. on: the renderer that has them."""
    unit, what = report.counted or "tokens", text.what(report)
    head = ["target", "one core holds it", f"{what if report.learns else 'latency'}, one core", "MFU"]
    head += [f"{unit}/s" if report.learns else f"{unit}/s, instance", "$/hour", f"$/{what}", f"$/million {unit}"]
    rows = [
        [
            t.name,
            "yes" if t.fits else f"no: {t.layout.cores} cores" if t.layout else "no",
            seconds(t.step_s),
            f"{100 * t.mfu:.1f} %" if t.mfu is not None else "-",
            f"{t.per_s:,.0f}" if t.per_s else "-",
            f"{t.usd_per_hour:.2f}" if t.usd_per_hour else "-",
            f"{t.usd_per_step:.3g}" if t.usd_per_step else "-",
            f"{t.usd_per_million:.3g}" if t.usd_per_million else "-",
        ]
        for t in report.targets
    ]
    if not report.learns:
        head.insert(4, f"{unit}/s, one core")
        for t, row in zip(report.targets, rows):
            row.insert(4, f"{t.per_s_of_core:,.0f}" if t.per_s_of_core else "-")
    of = f"dollars are of all cores of an instance, or of the fewest that hold the {what} where it has too few"
    of = f"rates and {of}" if report.learns else f"rates of an instance and {of}"
    table = Table(rows, head, range(2, len(head)), on=on)
    return [table, *([Note(of, on=on)] if any(t.per_s for t in report.targets) else [])]


def by_stack(report: Report, held: Held) -> Iterator[Section]:
    """What each target makes of it by programs of each stack. held: of a target and the text of a stack, how far
    estimates like these were off in published runs."""
    if len(report.stacks) < 2:
        return
    unit, what = report.counted or "tokens", text.what(report)
    head = ("target", "by", what, "MFU", f"{unit}/s", f"$/{what}", f"$/million {unit}", "published runs")
    rows = [
        (
            name.name,
            each.about,
            seconds(t.step_s if t.job is None else t.job.step_s),
            f"{100 * t.mfu:.1f} %" if t.mfu is not None else "-",
            *_spent(t),
            held(t.name, each.stack),
        )
        for i, name in enumerate(report.targets)
        for each in report.stacks
        for t in [each.targets[i]]
    ]
    columns = [n for n in range(len(head)) if n != len(head) - 1 or any(row[-1] for row in rows)]
    table = Table([tuple(row[n] for n in columns) for row in rows], [head[n] for n in columns], range(2, 7))
    first = report.stacks[0]
    say = (
        "What the vendor's software makes of it, and what this hardware can do by programs that trnlab compiles; all "
        f"else here is by {first.about}."
    )
    yield Section("by whose software", [table, Note(f"all else here is by {first.about}", on=TERMINAL)], say=say)


def _spent(t: TargetResult) -> tuple[str, str, str]:
    """Rate, and dollars of a step and of a million of what it counts: of the job where there is one."""
    of = t.job or t
    return tuple(  # type: ignore[return-value]
        format(value, form) if value else "-"
        for value, form in ((of.per_s, ",.0f"), (of.usd_per_step, ".3g"), (of.usd_per_million, ".3g"))
    )


def _not_alone(report: Report) -> Iterator[Section]:
    """Targets without a time, and those whose step no single core holds."""
    for t in report.targets:
        if t.why:
            yield Section(f"{t.name}: no time, because the compiler refuses it", [Note(t.why)])
        elif t.layout is not None and t.layout.cores > 1:
            yield Section(f"{t.name}: {text.layout_words(t, text.what(report))}", [Note(t.layout.basis)])


def _times(report: Report, on: str) -> Iterator[Section]:
    """Where a step's time goes, by phase and by module, and what compiling it takes."""
    for t in report.targets:
        if t.step_s:
            of, what = "rank" if t.job else "core", text.what(report)
            title = f"{t.name}: where the {seconds(t.step_s)} of one {of}'s {what} go"
            heading, parts = f"Where a {what}'s time goes on {t.name}", list(_breakdown(t, t.step_s))
            yield Section(title, parts, heading=heading, say=_COUNTS, on=on)
        if t.compiling_s and t.vendor:
            took = f"{t.name}: compiling took {seconds(t.compiling_s)} here, measured"
            yield Section(parts=[Note(f"{took}; {text.vendor_words(t.vendor)}")], on=on)


def _breakdown(t: TargetResult, whole: float) -> Iterator[Part]:
    def bar(name: str, s: float) -> Bar:
        return Bar.of(name, s / whole, seconds(s), f"{100 * s / whole:.1f} %")

    yield Bars([bar(name, s) for name, s in t.parts.items()], bare=True)
    if t.input_s:
        yield Note(f"and then   {seconds(t.input_s):>10}  waiting for data")
    if t.on_both is not None:
        yield Note(f"both cores of the rank's logical core share {t.on_both:.0%} of what is no collective")
    if t.limit:
        least = f"{seconds(t.limit['seconds'])} by {t.limit['by']}"
        yield Note(f"{t.limit['seconds'] / whole:.0%} of what this chip allows at best: {least}")
    yield Note("", on=TERMINAL)
    yield Section(heading="by module", parts=[Bars([bar(name, s) for name, s in t.modules], bare=True)])


def effects(found: Effects | None) -> Iterator[Section]:
    """What the script would have done besides, and what kept it from that; nothing where it was not kept."""
    if found is None:
        return
    done = ", ".join(found.allowed)
    kept = "the script was kept from this, which it would do when it is run" + (f" (but {done})" if done else "")
    title = "the script writes, deletes, starts and sends nothing" if found.none else kept
    rows = [(label, line) for label, lines in text.effects_rows(found) for line in lines]
    shown = [
        (label, line)
        for label, lines in text.effects_rows(found)
        for line in [
            *lines[:_MOST_EFFECTS],
            *([f"and {len(lines) - _MOST_EFFECTS} more"] if len(lines) > _MOST_EFFECTS else []),
        ]
    ]
    limit = [Note(found.limit)] if not found.none or found.protection != NAMESPACES else []
    say = f"Of this machine nothing was changed. {sentence(found.limit)}"
    tables = [Table(shown, on=TERMINAL), *([Table(rows, on=PAGE)] if rows else [Note(title, on=PAGE)])]
    limits = [Note(note.text, on=TERMINAL) for note in limit]
    yield Section(title, [*tables, *limits], heading="What the script would do besides", say=say)


def _vendor(report: Report) -> Iterator[Section]:
    if report.targets:
        said = f"compilation on the vendor's stack: {VENDOR_COMPILE}"
        yield Section(parts=[Note(said)], on=TERMINAL)
    yield Section(heading="Compilation on the vendor's stack", parts=[Note(VENDOR_COMPILE)], on=PAGE)
