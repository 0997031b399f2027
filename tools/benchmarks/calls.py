# SPDX-License-Identifier: Apache-2.0
"""Where the time of a program goes on the chip, call by call and by kind of work.

A call's share of the step is by how much it moves the end of all that ran so far, so shares add up to the step. Its
engines' busy times say what bounds it: PE array, VectorE, ScalarE, GpSimdE, or the DMA engines (their 16 lanes taken
together).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trnlab.timeline import DMA_ENGINES, Timeline
from trnlab.units import PS_PER_S

BUSY = ("PE", "Vector", "Scalar", "GpSimd", "DMA")
MS = PS_PER_S / 1e3


@dataclass(frozen=True)
class Share:
    """Of the step, in picoseconds: `own`, and how long each of BUSY worked. `times`: calls taken together."""

    label: str
    own: int
    busy: tuple[int, ...]
    times: int = 1
    loc: str = ""

    @property
    def bound(self) -> str:
        """What works the longest."""
        return BUSY[int(np.argmax(self.busy))]


def shares(timeline: Timeline) -> list[Share]:
    """One for each call, in the order of the program."""
    lane = np.array([op.lanes * op.lane_time / DMA_ENGINES for op in timeline.ops])
    found, latest = [], timeline.startup
    for call in timeline.calls:
        part = slice(call.first, call.first + call.count)
        if not call.count:
            continue
        busy = np.bincount(timeline.engine[part], timeline.end[part] - timeline.start[part], 5)[:4]
        until = max(int(timeline.done[part].max()), latest)
        times = (*(int(x) for x in busy), int(lane[timeline.op[part]].sum()))
        found.append(Share(call.label, until - latest, times, 1, call.loc))
        latest = until
    return found


def together(found: Iterable[Share]) -> list[Share]:
    """Those of one label added up, the longest first."""
    sums: dict[str, list[Share]] = defaultdict(list)
    for share in found:
        sums[share.label].append(share)
    whole = [
        Share(
            label,
            sum(s.own for s in each),
            tuple(sum(s.busy[i] for s in each) for i in range(len(BUSY))),
            len(each),
            each[0].loc,
        )
        for label, each in sums.items()
    ]
    return sorted(whole, key=lambda s: -s.own)


def page(found: Iterable[Share], most: int) -> str:
    """A table of milliseconds."""
    rows = [f"{'own ms':>8} {'calls':>5} {'bound':>7} " + " ".join(f"{name:>7}" for name in BUSY) + "  what"]
    for share in list(found)[:most]:
        busy = " ".join(f"{x / MS:7.2f}" for x in share.busy)
        rows.append(f"{share.own / MS:8.2f} {share.times:5} {share.bound:>7} {busy}  {share.label} {share.loc}")
    return "\n".join(rows)
