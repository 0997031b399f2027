# SPDX-License-Identifier: Apache-2.0
"""What the calls of a step did, by label: time, operations, traffic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnlab.timeline import Timeline
from trnlab.units import PS_PER_S


@dataclass(frozen=True)
class RoutineUse:
    """All calls with one label."""

    label: str
    calls: int
    time: int  # picoseconds from the first start to the last result of each, summed; calls overlap
    flops: int  # operations on all engines
    bytes: int  # through HBM, both ways

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flops * PS_PER_S / self.time


def uses(timeline: Timeline) -> list[RoutineUse]:
    """By label of the calls, those that take longest first."""
    t = timeline
    flops = np.array([op.flops for op in t.ops], np.int64)
    traffic = np.array([op.hbm_read + op.hbm_write for op in t.ops], np.int64)
    found: dict[str, list[int]] = {}
    for call in t.calls:
        if call.count:
            here = slice(call.first, call.first + call.count)
            time = int(t.done[here].max() - t.start[here].min())
            ops = t.op[here]
            row = (1, time, int(flops[ops].sum()), int(traffic[ops].sum()))
            found[call.label] = [a + b for a, b in zip(found.get(call.label, [0, 0, 0, 0]), row)]
    return sorted((RoutineUse(label, *row) for label, row in found.items()), key=lambda use: -use.time)
