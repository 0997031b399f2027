# SPDX-License-Identifier: Apache-2.0
"""What a job that fails at random achieves: closed forms, exact for failures without memory.

Work is saved every T seconds, which holds it up for c seconds; a save counts `upload` seconds later. After a failure
the job goes back to the last save that counts, and is at work again R seconds later, if nothing fails meanwhile. M is
the mean time between failures. All in seconds.

Young (1974) and Daly (2006) neglect two failures in one interval: waste = c / T + (T / 2 + R) / M. The forms here do
not, and agree with them where everything is short against M. A life of the job, from one restart to the next, lasts
M / E[exp(-R / M)] on average, and completes a geometric number of saves: that gives the share that advances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HUGE = 700.0  # exp of more overflows


@dataclass(frozen=True)
class Stops:
    """How a job stops and goes on. restarts: (probability, seconds) of each way to go on, 1 altogether."""

    between: float  # mean seconds from failure to failure
    stall: float  # seconds that a save holds the work up
    upload: float  # seconds from then on until the save counts
    restarts: Sequence[tuple[float, float]]

    @property
    def restart(self) -> float:
        """Mean seconds of one that nothing interrupts."""
        return sum(p * seconds for p, seconds in self.restarts)

    @property
    def survived(self) -> float:
        """The probability that nothing fails while the job restarts."""
        return sum(p * math.exp(-seconds / self.between) for p, seconds in self.restarts)

    def best(self) -> float:
        """The T of which least is lost: 1 - exp(-(T + c) / M) = T / M. Not shorter than an upload, since a save
        waits for the one before."""
        if self.stall <= 0:
            return max(self.upload, 1e-6 * self.between)
        low, high = 0.0, self.between
        for _ in range(80):
            middle = (low + high) / 2
            late = -math.expm1(-(middle + self.stall) / self.between) < middle / self.between
            low, high = (low, middle) if late else (middle, high)
        return max(high, self.upload - self.stall)

    def share(self, every: float) -> float:
        """Share of the time, what advances the work for good, with a save after every so many seconds of it."""
        span = (every + self.stall) / self.between
        late = self.upload / self.between
        if span + late > HUGE or self.survived <= 0:
            return 0.0
        return every / self.between * math.exp(-late) / math.expm1(span) * self.survived

    def waste(self, every: float) -> dict[str, float]:
        """Shares of the time that do not advance it; with `share` they are 1."""
        useful = self.share(every)
        saving = useful * self.stall / every
        restarts = 1.0 - self.survived
        again = max(1.0 - restarts - useful - saving, 0.0)
        return {"checkpoints": saving, "work done again": again, "restarts": restarts}

    def first_order(self, every: float) -> float:
        """`share` as Young and Daly have it, which holds while all of it is short against `between`."""
        lost = (every + self.stall) / 2 + self.upload + self.restart
        return max(1.0 - self.stall / (every + self.stall) - lost / self.between, 0.0)


def young(stall: float, between: float) -> float:
    """The interval of Young (1974)."""
    return math.sqrt(2 * stall * between)


def none_free(spares: int, busy: float) -> float:
    """The probability that of so many spares none is free, where `busy` would be away on average: Erlang's loss
    formula. It holds however long each is away, as long as the mean is the same."""
    blocked = 1.0
    for i in range(1, spares + 1):
        blocked = busy * blocked / (i + busy * blocked)
    return blocked


def spares_for(busy: float, most: float) -> int:
    """The fewest spares of which none is free with probability `most` at most."""
    blocked, count = 1.0, 0
    while blocked > most:
        count += 1
        blocked = busy * blocked / (count + busy * blocked)
    return count


def replicas(count: float, between: float, away: float, pause: float) -> tuple[float, float]:
    """Availability of replicas that leave for `away` seconds, `between` apart each: the share of the time that one
    is there, and that in which, with one there, none of the others has left within the last `pause` seconds, for
    which all wait.

    Their product is exact where a pause is not longer than an absence: then each has left at most once within it.
    """
    cycle = between + away
    return between / cycle, max(1.0 - pause / cycle, 0.0) ** max(count - 1, 0.0)
