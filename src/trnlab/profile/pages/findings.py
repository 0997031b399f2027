# SPDX-License-Identifier: Apache-2.0
"""Sections of the page that explain a step: what could make it faster, what held it up, and which lines cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from trnlab.documents.html import bars, key, section, stack, table, track
from trnlab.profile.names import nice_time, short_place
from trnlab.profile.pages.pictures import COLOURS
from trnlab.profile.stall_attribution import ENDS
from trnlab.profile.words import advice_text, waited
from trnlab.timeline import ENGINES

CAUSES, ADVICE = 12, 14  # shown of each
Summary = Mapping[str, Any]
Row = Mapping[str, Any]


def findings(s: Summary) -> Iterator[str]:
    """All of them, those that a reader can act on first."""
    if "lost" not in s:
        return
    yield from _advice(s)
    yield _lost(s)
    yield _engines(s)
    yield _lines(s)


def steps(s: Summary) -> Iterator[str]:
    """The steps of a training run side by side, where they are not all alike."""
    kinds = s.get("step_kinds", ())
    if len(kinds) < 2:
        return
    most = max(kind["step_time_s"] for kind in kinds) or 1
    rows = [
        (
            _numbers(kind["steps"]),
            track(kind["step_time_s"] / most, "var(--accent)"),
            _time(kind["step_time_s"] * 1e12),
        )
        for kind in kinds
    ]
    say = "Steps that ran the same programs take the chip the same time. The timeline below shows one of each."
    yield section("Steps", say, bars(rows, "slim"))


def step_names(s: Summary) -> list[str]:
    """What the kinds of steps are called: the steps that are of the kind."""
    return [_numbers(kind["steps"]) for kind in s.get("step_kinds", ())]


def _numbers(ranges: list[list[int]]) -> str:
    count = sum(last - first + 1 for first, last in ranges)
    shown = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in ranges[:4]) + (", …" if len(ranges) > 4 else "")
    return f"{'step' if count == 1 else 'steps'} {shown}" + (f" ({count:,})" if len(ranges) > 1 else "")


def _advice(s: Summary) -> Iterator[str]:
    if not s["advice"]:
        return
    most = max(entry["gain"] for entry in s["advice"])
    rows = "".join(_entry(entry, most, s["script"]) for entry in s["advice"][:ADVICE])
    say = (
        "How much shorter the step would be if one of these cost nothing: for each the program was timed again "
        "without it. That is the most that work on it can bring, and the gains do not add up."
    )
    yield section("What could make it faster", say, f'<ol class="advice">{rows}</ol>')


def _entry(entry: Row, most: float, script: str) -> str:
    """An item of the list of advice: the gain, the cost, what to do."""
    bar = track(entry["gain"] / most, "var(--vector)")
    text = advice_text(entry, script)
    way = f"<small>{escape(_first_up(entry['way']))}.</small>" if entry["way"] else ""
    return (
        f'<li><div class="gain"><b>{entry["gain"]:.1%}</b>{bar}<small>{escape(_time(entry["gain_ps"]))}</small></div>'
        f"<div>{escape(text if entry['line'] else _first_up(text))}{way}</div></li>"
    )


def _lost(s: Summary) -> str:
    total, rows = s["step_ps"], s["lost"]
    shown = [row for row in rows if row["cause"] or row["waiting_for"] == ENDS][:CAUSES]
    most = max((row["ps"] for row in shown), default=1)
    lines = [(waited(row), track(row["ps"] / most, _colour(row)), _share(row["ps"], total)) for row in shown]
    by_whom: Counter[str] = Counter()
    for row in rows:
        by_whom[_group(row)] += row["ps"]
    parts = by_whom.most_common()
    whole = stack((f"{name}: {_time(ps)}", _of_group(name), ps / total) for name, ps in parts)
    names = key((name, _of_group(name), f"{ps / total:.1%}") for name, ps in parts)
    say = (
        "What the longest chain of instructions waited for, one after the other: an engine or a queue, why, and for "
        f"which tensor. All causes together are the step to the picosecond: {total:,} ps."
    )
    return section("Time lost by cause", say, f"{whole}{names}<h3>The largest</h3>{bars(lines, 'causes')}")


def _engines(s: Summary) -> str:
    total, rows = s["step_ps"], []
    for engine, use in s["engine_time"].items():
        groups: Counter[str] = Counter()
        for wait in use["waiting"]:
            groups[_group(wait)] += wait["ps"]
        parts = [("busy", COLOURS[engine.split()[0]], use["busy_ps"] / total)]
        parts += [
            (f"waits for {name}: {_time(ps)}", f"color-mix(in srgb, {_of_group(name)} 38%, var(--panel))", ps / total)
            for name, ps in groups.most_common()
        ]
        most = groups.most_common(1)
        value = f"{use['busy_ps'] / total:.0%} busy" + (f"; mostly waits for {most[0][0]}" if most else "")
        rows.append((engine, stack(parts), value))
    say = (
        "Full colour: the engine works. Faint: it waits, in the colour of whom it waits for. Blank: before its first "
        "instruction and after its last."
    )
    return section("What each engine did", say, bars(rows, "engines"))


def _lines(s: Summary) -> str:
    total = s["step_ps"]
    head = ("critical path", "line", "", "instructions", "busy")
    rows = [
        (
            _share(line["critical_ps"], total),
            short_place(line["line"], s["script"]) or "unknown",
            line["text"],
            f"{line['instructions']:,}",
            _time(line["busy_ps"]),
        )
        for line in s["costliest_lines"]
    ]
    say = "By their time on the critical path; busy is that of all engines and queues, which overlap."
    return section("The costliest source lines", say, table(head, rows, (0, 3, 4)))


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
    return f"{_time(ps)}, {ps / total:.1%}"


def _time(ps: float) -> str:
    return nice_time(ps)


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
