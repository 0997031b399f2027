# SPDX-License-Identifier: Apache-2.0
"""Published training throughput against what trnlab says of the same job: checks, and nothing but checks.

A job is a script that `trnlab estimate` follows, or a model with a layout that the fleet's planner times.
`data/training/published.toml` holds the rows and what came out, which takes up to minutes each;
`tools/training_rows.py` makes it anew.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import median
from typing import Any

from trnlab.documents import Note, Section, Table


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A published run: `measured` sequences or images a second of all ranks."""

    name: str
    target: str
    ranks: int
    measured: float
    global_batch: int
    microbatch: int
    precision: str  # of the estimate
    published: str  # of the run, with its optimizer and release
    without: str = ""  # what the estimated job lacks, or why there is no estimate
    script: str = ""
    arguments: str = ""
    more: str = ""
    # first_s, more_s: estimated seconds of a step of one and of two micro-batches of a script, 0 where there is
    # none
    first_s: float = 0.0
    more_s: float = 0.0
    model: str = ""
    source: str = ""  # where the job's options are from
    # of a planned job: model, sequence, fields of `fleet.layout.Layout`, of `Planner` how stages are made
    layout: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # of its step, by cause

    @property
    def microbatches(self) -> int:
        """Microbatches of a rank in a step."""
        shared = self.layout.get("tensor", 1) * self.layout.get("pipeline", 1)
        return self.global_batch * int(shared) // (self.ranks * self.microbatch)

    @property
    def predicted(self) -> float | None:
        """Sequences or images a second; None without an estimate."""
        if self.seconds:
            return self.global_batch / sum(self.seconds.values())
        if not self.first_s or (self.microbatches > 1 and not self.more_s):
            return None
        step = self.first_s + (self.microbatches - 1) * (self.more_s - self.first_s if self.more_s else 0.0)
        return self.global_batch / step

    @property
    def error(self) -> float | None:
        """Relative to what was measured; positive when the prediction is too fast."""
        return None if self.predicted is None else self.predicted / self.measured - 1


def load() -> tuple[TrainingRow, ...]:
    """All published rows."""
    text = files(__package__).joinpath("data", "training", "published.toml").read_text(encoding="utf-8")
    return tuple(TrainingRow(**entry) for entry in tomllib.loads(text)["row"])


def to_json(rows: Sequence[TrainingRow]) -> list[dict[str, Any]]:
    """Every row, throughput a second."""
    return [
        {
            "run": r.name,
            "target": r.target,
            "ranks": r.ranks,
            "measured": r.measured,
            "predicted": r.predicted,
            "error": r.error,
            "precision": r.precision,
            "published": r.published,
            "without": r.without,
            "estimated": r.model,
            "layout": r.layout,
            "seconds": r.seconds,
            "used_for": "check",
        }
        for r in rows
    ]


def sections(rows: Sequence[TrainingRow]) -> Iterator[Section]:
    """Every row with its error and what it leans on, then the median; nothing where there is none."""
    if not rows:
        return
    title = "training, as published (checks alone; sequences or images a second)"
    yield Section(title, [Table([line for r in rows for line in _lines(r)], numbers=range(3))])
    errors = [abs(r.error) for r in rows if r.error is not None]
    if errors:
        said = f"{len(errors)} of {len(rows)} rows, median {median(errors):.1%}, worst {max(errors):.1%}"
        yield Section(parts=[Note(said)])


def _lines(r: TrainingRow) -> Iterator[tuple[str, ...]]:
    """What was run; below it measured, predicted, error and how; below that seconds by cause."""
    yield (f"{r.name} ({r.target}, {r.ranks} ranks; published: {r.published})",)
    if r.predicted is None or r.error is None:
        yield f"  {r.measured:.5g}", f"without {r.without}"
        return
    how = f"{r.precision}, estimated {r.model}, without {r.without}"
    yield f"  {r.measured:.5g}", f"{r.predicted:.5g}", f"{r.error:+.1%}", how
    if r.seconds:
        yield "", "", "", ", ".join(f"{name} {s:.3g} s" for name, s in r.seconds.items() if s)
