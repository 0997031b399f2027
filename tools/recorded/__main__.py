# SPDX-License-Identifier: Apache-2.0
"""Draw programs, run each on the device with its operators recorded and on the CPU, and print where they differ.

python -m tools.recorded --programs 1000 --first 0
python -m tools.recorded --loops --programs 200
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tools.recorded import loops, programs


def main() -> int:
    """1 when anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.recorded", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--programs", type=int, default=200, help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (%(default)s)")
    parser.add_argument("--steps", type=int, default=25, help="steps of a program (%(default)s)")
    parser.add_argument("--loops", action="store_true", help="training loops instead of programs")
    parser.add_argument("--interpret", action="store_true", help="by the graph's interpreter, not on the chip")
    parser.add_argument("--chip", default="trn1.2xlarge", help="instance type (%(default)s)")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    with programs.recording_on(given.chip, given.interpret):
        for number in range(given.first, given.first + given.programs):
            case = loops.drawn(number) if given.loops else programs.drawn(number, given.steps)
            wrong = programs.compared(case)
            counts["differs" if wrong else "agrees"] += 1
            if wrong:
                print(f"{number}: {programs.shrunk(case)}", flush=True)
        print(f"agrees {counts['agrees']}, differs {counts['differs']}; {programs.figures()}")
    return int(bool(counts["differs"]))


if __name__ == "__main__":
    sys.exit(main())
