# SPDX-License-Identifier: Apache-2.0
"""Each part of a document has the form in a terminal and on a page that its description says."""

from __future__ import annotations

import re

import pytest

from trnlab.documents import (
    PAGE,
    TERMINAL,
    Bar,
    Bars,
    Document,
    Later,
    Note,
    RangeBar,
    RangeBars,
    ScatterChart,
    ScatterPoint,
    Section,
    Slice,
    SplitBar,
    SwingBar,
    SwingBars,
    Table,
    page,
    text,
)

HOSTILE = "<script>alert('x')</script>"


def _hostile(value):
    return HOSTILE


def lines(*parts):
    return text(Document("title", parts)).splitlines()


def body(*parts):
    """The page's content below its head."""
    return page(Document("title", parts)).split("</header>")[1].split("</main>")[0]


def test_sections_of_a_box_are_panels_and_those_of_a_panel_are_not():
    inner = Section("inner", [Note("said")])
    assert body(Section(parts=[inner], style="columns")).count("<section>") == 1
    assert '<div class="columns"><section>' in body(Section(parts=[inner], style="columns"))
    within = body(Section("outer", [Section(parts=[inner])]))
    assert within.count("<section>") == 1
    assert "<h3>inner</h3>" in within


def test_a_title_ends_without_its_colon_on_a_page():
    assert lines(Section("these:", [Note("one")])) == ["these:", "  one"]
    assert "<h2>These</h2>" in body(Section("these:", [Note("one")]))


def test_ranges_lie_on_one_logarithmic_scale():
    rows = [RangeBar("known", 1.0, 100.0, 10.0), RangeBar("a band alone", 10.0, 100.0)]
    part = RangeBars(rows, lambda value: f"${value:g}")
    assert lines(part) == ["known         $10 ($1 to $100)", "a band alone  $10 to $100"]
    found = body(part)
    assert re.findall(r"left:([\d.]+)%;width:([\d.]+)%", found) == [("0.00", "100.00"), ("50.00", "50.00")]
    assert found.count("<b ") == 1, "a mark for the middle, where there is one"


def test_swings_go_to_both_sides_of_the_middle():
    part = SwingBars([SwingBar("price", -0.2, 0.2), SwingBar("speed", 0.1, -0.05)])
    assert lines(part) == ["price  -20.0%  +20.0%", "speed  +10.0%   -5.0%"]
    spans = [(float(a), float(b)) for a, b in re.findall(r"left:([\d.]+)%;width:([\d.]+)%", body(part))]
    assert spans == [(2.0, 48.0), (50.0, 48.0), (50.0, 24.0), (38.0, 12.0)]


def test_points_are_drawn_on_logarithmic_axes():
    points = [ScatterPoint(1.0, 100.0, "first"), ScatterPoint(10.0, 10.0, "second", filled=True)]
    chart = ScatterChart(points, "points", (lambda x: f"{x:g} days", lambda y: f"${y:g}"))
    assert lines(chart) == []
    wide = body(chart).split("</svg>")[0]
    assert wide.count("<circle") == 2
    assert wide.count('fill="var(--accent)"') == 1


def test_what_a_page_leaves_out_is_counted():
    rows = [Bar.of(f"row {i}", 0.5, "half") for i in range(5)]
    assert "and 3 more" in body(Bars(rows, most_on_page=2))
    assert len(lines(Bars(rows, most_on_page=2))) == 5
    assert lines(Table([("a",), ("b",), ("c",)], most=1)) == ["a", "and 2 more"]


def test_columns_never_run_into_each_other():
    wide = "2,131,935 (1,766,558 to 2,357,242)"
    head, first, *_ = lines(Table([(wide, "264 MWh"), ("0", "1 kWh")], ("$ of the run", "energy")))
    assert first == f"{wide}  264 MWh"
    assert head.index("energy") == first.index("264")


def test_a_part_is_where_it_says_and_made_when_it_is_wanted():
    made = []
    late = Later(lambda: made.append(1) or [Note("late")], on=PAGE)
    assert lines(Note("here", on=TERMINAL), late) == ["here"]
    assert not made
    assert "Late." in body(Note("here", on=TERMINAL), late)
    assert "Here." not in body(Note("here", on=TERMINAL))


@pytest.mark.parametrize(
    "part",
    [
        Note(HOSTILE),
        Table([(HOSTILE,)], (HOSTILE,)),
        Bars([Bar.of(HOSTILE, 0.5, HOSTILE)]),
        SplitBar([Slice(HOSTILE, 0.5, HOSTILE)]),
        RangeBars([RangeBar(HOSTILE, 1.0, 2.0, 1.5)], lambda value: HOSTILE),
        SwingBars([SwingBar(HOSTILE, -0.1, 0.1, HOSTILE)]),
        ScatterChart(
            [ScatterPoint(1.0, 1.0, HOSTILE), ScatterPoint(2.0, 2.0, "")], HOSTILE, (lambda x: HOSTILE,) * 2
        ),
        Section(HOSTILE, [Note("said")], say=HOSTILE),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_page_escapes_what_is_said(part):
    assert "<script>alert" not in body(part)
