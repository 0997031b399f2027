# SPDX-License-Identifier: Apache-2.0
"""How long plans take: one layout, Llama-3-70B on 16 to 256 instances, Llama-3-405B on 100,000 chips."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

from benchmarks import lines
from trnlab.fleet import Question, model, plan
from trnlab.fleet.search.layout import pinned

ROUNDS = 3
CALCULON = "published of Calculon: 0.98 s for a configuration, by formulas"
MANY = Question(model("llama3-70b"), 2e12, ("trn2.48xlarge",), (16, 256))
LARGE = Question(model("llama3-405b"), 15e12, ("trn2.48xlarge",), (6250, 6250), batch=10000)
ONE = Question(
    model("llama3-70b"),
    2e12,
    ("trn2.48xlarge",),
    (16, 16),
    fixed=pinned("tp=32,pp=4,mb=1,vp=1,zero=1,recompute=none,overlap=1"),
)


def _seconds(question: Question, folder: Path) -> tuple[float, int]:
    """Of one plan, and how many layouts it looked at."""
    started = time.perf_counter()
    found = plan(question, folder)
    assert found.chosen.bill.days > 0
    return time.perf_counter() - started, found.looked_at


def main() -> None:
    """Measure and report."""
    made = []
    with tempfile.TemporaryDirectory() as name:
        for what, asked, cold, warm in (
            ("Llama-3-70B, 16..256 instances", MANY, 60.0, 1.0),
            ("Llama-3-405B, 100,000 chips", LARGE, 60.0, 0.5),
        ):
            first, count = _seconds(asked, Path(name))
            again = min(_seconds(asked, Path(name))[0] for _ in range(ROUNDS))
            note = f"{count:,} layouts"
            made += [
                lines.at_most(f"plan: {what}, cold", first, cold, "s", note),
                lines.at_most(f"plan: {what}, warm", again, warm, "s", note),
            ]
        _seconds(ONE, Path(name))
        one = min(_seconds(ONE, Path(name))[0] for _ in range(ROUNDS))
    made.append(lines.at_most("plan: one layout, warm", one * 1e3, 50, "ms", CALCULON))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    made.append(lines.at_most("plan: memory of all of these", peak, 4, "GiB"))
    lines.report(made)


if __name__ == "__main__":
    main()
