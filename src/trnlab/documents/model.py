# SPDX-License-Identifier: Apache-2.0
"""What a report is made of. Renderers: `terminal`, `page`, and `Document.json`.

Texts are plain: the page escapes them. A part is for both renderers unless its `on` says which one has it; curves,
points, keys of colours and drawings have no form in a terminal. Colours are CSS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import Any

from trnlab.documents.charts import Area, Curve, ScatterPoint
from trnlab.documents.notebooks import ShownInNotebooks

TERMINAL, PAGE, BOTH = "terminal", "page", "both"
ACCENT = "var(--accent)"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a section. on: which renderer has it, TERMINAL, PAGE or both."""

    on: str = BOTH


@dataclass(frozen=True)
class Note(Part):
    """A statement: a line of the terminal, a paragraph of the page. loud: the page sets it apart."""

    text: str
    loud: bool = False


@dataclass(frozen=True)
class Table(Part, ShownInNotebooks):
    """Rows of cells. A row that is shorter than the head ends in a cell that spans what is left."""

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    numbers: Collection[int] = ()  # columns that are set to the right
    links: Sequence[str] = ()  # of each row: where its first cell leads to on a page, "" for nowhere
    # most, most_on_page: rows that are shown there, 0 for all
    most: int = 0
    most_on_page: int = 0


@dataclass(frozen=True)
class Slice:
    """A piece of a bar."""

    name: str
    share: float  # of the bar's full width, 0 to 1
    value: str = ""  # as the page says it beside the name
    colour: str = ACCENT


@dataclass(frozen=True)
class Bar:
    """A row of bars: what it is of, its values as text, and one slice or several, one after the other."""

    name: str
    values: Sequence[str]
    slices: Sequence[Slice]

    @staticmethod
    def of(name: str, share: float, *values: str, colour: str = ACCENT) -> Bar:
        """A bar of one slice."""
        return Bar(name, values, (Slice(name, share, colour=colour),))


@dataclass(frozen=True)
class Bars(Part):
    """Bars below each other."""

    rows: Sequence[Bar]
    style: str = "slim"  # a class of the page's style sheet
    bare: bool = False  # the terminal has their values alone
    most_on_page: int = 0  # bars that are shown there, 0 for all


@dataclass(frozen=True)
class SplitBar(Part):
    """How one whole is divided, as one bar with the names and values of its slices."""

    slices: Sequence[Slice]


@dataclass(frozen=True)
class RangeBar:
    """A value that lies between two others. middle: None where the two are all that is known."""

    name: str
    low: float
    high: float
    middle: float | None = None


@dataclass(frozen=True)
class RangeBars(Part):
    """Ranges below each other on one logarithmic scale. told: makes text of a value."""

    rows: Sequence[RangeBar]
    told: Callable[[float], str]


@dataclass(frozen=True)
class SwingBar:
    """How a result changes with less and with more of something, relative to what it is. why: explains the row."""

    name: str
    less: float
    more: float
    why: str = ""


@dataclass(frozen=True)
class SwingBars(Part):
    """Changes to both sides of nothing, below each other."""

    rows: Sequence[SwingBar]


@dataclass(frozen=True)
class Key(Part):
    """What colours of the page mean: name, colour, value."""

    entries: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class CurveChart(Part):
    """Curves over their index, counted from one, above areas."""

    curves: Sequence[Curve]
    title: str  # of the picture
    areas: Sequence[Area] = ()
    along: str = "step"  # what is counted


@dataclass(frozen=True)
class ScatterChart(Part):
    """Points that a line joins in their order, on two logarithmic axes. told: makes text of a value of each axis."""

    points: Sequence[ScatterPoint]
    title: str
    told: tuple[Callable[[float], str], Callable[[float], str]]


@dataclass(frozen=True)
class Drawing(Part):
    """HTML of a picture that no other part draws; what stands in it is escaped already."""

    html: str


@dataclass(frozen=True)
class Later(Part):
    """Parts that are made only when a renderer wants them."""

    make: Callable[[], Iterable[Part]]


@dataclass(frozen=True)
class Section(Part):
    """Parts under a title; within another section under a smaller one."""

    title: str = ""  # the first line in the terminal, whose parts are indented below it; without one they are not
    parts: Sequence[Part] = ()
    heading: str = ""  # the title on the page where that is another one
    say: str = ""  # explains the section on the page
    mark: str = ""  # stands before the title in the colour of a warning
    grave: bool = False
    style: str = ""  # a class of the style sheet; without a title nothing is drawn around the parts


@dataclass(frozen=True)
class HeadlineFigure:
    """A large number at the head of a page, with what it is and a remark."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Document(ShownInNotebooks):
    """A result for people and programs."""

    # title, over, lede, notice, about, figures: the head of the page: its heading, the line above, its first
    # sentence, a warning, details, large numbers
    title: str
    sections: Sequence[Part]
    over: str = ""
    lede: str = ""
    notice: str = ""
    about: str = ""
    figures: Sequence[HeadlineFigure] = ()
    name: str = ""  # of the page's window
    foot: str = ""  # its last line
    scripts: Sequence[Traversable] = ()  # files that its drawings need
    record: Callable[[], Mapping[str, Any]] = field(default=dict)  # makes what `json` says

    def json(self) -> str:
        """The record as text."""
        return json.dumps(self.record(), indent=2)


def parts_on(renderer: str, parts: Iterable[Part]) -> Iterable[Part]:
    """The parts that a renderer has, those that are made later among them."""
    for part in parts:
        if part.on in (renderer, BOTH):
            if isinstance(part, Later):
                yield from parts_on(renderer, part.make())
            else:
                yield part
