# SPDX-License-Identifier: Apache-2.0
"""Time the published forward passes anew, and keep them in `validation/data/inference/published.toml`.

python tools/inference_rows.py [NAME]    all, or those whose name has NAME in it; 10 to 60 s of processor time each
"""

from __future__ import annotations

import sys
from pathlib import Path

from training_rows import keep

from trnlab.runtime.settings import kept_folder
from trnlab.stacks import OWN
from trnlab.validation.inference import load, step_of

DATA = Path(__file__).resolve().parents[1] / "src/trnlab/validation/data/inference/published.toml"


def main() -> None:
    """See the module."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for row in load():
        if wanted in row.name:
            found = [float(f"{step_of(row, stack, kept_folder() / 'serving'):.5g}") for stack in (row.stack, OWN)]
            keep(row.name, dict(zip(("vendor_s", "step_s"), found)), "step_s|vendor_s", DATA)
            errors = [f"{row.batch * row.copies / s / row.measured - 1:>+8.1%}  {s:.5g} s" for s in found]
            print(*errors, row.name, flush=True)


if __name__ == "__main__":
    main()
