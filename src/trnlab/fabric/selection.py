# SPDX-License-Identifier: Apache-2.0
"""The schedule that serves a collective of so many bytes: of those that may, the one that is through first.

The vendor's runtime chooses by a table of limits for each operation and group, made so that what is faster is taken.
So every candidate of `choice` is laid over the network once, its time is a line in pieces over bytes
(`timing.TimedSchedule`), and of those whose windows have not ended the lowest counts. A larger buffer has no more
candidates than a smaller one, so its time is no less. On a sick network the choice is that of the healthy one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np

from trnlab.chips.interconnects import Collectives
from trnlab.collectives import Collective
from trnlab.fabric import choice, collectives
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.flows import Floats
from trnlab.fabric.network import Network, build
from trnlab.fabric.schedule import Ints, Schedule
from trnlab.fabric.timing import CollectiveCost, TimedSchedule, cost, timed

_MAKE = {
    "all_reduce": collectives.all_reduce,
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
}


@dataclass(frozen=True, eq=False)
class ServingAlgorithm:
    """A schedule that may serve a collective below so many bytes, and its time."""

    schedule: Schedule
    timed: TimedSchedule
    limit: float = inf


def schedule_of(request: Collective, network: Network, placed: Ints, nbytes: float, **forced: str) -> Schedule:
    """What serves a collective whose larger buffer, of a rank's input and output, has so many bytes.

    placed: the chip of each rank of the world. The ranks of the schedule are those of the world. forced: names of
    algorithms, as of `choice.algorithm`; the other one is chosen.
    """
    return _option(request, network, placed, nbytes, **forced).schedule


def cost_of(request: Collective, network: Network, placed: Ints, nbytes: float, **forced: str) -> CollectiveCost:
    """What that costs. Raises UsageError (TRN187) where data would have to take a link that is down."""
    found = _option(request, network, placed, nbytes, **forced)
    return cost(found.schedule, network, placed, nbytes) if network.changed else found.timed.cost(nbytes)


def seconds_of(request: Collective, network: Network, placed: Ints, nbytes: Floats) -> Floats:
    """The time of each of many sizes, by schedules that are chosen on this very network, sick or not."""
    options = _options(request, network, placed.tobytes(), ())
    times = [np.where(nbytes < option.limit, option.timed.seconds(nbytes), inf) for option in options]
    least: Floats = np.minimum.reduce(times)
    return least


def _option(request: Collective, network: Network, placed: Ints, nbytes: float, **forced: str) -> ServingAlgorithm:
    healthy = _healthy(network.cluster, network.costs) if network.changed else network
    options = _options(request, healthy, placed.tobytes(), tuple(sorted(forced.items())))
    size = np.array([nbytes], np.float64)
    return min((o for o in options if nbytes < o.limit), key=lambda option: float(option.timed.seconds(size)[0]))


@lru_cache(maxsize=16)
def _healthy(cluster: Cluster, costs: Collectives) -> Network:
    return build(cluster, costs)


@lru_cache(maxsize=128)
def _options(
    request: Collective, network: Network, placed: bytes, forced: tuple[tuple[str, str], ...]
) -> tuple[ServingAlgorithm, ...]:
    """All that may serve it, each timed; the last one at any size."""
    chips = np.frombuffer(placed, np.int64)
    return tuple(
        ServingAlgorithm(schedule, timed(schedule, network, chips), limit)
        for schedule, limit in _schedules(request, network, chips, dict(forced))
    )


def _schedules(
    request: Collective, network: Network, placed: Ints, forced: dict[str, str]
) -> Iterator[tuple[Schedule, float]]:
    """Schedules that may serve a collective, and below how many bytes."""
    if request.kind == "collective_permute":
        yield collectives.permute(request.pairs, len(placed)), inf
    elif request.kind == "all_to_all":
        yield collectives.all_to_all(request.ranks, request.groups), inf
    elif request.kind == "collective_broadcast":
        yield collectives.broadcast(request.ranks, request.groups, request.root), inf
    else:
        yield from _reduced_or_gathered(request, network, placed, forced)


def _reduced_or_gathered(
    request: Collective, network: Network, placed: Ints, forced: dict[str, str]
) -> Iterator[tuple[Schedule, float]]:
    first, make = request.groups[0], _MAKE[request.kind]
    if request.kind == "all_reduce" and not forced and (limit := choice.at_once(first, network, placed)):
        apart = choice.apart(first, network, placed)
        yield collectives.all_reduce_at_once(request.ranks, request.groups, apart), limit
    made = set()
    for inside, between, limit in choice.candidates(first, network, placed):
        names = {"inside": inside, "between": between} | forced
        if tuple(names.values()) not in made:
            made.add(tuple(names.values()))
            algorithm = choice.algorithm(first, network, placed, **names)
            yield make(algorithm, request.groups), inf if "inside" in forced else limit
