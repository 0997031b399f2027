# SPDX-License-Identifier: Apache-2.0
"""A document as one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnlab.documents import charts, html
from trnlab.documents.model import (
    PAGE,
    Bars,
    CurveChart,
    Document,
    Drawing,
    HeadlineFigure,
    Key,
    Note,
    Part,
    RangeBars,
    ScatterChart,
    Section,
    Slice,
    SplitBar,
    SwingBars,
    Table,
    parts_on,
)
from trnlab.documents.notebooks import LOW, framed, shows
from trnlab.quoting import markup as escape


def page(document: Document) -> str:
    """The whole page."""
    return html.document(document.name or document.title, body(document), document.scripts)


def body(document: Document) -> str:
    """What a page shows of it, for a page that has its style and its scripts."""
    parts = [_head(document), *map(_html, parts_on(PAGE, document.sections))]
    parts += [f"<footer>{escape(document.foot)}</footer>"] if document.foot else []
    return "\n".join(parts)


def _head(d: Document) -> str:
    lines = [
        html.paragraph("over", d.over),
        f"<h1>{escape(d.title)}</h1>" if d.title else "",
        html.paragraph("lede", d.lede),
        html.notice(d.notice),
        html.paragraph("say", d.about),
        f'<dl class="figures">{"".join(map(_figure, d.figures))}</dl>' if d.figures else "",
    ]
    return "\n".join(["<header>", *filter(None, lines), "</header>"])


def _figure(figure: HeadlineFigure) -> str:
    value = f"{escape(figure.value)}<small>{escape(figure.remark)}</small>"
    return f"<div><dt>{escape(figure.name)}</dt><dd>{value}</dd></div>"


def _html(part: Part) -> str:
    return _RENDERERS[type(part)](part)


def _section(s: Section) -> str:
    """A panel; what has no title is no panel, only the parts in a box of its style."""
    title = s.heading or html.first_up(s.title).rstrip(":")
    content = "".join(map(_within if title else _html, parts_on(PAGE, s.parts)))
    return html.section(title, s.say, content, s.style) if title else _box(s.style, content)


def _box(style: str, content: str) -> str:
    return f'<div class="{style}">{content}</div>' if style else content


def _within(part: Part) -> str:
    """A part of a panel; sections have a smaller title there."""
    if not isinstance(part, Section):
        return _html(part)
    content = "".join(map(_within, parts_on(PAGE, part.parts)))
    if not (part.title or part.heading):
        return _box(part.style, content)
    colour = "var(--scalar)" if part.grave else "inherit"
    mark = f'<span style="color:{colour}">{escape(part.mark)}</span> ' if part.mark else ""
    return f"<h3>{mark}{escape(part.heading or part.title)}</h3>{html.paragraph('say', part.say)}{content}"


def _note(note: Note) -> str:
    said = html.sentence(note.text)
    return html.notice(said) if note.loud else html.paragraph("say", said)


def _table(t: Table) -> str:
    shown = t.rows[: t.most_on_page or None]
    return html.table(t.head, shown, t.numbers, t.links) + _more(len(t.rows) - len(shown))


def _more(left: int) -> str:
    return html.paragraph("over", f"and {left} more" if left else "")


def _bars(part: Bars) -> str:
    shown = part.rows[: part.most_on_page or None]
    rows = ((r.name, _bar(r.slices), ", ".join(filter(None, r.values))) for r in shown)
    return html.bars(rows, part.style) + _more(len(part.rows) - len(shown))


def _bar(slices: Sequence[Slice]) -> str:
    return html.track(slices[0].share, slices[0].colour) if len(slices) == 1 else _stack(slices)


def _stack(slices: Sequence[Slice]) -> str:
    return html.stack((f"{s.name}: {s.value}" if s.value else s.name, s.colour, s.share) for s in slices)


def _split(part: SplitBar) -> str:
    return _stack(part.slices) + html.key((s.name, s.colour, s.value) for s in part.slices)


def _key(part: Key) -> str:
    return html.key(part.entries)


def _curves(part: CurveChart) -> str:
    return charts.both(charts.line_chart(part.curves, part.areas, part.along), part.title)


def _scatter(part: ScatterChart) -> str:
    return charts.both(charts.scatter(part.points, *part.told), part.title)


def _ranges(part: RangeBars) -> str:
    return html.ranges([(r.name, r.low, r.high, r.middle) for r in part.rows], part.told)


def _swings(part: SwingBars) -> str:
    return html.swings([(r.name, r.less, r.more, r.why) for r in part.rows])


def _drawing(part: Drawing) -> str:
    return part.html


_RENDERERS: dict[type[Part], Callable[[Any], str]] = {
    Section: _section,
    Note: _note,
    Table: _table,
    Bars: _bars,
    SplitBar: _split,
    Key: _key,
    CurveChart: _curves,
    ScatterChart: _scatter,
    RangeBars: _ranges,
    SwingBars: _swings,
    Drawing: _drawing,
}

shows(Document, lambda made: framed(page(made)))
shows(Table, lambda made: framed(page(Document("", [made])), LOW))
