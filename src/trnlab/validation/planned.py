# SPDX-License-Identifier: Apache-2.0
"""Published training runs beside what `trnlab plan` answers: of these the bands of plans and bake-offs are made.

`data/training/as_planned.toml` holds the rows and what came out; `tools/planned_rows.py` makes it anew. The rows of
`training` are computed as their release did things, these as the command does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol

from trnlab.chips.catalog import TARGETS
from trnlab.documents import Note, Section, Table
from trnlab.fleet.comparison.contenders import ENOUGH, PlanAccuracy
from trnlab.fleet.models.configurations import model
from trnlab.fleet.planning.plan import plan
from trnlab.fleet.planning.question import Question
from trnlab.fleet.search.layout import pinned
from trnlab.stacks import LIBRARIES, NAMES, NEWEST, OURS, VENDOR, Stack, parse

LAID_OUT = "Each with the layout of its source, the vendor's stack in the run's release and library (docs/stacks.md)."
STEPS = 1000.0  # that a plan of a row is of; a step's time does not depend on it


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A published run."""

    name: str
    model: str
    target: str
    instances: int
    batch: int
    precision: str
    layout: str
    measured: float  # sequences or images a second of all instances
    # step_s, vendor_s: of the plan with this layout, whose other columns are the command's choice, by trnlab's
    # compiler and by the vendor's stack of the run's release and library
    step_s: float = 0.0
    sequence: int = 0  # 0 for the model's own
    source: str = ""  # where it is not the vendor's table
    release: str = NEWEST
    library: str = LIBRARIES[0]
    vendor_s: float = 0.0
    split: str = "check"  # calibration where the stack's figures were fitted to it

    @property
    def stack(self) -> Stack:
        """The vendor's that the run was published with."""
        return parse(f"{VENDOR},release={self.release},library={self.library}")

    def rate(self, stack: str) -> float:
        """Sequences or images a second, as planned. stack: OURS or VENDOR."""
        return self.batch / (self.step_s if stack == OURS else self.vendor_s)

    def error(self, stack: str) -> float:
        """Error of the planned rate, relative to what was measured; positive when the plan is too fast."""
        return self.rate(stack) / self.measured - 1


class MeasuredRate(Protocol):
    """A published run of any kind, beside what trnlab says of it under both stacks."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def split(self) -> str:
        """Calibration or check."""
        ...

    @property
    def measured(self) -> float:
        """A second."""
        ...

    def rate(self, stack: str) -> float:
        """The same as predicted."""
        ...

    def error(self, stack: str) -> float:
        """Error of the rate, relative to what was measured."""
        ...


@cache
def load() -> tuple[PlannedRow, ...]:
    """All rows."""
    text = files(__package__).joinpath("data", "training", "as_planned.toml").read_text(encoding="utf-8")
    return tuple(PlannedRow(**entry) for entry in tomllib.loads(text)["row"])


def step_of(row: PlannedRow, stack: Stack, folder: Path | None = None) -> float:
    """Seconds of the step that a plan with the row's layout has under a stack. folder: of costs that are kept. Raises
    UsageError as `plan` does."""
    known = model(row.model)
    question = Question(
        known,
        STEPS * row.batch * (row.sequence or known.sequence),
        (row.target,),
        (row.instances, row.instances),
        batch=row.batch,
        sequence=row.sequence,
        precision=row.precision,
        fixed=pinned(row.layout),
        stack=stack,
    )
    return float(plan(question, folder).chosen.step.total)


def held(target: str, precision: str, stack: str = OURS, own: Sequence[PlannedRow] = ()) -> PlanAccuracy:
    """How far plans for an instance type are off, under OURS or VENDOR: in a user's own runs of its chip where there
    are enough of them, else in the published ones, or in those of all chips where these are few. Plans in fp32 are
    held beside runs in fp32, those of every other mode beside runs in bf16."""
    chip = TARGETS[target].chip if target in TARGETS else None

    def alike(rows: Sequence[PlannedRow]) -> tuple[list[PlannedRow], list[PlannedRow]]:
        form = [row for row in rows if (row.precision == "fp32") == (precision == "fp32")]
        return form, [row for row in form if chip is not None and TARGETS[row.target].chip.name == chip.name]

    def of(rows: Sequence[PlannedRow], runs: str) -> PlanAccuracy:
        return PlanAccuracy(tuple(row.error(stack) for row in rows), runs)

    mine, (every, published) = alike(own)[1], alike(load())
    form = every[0].precision
    if chip is not None and len(mine) >= ENOUGH:
        return of(mine, f"{len(mine)} runs of yours on {chip.title} in {form}")
    if chip is not None and len(published) >= ENOUGH:
        return of(published, f"{len(published)} published runs of {chip.title} in {form}")
    few = f", {len(published)} of them of {chip.title}" if chip is not None else ""
    return of(every, f"{len(every)} published runs in {form}{few}")


def sections(
    rows: Sequence[MeasuredRate],
    title: str = "training runs, as published, and as planned",
    counted: str = "run, sequences or images a second",
    say: str = LAID_OUT,
) -> Iterator[Section]:
    """Rates as measured, and as both stacks have them; how far these are off. counted: what rates are of; say: how
    they were made."""
    if not rows:
        return
    lines = [
        (
            row.name,
            row.split,
            f"{row.measured:.5g}",
            *(f"{row.rate(stack):.5g} {row.error(stack):+.1%}" for stack in (VENDOR, OURS)),
        )
        for row in rows
    ]
    head = (counted, "split", "measured", "the vendor's stack", "ours")
    notes = [
        Note(f"{stack}, {split}: {summary([row.error(stack) for row in rows if row.split == split])}")
        for stack in (VENDOR, OURS)
        for split in dict.fromkeys(row.split for row in rows)
    ]
    yield Section(title, [Table(lines, head, (2, 3, 4)), *notes], say=say)


def summary(errors: Sequence[float]) -> str:
    """Median, nine of ten, worst and bias of errors."""
    sizes = sorted(abs(error) for error in errors)
    most = quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[-1]
    return (
        f"{len(sizes)} runs, median {median(sizes):.1%}, nine of ten within {most:.1%}, worst {sizes[-1]:.1%}, "
        f"middle of the signs {median(errors):+.1%}"
    )


def to_json(rows: Sequence[PlannedRow]) -> list[dict[str, Any]]:
    """Every row, rates a second."""
    return [
        {
            "run": row.name,
            "target": row.target,
            "instances": row.instances,
            "layout": row.layout,
            "split": row.split,
            "release": row.release,
            "library": row.library,
            "measured": row.measured,
            "predicted": {stack: row.rate(stack) for stack in NAMES},
            "error": {stack: row.error(stack) for stack in NAMES},
        }
        for row in rows
    ]
