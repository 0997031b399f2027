# SPDX-License-Identifier: Apache-2.0
"""What a search found, for the terminal, as a page and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trnlab.bench.judging import WRONG
from trnlab.bench.tuning import Trial, TuneResult, TuneTask
from trnlab.documents import Curve, CurveChart, Document, HeadlineFigure, Note, Part, Section, Table
from trnlab.units import PS_PER_US, format_time

SHOWN = 10


def document(task: TuneTask, result: TuneResult) -> Document:
    """The best, the next ones, what each value costs, and what was refused."""
    ranked, best = result.ranked(), result.best
    tried = f"{len(result.trials)} of {len(task.space)} points were tried"
    reused = f", {result.reused} of them by an earlier search" if result.reused else ""
    sections: list[Part] = [Section(parts=[_points(task, ranked)], heading="The fastest")]
    wrong = [(t, j) for t, j in result.judged if j.verdict == WRONG]
    for trial, judgement in wrong:
        names = ", ".join(o.name for o in judgement.cases if not o.right)
        sections.append(Section(parts=[Note(f"{said(trial)} is wrong for {names}", loud=True)]))
    sections.append(Section("what each value costs, with the best of all others", [_values(task, ranked)]))
    sections += _progress(result)
    refused = Counter(t.refused for t in result.trials if t.refused)
    if refused:
        rows = [(str(count), why) for why, count in refused.most_common()]
        sections.append(Section("refused before they were timed", [Table(rows, ("points", "why"), (0,))]))
    gain = ranked[-1].total / ranked[0].total if ranked else 1.0
    return Document(
        f"{said(best[0])}: {format_time(best[0].total)}" if best else "no point is right",
        sections,
        over="trnlab tune",
        lede=f"{tried}{reused}.",
        figures=[HeadlineFigure("from the slowest to the fastest", f"{gain:.2f} x")] if len(ranked) > 1 else [],
        name="tune",
        record=lambda: to_json(task, result),
    )


def _progress(result: TuneResult) -> Iterator[Section]:
    """The best time after each point, in the order in which they were tried."""
    best: list[float | None] = []
    least = None
    for trial in result.trials:
        least = trial.total if trial.total and (least is None or trial.total < least) else least
        best.append(None if least is None else least / PS_PER_US)
    if len({each for each in best if each is not None}) > 1:
        curve = Curve("microseconds", "var(--accent)", best)
        chart = CurveChart([curve], "the best so far, in microseconds", along="point")
        yield Section(heading="The search", parts=[chart], on="page")


def said(trial: Trial) -> str:
    """The values of a point."""
    return ", ".join(f"{name}={value}" for name, value in trial.values.items())


def _points(task: TuneTask, ranked: list[Trial]) -> Table:
    names = list(task.space.values)
    first = ranked[0].total if ranked else 1
    rows = [
        (*(str(t.values[n]) for n in names), format_time(t.total), f"{t.total / first:.2f}", f"{t.instructions:,}")
        for t in ranked[:SHOWN]
    ]
    return Table(rows, (*names, "time", "to best", "instructions"), range(len(names), len(names) + 3))


def _values(task: TuneTask, ranked: list[Trial]) -> Table:
    first = ranked[0].total if ranked else 1
    rows = []
    for name, values in task.space.values.items():
        rows.append((name, "  ".join(_cheapest(name, value, ranked, first) for value in values)))
    return Table(rows, ("parameter", "values, each with the least time relative to the best"))


def _cheapest(name: str, value: Any, ranked: list[Trial], first: int) -> str:
    least = next((t.total for t in ranked if t.values[name] == value), None)
    return f"{value}: {least / first:.2f}" if least is not None else f"{value}: never runs"


def to_json(task: TuneTask, result: TuneResult) -> dict[str, Any]:
    """The search as plain values; times in picoseconds."""
    best = result.best
    return {
        "file": task.job.path,
        "points": len(task.space),
        "tried": len(result.trials),
        "reused": result.reused,
        "best": None if best is None else {"values": dict(best[0].values), "time_ps": best[0].total},
        "trials": list(_trials(result)),
    }


def _trials(result: TuneResult) -> Iterator[dict[str, Any]]:
    for t in [*result.ranked(), *(t for t in result.trials if t.refused)]:
        yield {
            "values": {
                name: value if isinstance(value, int | float | str | bool) else repr(value)
                for name, value in t.values.items()
            },
            "time_ps": t.total or None,
            "instructions": t.instructions,
            "refused": t.refused or None,
        }
