# SPDX-License-Identifier: Apache-2.0
"""Plan the published training runs anew, and keep the steps in `validation/data/training/as_planned.toml`.

python tools/planned_rows.py [NAME]     all, or those whose name has NAME in it; 5 to 30 s of processor time each
"""

from __future__ import annotations

import sys
from pathlib import Path

from training_rows import keep

from trnlab.fleet.models.configurations import model
from trnlab.fleet.planning.plan import Question, plan
from trnlab.fleet.search.layout import pinned
from trnlab.validation.planned import PlannedRow, load

DATA = Path(__file__).resolve().parents[1] / "src/trnlab/validation/data/training/as_planned.toml"


def planned(row: PlannedRow) -> float:
    """Seconds of the step that a plan with the row's layout has."""
    known = model(row.model)
    sequence = row.sequence or known.sequence
    question = Question(
        known,
        1000.0 * row.batch * sequence,
        (row.target,),
        (row.instances, row.instances),
        batch=row.batch,
        sequence=row.sequence,
        precision=row.precision,
        fixed=pinned(row.layout),
    )
    return float(plan(question).chosen.step.total)


def main() -> None:
    """See the module."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for row in load():
        if wanted in row.name:
            step_s = planned(row)
            keep(row.name, {"step_s": float(f"{step_s:.5g}")}, "step_s", DATA)
            print(f"{row.batch / step_s / row.measured - 1:>+8.1%}  {step_s:.5g} s  {row.name}", flush=True)


if __name__ == "__main__":
    main()
