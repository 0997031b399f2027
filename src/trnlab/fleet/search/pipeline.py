# SPDX-License-Identifier: Apache-2.0
"""Schedules of pipelines, simulated: when each rank works on which microbatch, and how long it waits.

1F1B (Narayanan et al. 2021): a rank warms up with as many forward passes as stages follow it, then takes turns.
Interleaved: a rank has several stages, and its order is that of Megatron's (and the vendor's) interleaved schedule.

`simulate` runs a schedule; `total` and `held` say what comes of many at once, by formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trnlab.estimate.schedule import ScheduleResult, StagePass, played
from trnlab.fleet.arrays import Floats, Ints


class ScheduledPass(NamedTuple):
    """One pass of one microbatch through one of a rank's stages."""

    backward: bool
    chunk: int
    microbatch: int


@dataclass(frozen=True)
class Times:
    """Seconds of each stage's passes, by stage in the order of the model, and to send what lies between two."""

    forward: Sequence[float]
    backward: Sequence[float]
    send: float = 0.0


def order(rank: int, ranks: int, microbatches: int, chunks: int = 1) -> list[ScheduledPass]:
    """What a rank does, in order. microbatches: a multiple of `ranks` where chunks > 1."""
    count = microbatches * chunks
    ahead = 2 * (ranks - rank - 1) + (chunks - 1) * ranks if chunks > 1 else ranks - rank - 1
    warm = min(ahead, count)
    forward = [_item(i, ranks, chunks, False) for i in range(count)]
    backward = [_item(i, ranks, chunks, True) for i in range(count)]
    steady = [work for i in range(count - warm) for work in (forward[warm + i], backward[i])]
    return [*forward[:warm], *steady, *backward[count - warm :]]


def _item(index: int, ranks: int, chunks: int, backward: bool) -> ScheduledPass:
    """The index-th pass of a rank: chunks take turns, for as many microbatches as there are ranks."""
    if chunks == 1:
        return ScheduledPass(backward, 0, index)
    turn, place = divmod(index, ranks * chunks)
    chunk, microbatch = place // ranks, turn * ranks + place % ranks
    return ScheduledPass(backward, chunks - 1 - chunk if backward else chunk, microbatch)


def simulate(times: Times, ranks: int, microbatches: int) -> ScheduleResult:
    """Run the schedule; stage s lies on rank s % ranks."""
    stages = len(times.forward)
    orders = [
        [
            StagePass(w.backward, w.chunk * ranks + rank, w.microbatch)
            for w in order(rank, ranks, microbatches, stages // ranks)
        ]
        for rank in range(ranks)
    ]
    seconds = {(False, s): spent for s, spent in enumerate(times.forward)}
    seconds |= {(True, s): spent for s, spent in enumerate(times.backward)}
    found = played(orders, seconds, [times.send] * (stages - 1))
    assert found is not None, "the schedule waits for itself"
    return found


def total(stages: Floats, ranks: int, microbatches: Ints, send: Floats) -> Floats:
    """Seconds from first to last of N pipelines of the same shape.

    stages: [N, S] of both passes; microbatches, send: [N]. 1F1B: one microbatch goes all the way, and the others
    follow at the pace of the busiest rank, or at that of the way to the last rank and back, on which there
    are as many as it has ranks.
    Interleaved: the busiest rank works all the time but for the first microbatch's way to it and back from it.
    Within 1 % of `simulate` where all stages but the first and last are equal, within 3 % where they are not.
    """
    chunks = stages.shape[1] // ranks
    way = stages.sum(1)
    busiest = stages.reshape(len(stages), chunks, ranks).sum(1).max(1)
    sent = 2 * (ranks - 1) * send
    if chunks > 1:
        return np.asarray(microbatches * busiest + (ranks - 1) * way / stages.shape[1] + sent * chunks)
    last = np.clip(microbatches - 1, 1, ranks)  # ranks at the end that are filled before anything comes back
    there_and_back = np.take_along_axis(stages[:, ::-1].cumsum(1), (last - 1)[:, None], 1)[:, 0]
    pace = np.maximum(busiest, (there_and_back + 2 * (last - 1) * send) / last)
    return np.asarray(way + sent + (microbatches - 1) * pace, np.float64)


def held(ranks: int, microbatches: Ints, chunks: int = 1) -> Ints:
    """[N, R] of how many microbatches each rank keeps the activations of one stage at most."""
    after = ranks - 1 - np.arange(ranks)
    most = after + 1 if chunks == 1 else 2 * after + (chunks - 1) * ranks + 1
    return np.minimum(microbatches[:, None] * chunks, most)
