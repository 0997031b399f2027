# SPDX-License-Identifier: Apache-2.0
"""Whether variants of a kernel are predicted in the order in which the chip puts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from trnlab.validation.sources.results import TimedKernel

DISTINCT = 0.05  # variants that differ by less are a tie

Pair = tuple[TimedKernel, TimedKernel]  # the slower one on the chip first


@dataclass(frozen=True, slots=True)
class RankCorrelation:
    """Kendall's tau of the variants of a problem, over pairs that the chip tells apart. tied: of the pairs that the
    chip does not tell apart, how many are a tie here, and how many there are."""

    problem: str
    chip: str
    variants: int
    concordant: int
    discordant: int
    equal: int  # told apart by the chip, and predicted to take the very same time
    tied: tuple[int, int]

    @property
    def pairs(self) -> int:
        """Pairs that the chip tells apart."""
        return self.concordant + self.discordant + self.equal

    @property
    def tau(self) -> float | None:
        """From -1 (the other way round) to 1 (the same order); None where the chip tells none apart."""
        return (self.concordant - self.discordant) / self.pairs if self.pairs else None


def families(results: Sequence[TimedKernel]) -> dict[tuple[str, str], list[TimedKernel]]:
    """Variants of the same problem by chip and problem, the slowest on the chip first; those with a prediction."""
    found: dict[tuple[str, str], list[TimedKernel]] = {}
    for r in results:
        if r.predicted is not None and r.kernel.problem:
            found.setdefault((r.kernel.chip, r.kernel.problem), []).append(r)
    return {key: sorted(some, key=lambda r: -r.kernel.measured) for key, some in found.items()}


def pairs(results: Sequence[TimedKernel]) -> tuple[int, list[Pair]]:
    """Pairs of variants of a kernel that differ by more than 5 % on the chip: how many there are, and those that are
    predicted in the wrong order."""
    told = [pair for family in families(results).values() for pair in _told_apart(family)]
    return len(told), [(a, b) for a, b in told if (a.predicted or 0) <= (b.predicted or 0)]


def correlations(results: Sequence[TimedKernel]) -> list[RankCorrelation]:
    """One of each problem of which there are several variants."""
    some = families(results).items()
    return [_correlation(problem, chip, family) for (chip, problem), family in some if len(family) > 1]


def overall(found: Sequence[RankCorrelation]) -> RankCorrelation:
    """All pairs together; variants of different problems are never compared."""
    return RankCorrelation(
        "all",
        "",
        sum(c.variants for c in found),
        sum(c.concordant for c in found),
        sum(c.discordant for c in found),
        sum(c.equal for c in found),
        (sum(c.tied[0] for c in found), sum(c.tied[1] for c in found)),
    )


def _correlation(problem: str, chip: str, family: Sequence[TimedKernel]) -> RankCorrelation:
    told = list(_told_apart(family))
    signs = [((a.predicted or 0) > (b.predicted or 0)) - ((a.predicted or 0) < (b.predicted or 0)) for a, b in told]
    ties = [(a, b) for a, b in combinations(family, 2) if not _apart(a.kernel.measured, b.kernel.measured)]
    here = sum(not _apart(a.predicted or 0, b.predicted or 0) for a, b in ties)
    like, unlike, equal = (signs.count(sign) for sign in (1, -1, 0))
    return RankCorrelation(problem, chip, len(family), like, unlike, equal, (here, len(ties)))


def _told_apart(family: Sequence[TimedKernel]) -> Iterator[Pair]:
    return (pair for pair in combinations(family, 2) if _apart(*(r.kernel.measured for r in pair)))


def _apart(one: float, other: float) -> bool:
    return max(one, other) > min(one, other) * (1 + DISTINCT)
