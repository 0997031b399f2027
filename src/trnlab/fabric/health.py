# SPDX-License-Identifier: Apache-2.0
"""A measured table of a collective against the prediction: healthy, or which part of the network is not.

Suspects (`suspects`) are weighed against each other and against a healthy network by how far each leaves the table
off: a squared distance counts in units of what a healthy table is off by itself, and each number that was chosen to
fit costs half the logarithm of the number of sizes (the Bayesian information criterion; all suspects are as likely
before). Where that leaves doubt, a further test is proposed (`next_test`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trnlab.fabric.flows import Floats
from trnlab.fabric.measured import Measured
from trnlab.fabric.nccom import Bench
from trnlab.fabric.next_test import NextTest, of_unseen, proposed
from trnlab.fabric.suspects import ExpectedTable, Suspect, distance, double, single, unseen

TOLERANCE = 0.1
SPREAD = 0.07  # of a healthy table about the prediction: the median of the vendor's, above 1 MiB (docs/validation.md)
SPREAD_OF_BASELINE = 0.03  # of two tables of one healthy cluster; assumed
SURE = 0.95  # of all that was thought of
SHOWN = 3
LEAST = 0.05  # of a suspect that is shown


@dataclass(frozen=True)
class Health:
    """Measured and expected microseconds by size; what is suspected, the likeliest first. unseen: of a healthy table,
    the parts that could be slow without a trace in it."""

    rows: tuple[Measured, ...]
    expected: Floats
    algorithms: tuple[str, ...]
    tolerance: float
    suspects: tuple[Suspect, ...]
    well: float = 1.0  # how likely a healthy network is, of all that was thought of
    advice: NextTest | None = None
    unseen: tuple[Suspect, ...] = ()

    @property
    def off(self) -> list[bool]:
        """Which sizes are farther off than the tolerance."""
        expected = self.expected.tolist()
        return [abs(row.microseconds / t - 1) > self.tolerance for row, t in zip(self.rows, expected)]

    @property
    def healthy(self) -> bool:
        """Whether no size is off, and nothing is much likelier than a healthy network."""
        return not any(self.off) and self.well > 1 - SURE

    @property
    def sure(self) -> bool:
        """Whether what is likeliest leaves little to anything else, and the test shows what it is asked about."""
        shares = [self.well, *(suspect.share for suspect in self.suspects)]
        return max(shares) >= SURE and (self.explained or self.well >= SURE) and not self.unseen

    def as_json(self) -> dict[str, object]:
        """For programs."""
        rows = zip(self.rows, self.expected.tolist(), self.algorithms, self.off)
        return {
            "healthy": self.healthy,
            "well": self.well,
            "sure": self.sure,
            "tolerance": self.tolerance,
            "explained": self.explained,
            "rows": [
                {
                    "size(B)": row.size,
                    "measured(us)": row.microseconds,
                    "expected(us)": expected,
                    "algorithm": algorithm,
                    "off": off,
                }
                for row, expected, algorithm, off in rows
            ],
            "suspects": [suspect.as_json() for suspect in self.suspects],
            "unseen": [suspect.as_json() for suspect in self.unseen],
            "next": None if self.advice is None else self.advice.as_json(),
        }

    @property
    def explained(self) -> bool:
        """Whether the first suspect brings every size within the tolerance."""
        if not self.suspects:
            return False
        ratios = np.array([row.microseconds for row in self.rows]) / self.suspects[0].times
        return bool((np.abs(ratios - 1) <= self.tolerance).all())


def examine(
    rows: Sequence[Measured],
    bench: Bench,
    tolerance: float = TOLERANCE,
    baseline: Sequence[Measured] = (),
) -> Health:
    """Hold measured rows against a collective on its healthy network.

    `baseline`: rows of the same test when all was well. What the model misses there is taken out of the expectation.
    """
    seen = np.array([row.microseconds for row in rows])
    sizes = [row.size for row in rows]
    test, bias = ExpectedTable(bench, sizes), _bias(sizes, baseline, bench)
    names = tuple(schedule.algorithm for schedule in test.schedules)
    made = Health(tuple(rows), test.healthy * bias, names, tolerance, ())
    spread = SPREAD_OF_BASELINE if baseline else SPREAD
    before = distance(seen, made.expected)
    if before < spread / 2:
        hidden = tuple(unseen(test, spread))
        return replace(made, unseen=hidden, advice=of_unseen(bench, hidden, spread))
    found = single(test, seen / bias, made.off)
    if found[0].off > spread / 4:
        found += [s for s in double(test, seen / bias, found) if distance(s.times, found[0].times) > spread / 2]
    found = [s for s in found if distance(s.times, test.healthy) > spread / 2]  # others are as good as healthy
    found = [replace(suspect, times=suspect.times * bias) for suspect in found]
    well, *shares = _shares([(before, 0), *((s.off, 2 if s.both else 1) for s in found)], len(sizes), spread)
    found = [replace(suspect, share=share) for suspect, share in zip(found, shares)]
    found.sort(key=lambda s: -s.share)
    shown = tuple(s for s in found if s.share > LEAST)[:SHOWN]
    made = replace(made, suspects=shown, well=well)
    return replace(made, advice=proposed(bench, shown, well, spread, bool(baseline)))


def _shares(fits: Sequence[tuple[float, int]], sizes: int, spread: float) -> list[float]:
    """How likely each explanation is: of distances, each with how many numbers were chosen for it."""
    spread = max(spread, min(off for off, _ in fits))  # where nothing fits, the table has more noise than was thought
    logs = np.array([-(sizes * (off / spread) ** 2 + count * np.log(sizes)) / 2 for off, count in fits])
    shares = np.exp(logs - logs.max())
    return [float(share) for share in shares / shares.sum()]


def _bias(sizes: Sequence[int], baseline: Sequence[Measured], bench: Bench) -> Floats:
    """Measured over predicted when all was well, at these sizes: between those of the baseline by logarithms."""
    if not baseline:
        return np.ones(len(sizes))
    healthy = ExpectedTable(bench, [r.size for r in baseline]).healthy
    ratios = np.array([row.microseconds for row in baseline]) / healthy
    known = np.log([row.size for row in baseline])
    return np.exp(np.interp(np.log(sizes), known, np.log(ratios)))
