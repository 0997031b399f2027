# SPDX-License-Identifier: Apache-2.0
"""Jobs that fail, simulated event by event: what the closed forms of `renewal` and `reliability` are held against.

Nothing here uses those forms. Failures need not be without memory: `shape` is that of a Weibull distribution of the
same mean, 1 for the exponential; below 1 failures come in bursts.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trnlab.fleet.reliability.renewal import Stops

Draw = Callable[[], float]


@dataclass(frozen=True)
class SimulatedGoodput:
    """What a simulation saw."""

    share: float  # of the time, what advanced
    error: float  # its standard error
    stops: int  # how many

    def agrees(self, share: float, errors: float = 4.0) -> bool:
        """Whether a share lies within so many standard errors."""
        return abs(share - self.share) <= errors * self.error


def intervals(random: np.random.Generator, mean: float, shape: float = 1.0) -> Draw:
    """Draws of times between failures, made a thousand at a time."""
    scale = mean / math.gamma(1 + 1 / shape)
    kept: list[float] = []

    def draw() -> float:
        if not kept:
            kept.extend((scale * random.weibull(shape, 1024)).tolist())
        return kept.pop()

    return draw


def observe(stops: Stops, every: float, lives: int, seed: int, shape: float = 1.0) -> SimulatedGoodput:
    """A job that stops whole, over so many lives: from one return to work to the next."""
    random = np.random.default_rng(seed)
    failure = intervals(random, stops.between, shape)
    restart, saves = _restarts(random, stops), _Saves(stops, every)
    advanced, lasted, count = np.empty(lives), np.empty(lives), 0
    for life in range(lives):
        clock = failure()  # the job works until then
        advanced[life] = saves.kept(clock)
        count += 1
        while True:
            needed = next(restart)
            left = failure()
            clock += min(needed, left)
            if left >= needed:
                break
            count += 1
        lasted[life] = clock
    share = advanced.sum() / lasted.sum()
    error = float(np.std(advanced - share * lasted, ddof=1) / (math.sqrt(lives) * lasted.mean()))
    return SimulatedGoodput(float(share), error, count)


def _restarts(random: np.random.Generator, stops: Stops) -> Iterator[float]:
    """Seconds of restarts, of each way as often as it is likely."""
    ways = np.array([p for p, _ in stops.restarts])
    while True:
        for way in random.choice(len(ways), size=1024, p=ways / ways.sum()).tolist():
            yield stops.restarts[way][1]


class _Saves:
    """The saves of a job that begins at 0, which every life has the same until it ends: made once, as far as the
    longest goes."""

    def __init__(self, stops: Stops, every: float) -> None:
        self.stops, self.every, self.clock = stops, every, 0.0
        self.counts, self.works = array("d"), array("d")  # from when on it counts, and how much work it holds

    def kept(self, until: float) -> float:
        """Seconds of work that are saved for good when the job fails at `until`."""
        work = self.works[-1] if self.works else 0.0
        while self.clock < until:
            self.clock += self.every
            work += self.every
            self.clock += self.stops.stall
            self.counts.append(self.clock + self.stops.upload)
            self.works.append(work)
        place = bisect_right(self.counts, until)
        return self.works[place - 1] if place else 0.0


def observe_replicas(
    count: int, between: float, away: float, pause: float, failures: int, seed: int, batches: int = 20
) -> SimulatedGoodput:
    """Replicas that leave and come back. between: of one of them; away: seconds until it is back; pause: seconds that
    all others wait at each failure, anew if another one comes meanwhile. The share is that of all replicas' time."""
    random = np.random.default_rng(seed)
    failure = intervals(random, between)
    events = [(failure(), i, False) for i in range(count)]
    heapq.heapify(events)
    shares, clock, paused, there, seen = [], 0.0, 0.0, count, 0
    for _ in range(batches):
        begun, useful, target = clock, 0.0, seen + failures // batches
        while seen < target:
            when, who, back = heapq.heappop(events)
            useful += max(when - max(clock, paused), 0.0) * there
            clock = when
            if back:
                there += 1
                heapq.heappush(events, (clock + failure(), who, False))
            else:
                there -= 1
                seen += 1
                paused = clock + pause
                heapq.heappush(events, (clock + away, who, True))
        shares.append(useful / count / (clock - begun))
    return SimulatedGoodput(float(np.mean(shares)), float(np.std(shares, ddof=1) / math.sqrt(batches)), seen)
