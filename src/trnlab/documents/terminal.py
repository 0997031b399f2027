# SPDX-License-Identifier: Apache-2.0
"""A document as text: no colours, and lines as long as what they say, so that a pipe gets all of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from trnlab.documents.model import (
    TERMINAL,
    Bar,
    Bars,
    Document,
    Note,
    Part,
    RangeBar,
    RangeBars,
    Section,
    Slice,
    SplitBar,
    SwingBars,
    Table,
    parts_on,
)
from trnlab.quoting import one_line

WIDTH = 24  # columns of a full bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


def text(document: Document) -> str:
    """The sections, an empty line between each and the next."""
    return "\n\n".join(blocks(document.sections))


def blocks(parts: Iterable[Part]) -> Iterator[str]:
    """The text of each section; one without a title is as many as there are sections in it, and what lies between."""
    loose: list[str] = []
    for part in parts_on(TERMINAL, parts):
        if not isinstance(part, Section):
            loose += _lines(part)
            continue
        if loose:
            yield "\n".join(loose)
            loose = []
        if part.title or part.mark:
            yield "\n".join(_titled(part))
        else:
            yield from blocks(part.parts)
    if loose:
        yield "\n".join(loose)


def _titled(section: Section) -> Iterator[str]:
    """The title, and the parts under it; the parts alone where it has none."""
    title = one_line(f"{section.mark}  {section.title}".strip())
    if title:
        yield title
    for part in parts_on(TERMINAL, section.parts):
        yield from (f"  {line}" if title and line else line for line in _lines(part))


def _lines(part: Part) -> Iterator[str]:
    if isinstance(part, Note):
        yield from map(one_line, part.text.split("\n"))
    elif isinstance(part, Table):
        yield from _table(part)
    elif isinstance(part, Bars):
        yield from _bars(part)
    elif isinstance(part, SplitBar):
        yield _named(part.slices)
    elif isinstance(part, RangeBars):
        yield from aligned([(row.name, _range(row, part.told)) for row in part.rows])
    elif isinstance(part, SwingBars):
        yield from aligned([(row.name, f"{row.less:+.1%}", f"{row.more:+.1%}") for row in part.rows], (1, 2))
    elif isinstance(part, Section):
        yield from _titled(part)


def _table(part: Table) -> Iterator[str]:
    shown = part.rows[: part.most] if part.most else part.rows
    yield from aligned([*([part.head] if part.head else []), *shown], part.numbers)
    if len(shown) < len(part.rows):
        yield f"and {len(part.rows) - len(shown)} more"


def _bars(part: Bars) -> Iterator[str]:
    rows = [(row.name, *row.values) if part.bare else _row(row) for row in part.rows]
    return aligned(rows, () if not rows else range(1, len(rows[0]) - (not part.bare)))


def _row(row: Bar) -> tuple[str, ...]:
    """With blocks for a bar of one slice, and with the names of several."""
    if len(row.slices) == 1:
        return row.name, *row.values, bar(row.slices[0].share)
    return row.name, *row.values[:-1], f"{row.values[-1]}:", _named(row.slices)


def _range(row: RangeBar, told: Callable[[float], str]) -> str:
    ends = f"{told(row.low)} to {told(row.high)}"
    return ends if row.middle is None else f"{told(row.middle)} ({ends})"


def _named(slices: Iterable[Slice]) -> str:
    return one_line(", ".join(f"{s.name} {s.value}" for s in slices if s.share))


def bar(share: float, width: int = WIDTH) -> str:
    """A horizontal bar of block characters, an eighth of a column exact."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def aligned(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> Iterator[str]:
    """A line for each row, columns two blanks apart. What spans columns is the last cell of a short row."""
    rows = [[*map(one_line, row)] for row in rows]
    columns = max(map(len, rows), default=0)
    widths = [
        max((len(row[i]) for row in rows if i < len(row) - (len(row) < columns)), default=0) for i in range(columns)
    ]
    for row in rows:
        cells = [cell.rjust(w) if i in numbers else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        if len(row) < columns:
            cells[-1] = row[-1]
        yield "  ".join(cells).rstrip()
