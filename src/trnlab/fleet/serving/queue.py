# SPDX-License-Identifier: Apache-2.0
"""Continuous batching, simulated: requests come at random, are prefilled one at a time, and decode together.

An engine does one thing at a time: the prefill of a request, which ends with its first token, or a decoding step,
which gives each request of the batch one more. A request takes a free place of the batch when its prefill begins.
While the batch stays as it is, all its steps take the same time, so that only arrivals and departures are looked at.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


PREFILL_FIRST, TURNS = "prefill-first", "turns"
POLICIES = {
    PREFILL_FIRST: "whoever waits is prefilled before the batch goes on",
    TURNS: "the batch makes a step after each prefill",
}


@dataclass(frozen=True)
class ReplicaTimes:
    """What one copy of a model takes."""

    prefill: float  # seconds of a request's
    # seconds of a step by the size of the batch's program, in which a smaller batch is padded; the largest is how
    # many requests there may be
    decode: Mapping[int, float]
    policy: str = PREFILL_FIRST

    @property
    def places(self) -> int:
        """Requests that decode together at most."""
        return max(self.decode)

    def step(self, active: int) -> float:
        """Seconds of a decoding step: of the quickest program that has room for the batch."""
        return min(seconds for batch, seconds in self.decode.items() if batch >= active)

    def capacity(self, output: int) -> float:
        """Requests a second that are never exceeded: prefills one by one, and steps of full batches."""
        each = min(seconds / batch for batch, seconds in self.decode.items())
        return 1.0 / (self.prefill + (output - 1) * each)


@dataclass(frozen=True)
class RequestLatencies:
    """What happened to each request, in seconds: from arrival to its first token, and to its last."""

    first: Array
    whole: Array
    output: int
    span: float  # from the first arrival to the last departure
    batch: float  # requests decoding, mean over the time of decoding
    busy: float  # share of the time in which the engine works
    present: float  # requests in it or waiting, mean over the time

    @property
    def each(self) -> Array:
        """Seconds for each token after the first."""
        return (self.whole - self.first) / max(self.output - 1, 1)

    @property
    def throughput(self) -> float:
        """Requests a second."""
        return len(self.whole) / self.span


def serve(engine: ReplicaTimes, rate: float, output: int, requests: int, seed: int) -> RequestLatencies:
    """So many requests at `rate` a second (a Poisson process), each of `output` tokens. The same seed gives the same
    arrivals but for the rate."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1.0, requests)) / rate
    state = _State(engine, arrivals.tolist(), output)
    while state.left:
        state.advance()
    whole = state.done - arrivals
    span = float(state.clock - arrivals[0])
    return RequestLatencies(
        state.first - arrivals,
        whole,
        output,
        span,
        state.decoded / max(state.decoding, 1e-30),
        state.busy / span,
        state.present / span,
    )


class _State:
    """The engine's clock, who waits, and who decodes."""

    def __init__(self, engine: ReplicaTimes, arrivals: list[float], output: int) -> None:
        self.engine, self.arrivals, self.output = engine, arrivals, output
        self.clock, self.steps, self.came, self.left = arrivals[0], 0, 0, len(arrivals)
        self.waiting: deque[int] = deque()
        self.active: list[tuple[int, int]] = []  # the step after which it is done, and which request
        self.first, self.done = np.zeros(len(arrivals)), np.zeros(len(arrivals))
        self.busy = self.decoding = self.decoded = self.present = 0.0
        self.owed = False  # a step of the batch, by the policy of turns

    def advance(self) -> None:
        """One prefill, or as many steps as pass until somebody comes or goes."""
        self._arrived()
        free = len(self.active) < self.engine.places
        if self.waiting and free and not (self.owed and self.active):
            self._prefill()
        elif self.active:
            self._decode(1 if self.owed else self._undisturbed(free))
        else:
            self._pass(self.arrivals[self.came] - self.clock)

    def _arrived(self) -> None:
        while self.came < len(self.arrivals) and self.arrivals[self.came] <= self.clock:
            self.waiting.append(self.came)
            self.came += 1

    def _pass(self, seconds: float) -> None:
        """Time goes by; who is present is added up, those who come meanwhile from when they come."""
        end = self.clock + seconds
        self.present += (len(self.waiting) + len(self.active)) * seconds
        i = self.came
        while i < len(self.arrivals) and self.arrivals[i] < end:
            self.present += end - self.arrivals[i]
            i += 1
        self.clock = end

    def _prefill(self) -> None:
        who = self.waiting.popleft()
        seconds = self.engine.prefill
        self.present += seconds  # its own, which no longer waits
        self._pass(seconds)
        self.busy += seconds
        self.first[who] = self.clock
        if self.output == 1:
            self._leave(who)
        else:
            heapq.heappush(self.active, (self.steps + self.output - 1, who))
        self.owed = self.engine.policy == TURNS

    def _undisturbed(self, free: bool) -> int:
        """Steps until one of the batch is done, or until somebody comes for whom there is a place."""
        steps = self.active[0][0] - self.steps
        if free and self.came < len(self.arrivals):
            until = (self.arrivals[self.came] - self.clock) / self.engine.step(len(self.active))
            steps = min(steps, max(math.ceil(until), 1))
        return steps

    def _decode(self, steps: int) -> None:
        seconds = steps * self.engine.step(len(self.active))
        self._pass(seconds)
        self.busy += seconds
        self.decoding += seconds
        self.decoded += seconds * len(self.active)
        self.steps += steps
        self.owed = False
        while self.active and self.active[0][0] <= self.steps:
            self._leave(heapq.heappop(self.active)[1])

    def _leave(self, who: int) -> None:
        self.done[who] = self.clock
        self.left -= 1
