# SPDX-License-Identifier: Apache-2.0
"""Published training runs beside what `trnlab plan` answers: of these the bands of plans and bake-offs are made.

`data/training/as_planned.toml` holds the rows and what came out; `tools/planned_rows.py` makes it anew. The rows of
`training` are computed as their release did things, these as the command does.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trnlab.chips.catalog import TARGETS
from trnlab.fleet.comparison.contenders import PlanAccuracy
from trnlab.stacks import LIBRARIES, NEWEST, OURS, VENDOR, Stack, parse

ENOUGH = 3  # runs of a chip, in a format, for a band of their own; of fewer, those of all chips serve


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

    @property
    def stack(self) -> Stack:
        """The vendor's that the run was published with."""
        return parse(f"{VENDOR},release={self.release},library={self.library}")

    def error(self, stack: str) -> float:
        """Error of the planned rate, relative to what was measured; positive when the plan is too fast. stack: OURS
        or VENDOR."""
        return self.batch / (self.step_s if stack == OURS else self.vendor_s) / self.measured - 1


@cache
def load() -> tuple[PlannedRow, ...]:
    """All rows."""
    text = files(__package__).joinpath("data", "training", "as_planned.toml").read_text(encoding="utf-8")
    return tuple(PlannedRow(**entry) for entry in tomllib.loads(text)["row"])


def held(target: str, precision: str, stack: str = OURS) -> PlanAccuracy:
    """How far plans for an instance type are off, under OURS or VENDOR: in the published runs of its chip, or of all
    where these are few. Plans in fp32 are held beside runs in fp32, those of every other mode beside runs in bf16."""
    alike = [row for row in load() if (row.precision == "fp32") == (precision == "fp32")]
    chip = TARGETS[target].chip if target in TARGETS else None
    own = [row for row in alike if chip is not None and TARGETS[row.target].chip.name == chip.name]
    form = alike[0].precision
    if chip is not None and len(own) >= ENOUGH:
        return PlanAccuracy(
            tuple(row.error(stack) for row in own), f"{len(own)} published runs of {chip.title} in {form}"
        )
    few = f", {len(own)} of them of {chip.title}" if chip is not None else ""
    return PlanAccuracy(tuple(row.error(stack) for row in alike), f"{len(alike)} published runs in {form}{few}")
