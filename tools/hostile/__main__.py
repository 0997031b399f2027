# SPDX-License-Identifier: Apache-2.0
"""Run drawn cases, print what does not agree, and count.

python -m tools.hostile --cases 2000 --first 0 --only lerp,div
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import Counter

from tools.hostile.cases import case
from tools.hostile.judge import AGREES, CRASHED, REFUSED, WRONG, judge
from trnlab import chips
from trnlab.frontends.common.engine import DeviceEngine
from trnlab.runtime import session

TOGETHER = 25  # cases of one program


def main() -> int:
    """1 when anything is wrong or crashed."""
    parser = argparse.ArgumentParser(prog="python -m tools.hostile", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", type=int, default=1000, help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (%(default)s)")
    parser.add_argument("--only", default="", help="beginnings of names of operators")
    parser.add_argument("--chip", default="trn1.2xlarge", help="instance type (%(default)s)")
    given = parser.parse_args()
    only = [name for name in given.only.split(",") if name]
    counts: Counter[str] = Counter()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # what PyTorch says of cases that it refuses itself
    with session.activate(session.Session(chips.target(given.chip), "fp32")) as here:
        for first in range(given.first, given.first + given.cases, TOGETHER):
            last = min(first + TOGETHER, given.first + given.cases)
            for found in judge([case(i, only) for i in range(first, last)], DeviceEngine()):
                counts[found.kind] += 1
                if found.kind != AGREES:
                    print(f"{found.kind}: {found.label}: {found.about}", flush=True)
            if here is not None:
                here.executables.clear()
    print(", ".join(f"{kind} {counts[kind]}" for kind in (AGREES, REFUSED, WRONG, CRASHED)))
    return int(bool(counts[WRONG] or counts[CRASHED]))


if __name__ == "__main__":
    sys.exit(main())
