# SPDX-License-Identifier: Apache-2.0
"""Sections of the page that explain a step: what could make it faster, what held it up, and which lines cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from trnlab.documents import Bar, Bars, Drawing, Section, Slice, SplitBar, Table
from trnlab.documents.html import first_up, track
from trnlab.profile.names import nice_time, short_place
from trnlab.profile.pages.pictures import COLOURS
from trnlab.profile.stall_attribution import ENDS
from trnlab.profile.words import advice_text, waited
from trnlab.quoting import markup as escape
from trnlab.timeline import ENGINES
from trnlab.units import PS_PER_S

CAUSES, ADVICE = 12, 14  # shown of each
Summary = Mapping[str, Any]
Row = Mapping[str, Any]


def findings(s: Summary) -> Iterator[Section]:
    """All of them, those that a reader can act on first."""
    if "lost" not in s:
        return
    yield from _advice(s)
    yield _lost(s)
    yield _engines(s)
    yield _lines(s)


def steps(s: Summary) -> Iterator[Section]:
    """The steps of a training run side by side, where they are not all alike."""
    kinds = s.get("step_kinds", ())
    if len(kinds) < 2:
        return
    most = max(kind["step_time_s"] for kind in kinds) or 1
    rows = [
        Bar.of(_numbers(kind["steps"]), kind["step_time_s"] / most, nice_time(kind["step_time_s"] * PS_PER_S))
        for kind in kinds
    ]
    say = "Steps that ran the same programs take the chip the same time. The timeline below shows one of each."
    yield Section(heading="Steps", say=say, parts=[Bars(rows)])


def step_names(s: Summary) -> list[str]:
    """What the kinds of steps are called: the steps that are of the kind."""
    return [_numbers(kind["steps"]) for kind in s.get("step_kinds", ())]


def _numbers(ranges: list[list[int]]) -> str:
    count = sum(last - first + 1 for first, last in ranges)
    shown = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in ranges[:4]) + (", …" if len(ranges) > 4 else "")
    return f"{'step' if count == 1 else 'steps'} {shown}" + (f" ({count:,})" if len(ranges) > 1 else "")


def _advice(s: Summary) -> Iterator[Section]:
    if not s["advice"]:
        return
    most = max(entry["gain"] for entry in s["advice"])
    rows = "".join(_entry(entry, most, s["script"]) for entry in s["advice"][:ADVICE])
    say = (
        "How much shorter the step would be if one of these cost nothing: for each the program was timed again "
        "without it. That is the most that work on it can bring, and the gains do not add up."
    )
    drawn = Drawing(f'<ol class="advice">{rows}</ol>')
    yield Section(heading="What could make it faster", say=say, parts=[drawn])


def _entry(entry: Row, most: float, script: str) -> str:
    """An item of the list of advice: the gain, the cost, what to do."""
    bar = track(entry["gain"] / most, "var(--vector)")
    text = advice_text(entry, script)
    way = f"<small>{escape(first_up(entry['way']))}.</small>" if entry["way"] else ""
    return (
        f'<li><div class="gain"><b>{entry["gain"]:.1%}</b>{bar}<small>{nice_time(entry["gain_ps"])}</small></div>'
        f"<div>{escape(text if entry['line'] else first_up(text))}{way}</div></li>"
    )


def _lost(s: Summary) -> Section:
    total, rows = s["step_ps"], s["lost"]
    shown = [row for row in rows if row["cause"] or row["waiting_for"] == ENDS][:CAUSES]
    most = max((row["ps"] for row in shown), default=1)
    lines = [Bar.of(waited(row), row["ps"] / most, _share(row["ps"], total), colour=_colour(row)) for row in shown]
    by_whom: Counter[str] = Counter()
    for row in rows:
        by_whom[_group(row)] += row["ps"]
    whole = [Slice(name, ps / total, _share(ps, total), _of_group(name)) for name, ps in by_whom.most_common()]
    say = (
        "What the longest chain of instructions waited for, one after the other: an engine or a queue, why, and for "
        f"which tensor. All causes together are the step to the picosecond: {total:,} ps."
    )
    largest = Section(heading="The largest", parts=[Bars(lines, style="causes")])
    return Section(heading="Time lost by cause", say=say, parts=[SplitBar(whole), largest])


def _engines(s: Summary) -> Section:
    rows = [_engine(engine, use, s["step_ps"]) for engine, use in s["engine_time"].items()]
    say = (
        "Full colour: the engine works. Faint: it waits, in the colour of whom it waits for. Blank: before its first "
        "instruction and after its last."
    )
    return Section(heading="What each engine did", say=say, parts=[Bars(rows, style="engines")])


def _engine(engine: str, use: Row, total: int) -> Bar:
    """How long an engine was busy, and for whom it waited how long."""
    groups: Counter[str] = Counter()
    for wait in use["waiting"]:
        groups[_group(wait)] += wait["ps"]
    slices = [Slice("busy", use["busy_ps"] / total, colour=COLOURS[engine.split()[0]])]
    for name, ps in groups.most_common():
        faint = f"color-mix(in srgb, {_of_group(name)} 38%, var(--panel))"
        slices.append(Slice(f"waits for {name}", ps / total, nice_time(ps), faint))
    most = groups.most_common(1)
    value = f"{use['busy_ps'] / total:.0%} busy" + (f"; mostly waits for {most[0][0]}" if most else "")
    return Bar(engine, [value], slices)


def _lines(s: Summary) -> Section:
    total = s["step_ps"]
    head = ("critical path", "line", "", "instructions", "busy")
    rows = [
        (
            _share(line["critical_ps"], total),
            short_place(line["line"], s["script"]) or "unknown",
            line["text"],
            f"{line['instructions']:,}",
            nice_time(line["busy_ps"]),
        )
        for line in s["costliest_lines"]
    ]
    say = "By their time on the critical path; busy is that of all engines and queues, which overlap."
    return Section(heading="The costliest source lines", say=say, parts=[Table(rows, head, (0, 3, 4))])


def _group(row: Row) -> str:
    """Whom a row waits for: an engine, "dma", or neither."""
    name = str(row["waiting_for"])
    if " q" in name:
        return "dma"
    return name.split()[0] if name.split()[0] in ENGINES else name


def _of_group(name: str) -> str:
    return COLOURS.get(name, "var(--edge)")


def _colour(row: Row) -> str:
    return _of_group(_group(row))


def _share(ps: int, total: int) -> str:
    return f"{nice_time(ps)}, {ps / total:.1%}"
