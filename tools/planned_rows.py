# SPDX-License-Identifier: Apache-2.0
"""Plan the published training runs anew, and keep the steps in `validation/data/training/as_planned.toml`.

python tools/planned_rows.py [NAME]      all, or those whose name has NAME in it; 5 to 30 s of processor time each, by
                                        trnlab's compiler and the vendor's stack of the run's release
"""

from __future__ import annotations

import sys
from pathlib import Path

from training_rows import keep

from trnlab.fleet.models.configurations import model
from trnlab.fleet.planning.plan import Question, plan
from trnlab.fleet.search.layout import pinned
from trnlab.stacks import OWN, Stack
from trnlab.validation.planned import PlannedRow, load

DATA = Path(__file__).resolve().parents[1] / "src/trnlab/validation/data/training/as_planned.toml"


def planned(row: PlannedRow, stack: Stack) -> float:
    """Seconds of the step that a plan with the row's layout has under a stack."""
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
        stack=stack,
    )
    return float(plan(question).chosen.step.total)


def main() -> None:
    """See the module."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for row in load():
        if wanted in row.name:
            found = [float(f"{planned(row, stack):.5g}") for stack in (OWN, row.stack)]
            keep(row.name, dict(zip(("step_s", "vendor_s"), found)), "step_s|vendor_s", DATA)
            errors = [f"{row.batch / step_s / row.measured - 1:>+8.1%}  {step_s:.5g} s" for step_s in found]
            print(*errors, row.name, flush=True)


if __name__ == "__main__":
    main()
