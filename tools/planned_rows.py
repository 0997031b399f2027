# SPDX-License-Identifier: Apache-2.0
"""Plan the published training runs anew, and keep the steps in `validation/data/training/as_planned.toml`.

python tools/planned_rows.py [NAME]      all, or those whose name has NAME in it; 5 to 30 s of processor time each, by
                                        trnlab's compiler and the vendor's stack of the run's release
"""

from __future__ import annotations

import sys
from pathlib import Path

from training_rows import keep

from trnlab.runtime.settings import kept_folder
from trnlab.stacks import OWN
from trnlab.validation.planned import load, step_of

DATA = Path(__file__).resolve().parents[1] / "src/trnlab/validation/data/training/as_planned.toml"


def main() -> None:
    """See the module."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for row in load():
        if wanted in row.name:
            found = [float(f"{step_of(row, stack, kept_folder() / 'plans'):.5g}") for stack in (OWN, row.stack)]
            keep(row.name, dict(zip(("step_s", "vendor_s"), found)), "step_s|vendor_s", DATA)
            errors = [f"{row.batch / step_s / row.measured - 1:>+8.1%}  {step_s:.5g} s" for step_s in found]
            print(*errors, row.name, flush=True)


if __name__ == "__main__":
    main()
