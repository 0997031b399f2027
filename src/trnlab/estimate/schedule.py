# SPDX-License-Identifier: Apache-2.0
"""What comes of the order in which the ranks of a pipeline work: when each pass runs, and what each rank keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class StagePass(NamedTuple):
    """One way of one microbatch through one stage, forward or backward."""

    backward: bool
    stage: int
    microbatch: int


@dataclass(frozen=True)
class ScheduleResult:
    """What came of an order: seconds from first to last, those that each rank worked, how many microbatches each
    kept the activations of at most, and the bytes of those, where they were told."""

    total: float
    busy: tuple[float, ...]
    held: tuple[int, ...]
    activation_bytes: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """The share of the time in which the busiest rank waits."""
        return 1 - max(self.busy) / self.total if self.total else 0.0


def played(
    orders: Sequence[Sequence[StagePass]],
    seconds: Mapping[tuple[bool, int], float],
    sends: Sequence[float],
    activations: Sequence[int] = (),
) -> ScheduleResult | None:
    """Each rank does its passes in its order, each as soon as what it needs has arrived; None where ranks wait for
    each other.

    orders: of each rank. seconds: of a pass, by direction and stage. sends: seconds between stages s and s + 1, each
    way; they keep no rank from working. activations: bytes that a microbatch leaves at each stage.
    """
    last = len(sends)
    at, clock, busy = [0] * len(orders), [0.0] * len(orders), [0.0] * len(orders)
    held, stored = [_Peak() for _ in orders], [_Peak() for _ in orders]
    done: dict[StagePass, float] = {}
    left = sum(map(len, orders))
    while left:
        before = left
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                work = order[at[rank]]
                ready = _ready(work, last, done, sends)
                if ready is None:
                    break
                spent = seconds[work.backward, work.stage]
                done[work] = clock[rank] = max(clock[rank], ready) + spent
                busy[rank] += spent
                way = -1 if work.backward else 1
                held[rank].add(way)
                stored[rank].add(way * activations[work.stage] if activations else 0)
                at[rank] += 1
                left -= 1
        if left == before:
            return None
    return ScheduleResult(max(clock), tuple(busy), tuple(p.most for p in held), tuple(p.most for p in stored))


@dataclass
class _Peak:
    now: int = 0
    most: int = 0

    def add(self, change: int) -> None:
        self.now += change
        self.most = max(self.most, self.now)


def _ready(work: StagePass, last: int, done: Mapping[StagePass, float], sends: Sequence[float]) -> float | None:
    """When what a pass needs has arrived; None while it is not yet known."""
    if not work.backward and work.stage == 0:
        return 0.0
    if work.backward and work.stage == last:
        return done.get(StagePass(False, last, work.microbatch))
    source = work.stage + (1 if work.backward else -1)
    found = done.get(StagePass(work.backward, source, work.microbatch))
    if found is None:
        return None
    arrived = found + sends[min(source, work.stage)]
    if not work.backward:
        return arrived
    own = done.get(StagePass(False, work.stage, work.microbatch))
    return None if own is None else max(arrived, own)
