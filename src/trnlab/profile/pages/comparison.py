# SPDX-License-Identifier: Apache-2.0
"""A comparison of two runs as a document; its page has both timelines on one scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trnlab.documents import PAGE, TERMINAL, Document, Later, Note, Part, Section, Table
from trnlab.profile.compare import APPEARED, EQUAL, VANISHED, ActivityDelta, Comparison, by_opcode
from trnlab.profile.data import Profile, Step
from trnlab.profile.names import nice_time
from trnlab.profile.pages import pictures
from trnlab.profile.pages.page import SCRIPTS

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


def document(c: Comparison, runs: Sequence[Profile] = ()) -> Document:
    """What changed, each list with what changed most. runs: both, whose timelines the page has one above the other,
    zooming together."""
    told = list(_changed(c))
    return Document(
        f"{c.names[0]} and {c.names[1]}",
        [
            Note(verdict(c), on=TERMINAL),
            *([_agreement(c)] if c.measured else []),
            *(told or ([] if c.measured else [Section(parts=[Note("nothing changed")], on=TERMINAL)])),
            Later(lambda: [_timelines(c, runs)] if runs else [], on=PAGE),
            *([_instructions(c)] if c.measured else []),
            *_lists(c),
        ],
        over="trnlab compare",
        lede=f"{verdict(c)}.",
        scripts=SCRIPTS,
        record=c.to_json,
    )


def _timelines(c: Comparison, runs: Sequence[Profile]) -> Section:
    """The timelines of both, one above the other."""
    return Section(parts=[_drawn(run, name) for run, name in zip(runs, c.names)], style="linked")


def _drawn(profile: Profile, name: str) -> Section:
    step = profile.step
    assert isinstance(step, Step)
    return pictures.timeline({"script": profile.summary.get("script", "")}, step, title=name)


def _kinds(c: Comparison) -> Iterator[tuple[str, list[ActivityDelta]]]:
    """Lists by their titles; a measured run knows neither lines nor ops of the graph."""
    for kind, title in TITLES.items():
        if not (c.measured and kind in ("line", "graph op")):
            yield title, c.changes[kind]


def _changed(c: Comparison) -> Iterator[Section]:
    """What is not as it was, for the terminal."""
    for title, changes in _kinds(c):
        rows = [_line(change, c.measured) for change in changes if change.verdict != EQUAL]
        if rows:
            yield Section(title, [Table(rows, numbers=[0], most=ROWS)], on=TERMINAL)


def _lists(c: Comparison) -> Iterator[Section]:
    """All there is, for the page."""
    head = ("", "", *c.names, "difference", "instructions", *(() if c.measured else ("work",)))
    for title, changes in _kinds(c):
        table = Table([_row(change, c.measured) for change in changes], head, range(1, 7), most_on_page=MOST)
        yield Section(heading=title, say=_WORK if c.measured else _CRITICAL, parts=[table], on=PAGE)


def _pairs(c: Comparison) -> list[tuple[str, ...]]:
    """A row for each opcode: engine, pairs, the median duration in both runs, and how far pairs lie apart."""
    return [
        (name, engine, str(count), nice_time(x), nice_time(y), f"{error:.1%}")
        for name, engine, count, x, y, error in by_opcode(c.pairs)
    ]


def _alone(c: Comparison) -> list[Part]:
    """What is in one run only, a statement for each."""
    return [
        Note(f"only in {name}: {', '.join(f'{count} {what}' for what, count in alone.items())}")
        for name, alone in zip(c.names, c.unpaired)
        if alone
    ]


def _agreement(c: Comparison) -> Section:
    """Instruction by instruction: how far predicted and measured durations lie apart."""
    head = ("opcode", "engine", "pairs", c.names[0][-10:], c.names[1][-10:], "error")
    parts = [Table(_pairs(c), head, (2, 3, 4, 5)), *_alone(c)]
    return Section("Instruction by instruction, medians", parts, on=TERMINAL)


def _instructions(c: Comparison) -> Section:
    """The same for the page."""
    head = ("opcode", "engine", "pairs", c.names[0], c.names[1], "median error")
    say = "The n-th instruction of an engine, opcode and size in one run with the n-th of the same in the other."
    parts = [Table(_pairs(c), head, (2, 3, 4, 5)), *_alone(c)]
    return Section(heading="Instruction by instruction", say=say, parts=parts, on=PAGE)


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


def _line(change: ActivityDelta, measured: bool) -> tuple[str, str, str]:
    a, b = (nice_time(time) for time in _times(change, measured))
    times = {APPEARED: f"{b} new", VANISHED: f"{a} gone"}.get(change.verdict, f"{a} to {b}")
    name = change.name if len(change.name) <= WIDEST else change.name[: WIDEST - 1] + "…"
    n, m = change.count
    count = f", {n:,} to {m:,} instructions" if n != m and n and m else ""
    return _signed(change.difference), change.verdict, f"{name} ({times}{count})"


def _signed(ps: int) -> str:
    return ("+" if ps > 0 else "−" if ps < 0 else "") + nice_time(abs(ps))
