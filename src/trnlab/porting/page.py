# SPDX-License-Identifier: Apache-2.0
"""The report as one page, in the manner of a run's report."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from trnlab.documents import html
from trnlab.documents.html import document, section
from trnlab.findings import ERROR, Finding
from trnlab.porting.result import Report, TargetResult
from trnlab.porting.text import VENDOR_COMPILE, conclusion, effects_rows, head, layout_words, reading, seconds
from trnlab.units import format_bytes

_KINDS = (
    ("parameters", "var(--tensor)"),
    ("gradients", "var(--vector)"),
    ("state", "var(--scalar)"),
    ("copies", "var(--latency)"),
    ("activations", "var(--gpsimd)"),
    ("batch", "var(--sync)"),
    ("temporaries", "var(--dma)"),
)


def page(report: Report) -> str:
    """The whole page."""
    body = [_top(report), *_findings(report), *_side_by_side(report), *_memory(report), *_time(report)]
    body += [*_operators(report), *_effects(report), _compilation()]
    return document(f"check {Path(report.script).name}", "\n".join(body))


def _top(r: Report) -> str:
    said = escape(conclusion(r))
    verdict = (
        f'<p class="notice"><b>{said}</b></p>' if r.failed else f'<p class="lede">{said[:1].upper()}{said[1:]}.</p>'
    )
    about = head(r).removeprefix(f"{r.script}: ")
    return (
        f'<header>\n<p class="over">trnlab check for {escape(", ".join(t.name for t in r.targets))}</p>\n'
        f'<h1>{escape(Path(r.script).name)}</h1>{verdict}<p class="say">{escape(about)}</p></header>'
    )


def _findings(r: Report) -> Iterator[str]:
    if not r.findings:
        return
    say = "Errors do not run as they are, warnings run otherwise than meant, notes hold for the vendor's stack alone."
    yield section("In the way", say, "\n".join(_finding(f) for f in r.ordered()))


def _finding(f: Finding) -> str:
    rows = [("at", str(f.place) + (f" ({f.place.layer})" if f.place.layer else ""))] if f.place.file else []
    rows += [("", f.place.text)] if f.place.text else []
    rows += [("and", ", ".join(map(str, f.places)))] if f.places else []
    rows += [(label, text) for label, text in (("why", f.why), ("do", f.do)) if text]
    colour = "var(--scalar)" if f.severity == ERROR else "inherit"
    title = f'<h3><span style="color:{colour}">{f.severity} {f.code}</span> {escape(f.what)}</h3>'
    return title + html.table((), rows)


def _side_by_side(r: Report) -> Iterator[str]:
    if not r.targets:
        yield "".join(f'<p class="say">{escape(note)}</p>' for note in r.notes)
        return
    unit = r.counted or "tokens"
    top = (
        "target",
        "one core holds it",
        "step of one core",
        "MFU",
        f"{unit}/s",
        "$/hour",
        "$/step",
        f"$/million {unit}",
    )
    rows = [_row(t) for t in r.targets]
    say = (
        "One core's step as simulated. Prices are of whole instances with all cores at work, each on batches of its "
        "own, the exchange of gradients counted in full; "
        + "; ".join(dict.fromkeys(f"{t.name}: {t.price}" for t in r.targets if t.price))
    )
    notes = "".join(f'<p class="say">{escape(note[:1].upper() + note[1:])}.</p>' for note in r.notes) + "".join(
        f'<p class="say"><b>{escape(t.name)}</b> {escape(_not_alone(t))}</p>' for t in r.targets if _not_alone(t)
    )
    notes += "".join(f'<p class="say">{escape(line.strip())}.</p>' for t in r.targets for line in reading(t))
    yield section("Targets side by side", say, html.table(top, rows, range(2, 8)) + notes)


def _row(t: TargetResult) -> tuple[str, ...]:
    held = "yes" if t.fits else f"no: {t.layout.cores} cores" if t.layout else "no"
    return (
        t.name,
        held,
        seconds(t.step_s),
        f"{100 * t.mfu:.1f} %" if t.mfu is not None else "-",
        f"{t.per_s:,.0f}" if t.per_s else "-",
        f"{t.usd_per_hour:.2f}" if t.usd_per_hour else "-",
        f"{t.usd_per_step:.3g}" if t.usd_per_step else "-",
        f"{t.usd_per_million:.3g}" if t.usd_per_million else "-",
    )


def _not_alone(t: TargetResult) -> str:
    if t.why:
        return f"has no time, because the compiler refuses the step: {t.why}"
    return layout_words(t) if t.layout is not None and t.layout.cores > 1 else ""


def _memory(r: Report) -> Iterator[str]:
    seen: dict[str, TargetResult] = {}
    for t in r.targets:
        seen.setdefault(t.chip, t)
    for chip, t in seen.items():
        room = max(t.capacity, t.memory.total)
        parts = [(name, colour, getattr(t.memory, name)) for name, colour in _KINDS]
        bar = html.stack((f"{name} {format_bytes(size)}", colour, size / room) for name, colour, size in parts)
        value = f"{format_bytes(t.memory.total)} of {format_bytes(t.capacity)}"
        key = html.key((name, colour, format_bytes(size)) for name, colour, size in parts if size)
        rows = [(format_bytes(x.bytes), x.kind, x.name, f"{x.dtype}{list(x.shape)}") for x in t.memory.largest]
        largest = html.table(("bytes", "kind", "largest tensors", "shape"), rows, (0,))
        say = "At the moment at which one core holds most; what is not updated in place lives as long as it is read."
        yield section(f"Memory of a core of {chip}", say, html.bars([("HBM", bar, value)]) + key + largest)


def _time(r: Report) -> Iterator[str]:
    for t in r.targets:
        if not t.step_s:
            continue
        whole = t.step_s + t.input_s
        parts = [(n, html.track(s / whole, "var(--accent)"), seconds(s)) for n, s in t.parts.items()]
        parts += [("data", html.track(t.input_s / whole, "var(--accent)"), seconds(t.input_s))] if t.input_s else []
        modules = [(n, html.track(s / whole, "var(--accent)"), seconds(s)) for n, s in t.modules]
        say = "Each call of a program counts by how much its end moves the end of all before it."
        content = html.bars(parts, "slim") + "<h3>by module</h3>" + html.bars(modules, "slim")
        yield section(f"Where a step's time goes on {t.name}", say, content)


def _operators(r: Report) -> Iterator[str]:
    if not r.operators:
        return
    rows = [(o.status, o.name, str(o.count)) for o in r.operators]
    yield section("Operators of a step", "", html.table(("", "operator", "times"), rows, (2,)))


def _effects(r: Report) -> Iterator[str]:
    if r.effects is None:
        return
    rows = [(label, line) for label, lines in effects_rows(r.effects) for line in lines]
    say = f"Of this machine nothing was changed. {r.effects.limit[:1].upper()}{r.effects.limit[1:]}."
    nothing = '<p class="say">It writes, deletes, starts and sends nothing.</p>'
    yield section("What the script would do besides", say, html.table((), rows) if rows else nothing)


def _compilation() -> str:
    return section(
        "Compilation on the vendor's stack",
        "",
        f'<p class="say">{escape(VENDOR_COMPILE[:1].upper() + VENDOR_COMPILE[1:])}.</p>',
    )
