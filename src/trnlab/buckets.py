# SPDX-License-Identifier: Apache-2.0
"""Lengths to pad to: few enough that little is compiled, near enough to what comes that little is wasted.

    from trnlab import buckets

    plan = buckets.propose(lengths)           # of the samples or batches, e.g. [31, 77, 77, 512, ...]
    print(plan)                               # 4 buckets: 96, 192, 320, 512; padding is 9.1 % of what is computed ...
    print(buckets.table(lengths))             # what each number of buckets wastes
    plan.of(100)                              # 192

A program is compiled for one shape. Each length for itself compiles most and wastes nothing, one bucket the reverse.
For every number of buckets the best sizes are found exactly, by dynamic programming over the distinct lengths.
`trnlab.frontends.torch.PadToBuckets` pads batches to them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.errors import UsageError

MANY = 5  # lengths that a run compiled for, from which on it proposes buckets
MOST = 32  # buckets that are tried
Lengths = Iterable[int] | Mapping[int, int]


@dataclass(frozen=True)
class BucketPlan:
    """Lengths to pad to, ascending, and what they mean for the lengths that were seen (`counts` of each)."""

    sizes: tuple[int, ...]
    counts: Mapping[int, int]

    def of(self, length: int) -> int:
        """The bucket of a length. Raises UsageError (TRN225) for one that is longer than all buckets."""
        place = bisect_left(self.sizes, length)
        if place == len(self.sizes):
            raise UsageError(
                "a sequence is longer than every bucket",
                code="TRN225",
                limit=self.sizes[-1],
                got=length,
                remedy="add a bucket of that length, or cut the sequence",
            )
        return self.sizes[place]

    @property
    def compiles(self) -> int:
        """Programs that are compiled: one for each bucket."""
        return len(self.sizes)

    @property
    def padding(self) -> float:
        """Share of padding in what is computed, 0 to 1."""
        used = sum(length * n for length, n in self.counts.items())
        computed = sum(self.of(length) * n for length, n in self.counts.items())
        return 1 - used / computed

    def __str__(self) -> str:
        one = BucketPlan(self.sizes[-1:], self.counts).padding
        return (
            f"{self.compiles} {'bucket' if self.compiles == 1 else 'buckets'}: {', '.join(map(str, self.sizes))}; "
            f"padding is {self.padding:.1%} of what is computed (one bucket: {one:.1%}), {self.compiles} compiles "
            f"(each length for itself: {len(self.counts)})"
        )


def propose(lengths: Lengths, *, padding: float = 0.1, most: int = MOST, multiple_of: int = 1) -> BucketPlan:
    """The fewest buckets whose padding is at most a share `padding` of what is computed, but no more than `most`.

    lengths: as they come, or how often each comes. multiple_of: what every size is a multiple of. Raises UsageError
    (TRN226) for no lengths, lengths that are not positive, or settings out of range.
    """
    counts = _counted(lengths)
    if not 0 <= padding < 1 or most < 1 or multiple_of < 1:
        raise UsageError(
            "buckets cannot be found for these settings",
            code="TRN226",
            got=(padding, most, multiple_of),
            limit="a share of padding from 0 up to 1, at least one bucket, a multiple of at least 1",
        )
    plans = _plans(counts, min(most, MOST), multiple_of)
    return next((plan for plan in plans if plan.padding <= padding), plans[-1])


def table(lengths: Lengths, *, most: int = 12, multiple_of: int = 1) -> str:
    """What each number of buckets wastes, as a table for people."""
    rows = [f"{'buckets':>8}{'padding':>9}  sizes"]
    for plan in _plans(_counted(lengths), most, multiple_of):
        rows.append(f"{plan.compiles:>8}{plan.padding:>9.1%}  {', '.join(map(str, plan.sizes))}")
    return "\n".join(rows)


def _counted(lengths: Lengths) -> dict[int, int]:
    counts = Counter(dict(lengths)) if isinstance(lengths, Mapping) else Counter(map(int, lengths))
    counts = Counter({length: n for length, n in counts.items() if n})
    if not counts or min(counts) < 1 or min(counts.values()) < 1:
        raise UsageError(
            "buckets are made for lengths of at least 1", code="TRN226", got=min(counts, default="no lengths")
        )
    return dict(sorted(counts.items()))


def _plans(counts: Mapping[int, int], most: int, multiple_of: int) -> list[BucketPlan]:
    """The best plan for 1, 2, ... buckets: `cost[j]` is what is computed for all lengths up to candidate j."""
    rounded: Counter[int] = Counter()
    for length, n in counts.items():
        rounded[-(-length // multiple_of) * multiple_of] += n
    sizes = np.array(sorted(rounded))
    upto = np.concatenate([[0], np.cumsum([rounded[s] for s in sizes.tolist()])])  # how many are shorter
    cost, cuts, plans = sizes * upto[1:], [np.zeros(len(sizes), int)], []
    for used in range(1, min(most, len(sizes)) + 1):
        plans.append(BucketPlan(_sizes(sizes, cuts), counts))
        if used < len(sizes):
            # With one bucket more: candidate i < j ends the bucket before the last, which takes what lies between.
            tried = cost[None, :] + sizes[:, None] * (upto[1:, None] - upto[None, 1:])
            tried = np.where(np.tri(len(sizes), k=-1, dtype=bool), tried, np.inf)
            cuts.append(tried.argmin(1))
            cost = tried.min(1)
    return plans


def _sizes(sizes: Any, cuts: Sequence[Any]) -> tuple[int, ...]:
    """The sizes of the plan for as many buckets as there are cuts, followed back from the longest."""
    found, j = [], len(sizes) - 1
    for cut in reversed(cuts):
        found.append(int(sizes[j]))
        j = cut[j]
    return tuple(reversed(found))


class Seen:
    """The shapes that programs of a run were called with, by the name of what was compiled."""

    def __init__(self) -> None:
        self._forms: dict[str, Counter[tuple[tuple[int, ...], ...]]] = {}

    def note(self, name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
        """`name` was called with inputs of these shapes."""
        self._forms.setdefault(name, Counter())[shapes] += 1

    def advice(self) -> list[str]:
        """A line for each name that was compiled for many lengths: which buckets would do, and how to use them."""
        lines = []
        for name, forms in self._forms.items():
            counts = _varying(forms)
            if len(counts) >= MANY:
                plan = propose(counts)
                if plan.compiles < len(counts):
                    lines.append(
                        f"{name!r} was compiled for {len(counts)} lengths from {min(counts)} to {max(counts)}. "
                        f"{plan}. Pad with collate_fn=trnlab.frontends.torch.PadToBuckets({plan.sizes}), see "
                        "docs/buckets.md"
                    )
        return lines


def _varying(forms: Mapping[tuple[tuple[int, ...], ...], int]) -> dict[int, int]:
    """How often each value of the dimension came that varies most; of several the first."""
    ranks = Counter(tuple(map(len, shapes)) for shapes in forms).most_common(1)[0][0]
    alike = {shapes: n for shapes, n in forms.items() if tuple(map(len, shapes)) == ranks}
    best: Counter[int] = Counter()
    for i, rank in enumerate(ranks):
        for d in range(rank):
            found: Counter[int] = Counter()
            for shapes, n in alike.items():
                found[shapes[i][d]] += n
            if len(found) > max(len(best), 1):
                best = found
    return dict(best)
