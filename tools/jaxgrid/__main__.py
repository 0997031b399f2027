# SPDX-License-Identifier: Apache-2.0
"""Run the grid of JAX' functions on the simulated chip, and write docs/jax_functions.md.

    python -m tools.jaxgrid [WORD ...] [--results FILE] [--page]

WORD: run cases alone whose name has it. Results are kept in a file, a line each; a case that is there is not run
again, so that a run that was stopped goes on. Exit status 1 if a result is wrong or a case crashed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tools.jaxgrid import elementwise, library, rows
from tools.jaxgrid.case import Case
from tools.jaxgrid.judge import CRASH, WRONG, Verdict, judge
from tools.jaxgrid.table import PAGE, page
from trnlab import chips
from trnlab.runtime import session


def grid() -> Iterator[Case]:
    """All cases."""
    for family in (elementwise, rows, library):
        yield from family.cases()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.jaxgrid", description="JAX' functions on the chip")
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--results", type=Path, default=Path(".jaxgrid.jsonl"))
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    args = parser.parse_args()
    wanted = [c for c in grid() if not args.words or any(word in c.name for word in args.words)]
    found = _kept(args.results)
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")), args.results.open("a") as file:
        for case in wanted:
            if (case.name, case.dtype) not in found:
                found[case.name, case.dtype] = verdict = judge(case)
                file.write(json.dumps(asdict(verdict)) + "\n")
                file.flush()
    verdicts = [found[c.name, c.dtype] for c in wanted]
    if args.page:
        PAGE.write_text(page(verdicts))
    print(*(f"{n} {kind}" for kind, n in Counter(v.kind for v in verdicts).most_common()), sep=", ")
    bad = [v for v in verdicts if v.kind in (WRONG, CRASH)]
    for v in bad:
        print(f"{v.kind}: {v.name}, {v.dtype}: {v.about}")
    return 1 if bad else 0


def _kept(file: Path) -> dict[tuple[str, str], Verdict]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {(v.name, v.dtype): v for v in (Verdict(**json.loads(line)) for line in lines)}


if __name__ == "__main__":
    sys.exit(main())
