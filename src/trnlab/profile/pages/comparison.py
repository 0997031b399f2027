# SPDX-License-Identifier: Apache-2.0
"""A comparison of two runs for a terminal, and as a page with both timelines on one scale."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from trnlab.documents.html import section, table
from trnlab.profile.compare import APPEARED, EQUAL, VANISHED, ActivityDelta, Comparison, by_opcode
from trnlab.profile.data import Profile, Step
from trnlab.profile.names import nice_time
from trnlab.profile.pages import pictures
from trnlab.profile.pages.page import document

ROWS = 8  # of each list in the terminal
MOST = 40  # of each list in the page
WIDEST = 76  # columns of a name in the terminal
TITLES = {"engine": "By engine", "opcode": "By opcode", "line": "By source line", "graph op": "By op of the graph"}
_WORK = (
    "Times are of instructions from start to result, and of transfers while their bytes flow; they overlap, so only "
    "the total is time on a clock."
)
_CRITICAL = (
    "Times are those on the critical path, which add up to the step, and so do the differences. Work is the time of "
    "all instructions from start to result and of all transfers, which overlap."
)


def verdict(c: Comparison) -> str:
    """The totals in a sentence."""
    (a, b), (x, y) = c.names, c.totals
    change = y / x - 1 if x else 0.0
    how = "as long" if abs(change) < 0.0005 else f"{abs(change):.1%} {'longer' if change > 0 else 'shorter'}"
    if change > 2:
        how = f"{1 + change:.3g} times as long"
    return f"{b} takes {nice_time(y)}, {a} {nice_time(x)}: {how}"


def text(c: Comparison) -> str:
    """What changed, each list with what changed most."""
    parts = [verdict(c)]
    if c.measured:
        parts.append(_agreement(c))
    for kind, title in TITLES.items():
        rows = [change for change in c.changes[kind] if change.verdict != EQUAL]
        if rows and not (c.measured and kind in ("line", "graph op")):
            more = [f"  and {len(rows) - ROWS} more"] if len(rows) > ROWS else []
            parts.append("\n".join([title, *(_line(row, c.measured) for row in rows[:ROWS]), *more]))
    if len(parts) == 1:
        parts.append("nothing changed")
    return "\n\n".join(parts)


def page(first: Profile, second: Profile, c: Comparison) -> str:
    """Both timelines one above the other, zooming together, and every list."""
    title = f"{c.names[0]} and {c.names[1]}"
    head = (
        f'<header>\n<p class="over">trnlab compare</p>\n<h1>{escape(title)}</h1>\n'
        f'<p class="lede">{escape(verdict(c))}.</p>\n</header>'
    )
    drawn = "".join(_drawn(profile, name) for profile, name in zip((first, second), c.names))
    body = [head, f'<div class="linked">{drawn}</div>', *_tables(c)]
    return document(title, "\n".join(body))


def _drawn(profile: Profile, name: str) -> str:
    step = profile.step
    assert isinstance(step, Step)
    return pictures.timeline({"script": profile.summary.get("script", "")}, step, title=name)


def _tables(c: Comparison) -> Iterator[str]:
    if c.measured:
        head = ("opcode", "engine", "pairs", c.names[0], c.names[1], "median error")
        rows = [
            (name, engine, str(count), nice_time(x), nice_time(y), f"{error:.1%}")
            for name, engine, count, x, y, error in by_opcode(c.pairs)
        ]
        say = "The n-th instruction of an engine, opcode and size in one run with the n-th of the same in the other."
        yield section("Instruction by instruction", say, table(head, rows, (2, 3, 4, 5)) + _alone(c))
    for kind, title in TITLES.items():
        changes = c.changes[kind]
        if c.measured and kind in ("line", "graph op"):
            continue
        head = ("", "", *c.names, "difference", "instructions", *(() if c.measured else ("work",)))
        shown = [_row(change, c.measured) for change in changes[:MOST]]
        more = f'<p class="over">and {len(changes) - MOST} more</p>' if len(changes) > MOST else ""
        yield section(title, _WORK if c.measured else _CRITICAL, table(head, shown, (1, 2, 3, 4, 5, 6)) + more)


def _alone(c: Comparison) -> str:
    """What is in one run only, in a paragraph each."""
    parts = []
    for name, alone in zip(c.names, c.unpaired):
        if alone:
            listed = ", ".join(f"{count} {what}" for what, count in alone.items())
            parts.append(f'<p class="over">Only in {escape(name)}: {escape(listed)}.</p>')
    return "".join(parts)


def _row(change: ActivityDelta, measured: bool) -> tuple[str, ...]:
    n, m = change.count
    known = (change.verdict != APPEARED, change.verdict != VANISHED)
    times = [nice_time(time) if there else "–" for time, there in zip(_times(change, measured), known)]
    work = [nice_time(time) if there else "–" for time, there in zip(change.time, known)]
    count = f"{n:,}" if n == m else f"{n:,} → {m:,}"
    more = () if measured else (work[0] if work[0] == work[1] else " → ".join(work),)
    return change.name, change.verdict, *times, _signed(change.difference), count, *more


def _times(change: ActivityDelta, measured: bool) -> tuple[int, int]:
    return change.time if measured else change.critical


def _line(change: ActivityDelta, measured: bool) -> str:
    a, b = (nice_time(time) for time in _times(change, measured))
    times = {APPEARED: f"{b} new", VANISHED: f"{a} gone"}.get(change.verdict, f"{a} to {b}")
    name = change.name if len(change.name) <= WIDEST else change.name[: WIDEST - 1] + "…"
    n, m = change.count
    count = f", {n:,} to {m:,} instructions" if n != m and n and m else ""
    return f"  {_signed(change.difference):>9}  {change.verdict:<8}  {name} ({times}{count})"


def _agreement(c: Comparison) -> str:
    """Instruction by instruction: how far predicted and measured durations lie apart."""
    rows = by_opcode(c.pairs)
    width = max((len(row[0]) for row in rows), default=6)
    lines = [
        f"{name:<{width}}  {engine:<7}{count:>6}{nice_time(x):>11}{nice_time(y):>11}{error:>9.1%}"
        for name, engine, count, x, y, error in rows
    ]
    head = f"{'opcode':<{width}}  engine  pairs{c.names[0][-10:]:>11}{c.names[1][-10:]:>11}    error"
    alone = [
        f"only in {name}: {', '.join(f'{n} {what}' for what, n in side.items())}"
        for name, side in zip(c.names, c.unpaired)
        if side
    ]
    return "\n".join(["Instruction by instruction, medians", head, *lines, *alone])


def _signed(ps: int) -> str:
    return ("+" if ps > 0 else "−" if ps < 0 else "") + nice_time(abs(ps))
