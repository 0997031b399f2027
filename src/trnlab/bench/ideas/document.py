# SPDX-License-Identifier: Apache-2.0
"""Changes to a kernel for the terminal, as a page, as JSON, and in the few values that a program reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trnlab.bench.ideas.search import IdeaStep
from trnlab.bench.ideas.trial import TriedChange
from trnlab.documents import Document, HeadlineFigure, Note, Part, Section, Table
from trnlab.units import PS_PER_US, format_time

SAME, OTHER, UNCHECKED = "the same", "others", "not compared"


@dataclass(frozen=True)
class IdeasReport:
    """What was found for a kernel."""

    kernel: str
    target: str
    total: int  # picoseconds
    proposals: Sequence[TriedChange] = ()  # the changes that gain, each by itself
    steps: Sequence[IdeaStep] = ()  # those that were made
    tried: int = 0
    words: Sequence[dict[str, Any]] = field(default=())  # what else costs time, as `explanation` has it

    @property
    def best(self) -> int:
        """The time with all changes that were made; without any, with the best proposal that keeps the numbers."""
        kept = [t.total for t in self.proposals if t.keeps_numbers]
        return self.steps[-1].tried.total if self.steps else min([self.total, *kept])


def document(report: IdeasReport) -> Document:
    """The proposals by gain, how each is made, and the ladder of those that were made."""
    sections: list[Part] = []
    if report.steps:
        sections.append(Section(parts=[_ladder(report), *_how(s.tried for s in report.steps)], heading="Made"))
    elif report.proposals:
        sections.append(Section(parts=[_proposals(report), *_how(report.proposals)], heading="Proposals"))
    if report.words and not report.steps:
        head = ("what it costs", "what to do", "gains at most")
        rows = [(w["about"], w["do"], f"{w['gain_percent_at_most']:.1f} %") for w in report.words]
        sections.append(Section(parts=[Table(rows, head, (2,))], heading="In words"))
    factor = report.total / max(report.best, 1)
    said = "nothing that keeps the numbers makes it faster" if factor <= 1 else f"{factor:.2f} x"
    return Document(
        f"{report.kernel}: {format_time(report.total)}, {said}",
        sections,
        over="trnlab ideas",
        lede=f"{report.tried} changes were made and timed on {report.target}. A change keeps the numbers where the "
        "changed list of instructions, executed in the order of the program and in that of the timeline, gives the "
        "same bits for usual, zero and hostile inputs.",
        figures=[HeadlineFigure("faster with what was made" if report.steps else "by the best", f"{factor:.2f} x")],
        name="ideas",
        record=lambda: to_json(report),
    )


def _ladder(report: IdeasReport) -> Table:
    rows = [("", "as it is", format_time(report.total), "1.00", "1.00")]
    for number, s in enumerate(report.steps):
        factors = f"{s.factor:.2f}", f"{report.total / max(s.tried.total, 1):.2f}"
        rows.append((str(number + 1), s.tried.change.name, format_time(s.tried.total), *factors))
    return Table(rows, ("", "change", "time", "faster by", "in all"), (0, 2, 3, 4))


def _proposals(report: IdeasReport) -> Table:
    rows = [
        (t.change.name, format_time(t.total), f"{report.total / max(t.total, 1):.2f}", _bits(t), _place(t))
        for t in report.proposals
    ]
    return Table(rows, ("change", "time", "faster by", "bits", "is made"), (1, 2))


def _bits(tried: TriedChange) -> str:
    if tried.broken is None:
        return UNCHECKED
    return f"{OTHER}: {tried.broken[0]}" if tried.broken else SAME


def _place(tried: TriedChange) -> str:
    return "in the source" if tried.change.edit is not None else "on the recording"


def _how(some: Any) -> list[Part]:
    """What each is, why, and how it is written; once for each name."""
    changes = {t.change.name: t.change for t in some}
    return [Note(f"{c.name}: {c.what}. Why: {c.why} ({c.source}). How: {c.how}") for c in changes.values()]


def to_json(report: IdeasReport) -> dict[str, Any]:
    """The report as plain values; times in picoseconds."""
    return {
        "kernel": report.kernel,
        "target": report.target,
        "time_ps": report.total,
        "tried": report.tried,
        "proposals": [{**plain(t), "time_ps": t.total} for t in report.proposals],
        "made": [{**plain(s.tried), "time_ps": s.tried.total, "before_ps": s.before} for s in report.steps],
        "words": list(report.words),
    }


def plain(tried: TriedChange, total: int = 0) -> dict[str, Any]:
    """A change in a few values. total: the time without it; 0 leaves its gain out."""
    c = tried.change
    found: dict[str, Any] = {
        "name": c.name,
        "what": c.what,
        "why": c.why,
        "source": c.source,
        "how": c.how,
        "bits": _bits(tried),
        "in_source": c.edit is not None,
    }
    if total:
        found["time_us"] = tried.total / PS_PER_US
        found["faster_by"] = round(total / max(tried.total, 1), 3)
    return found
