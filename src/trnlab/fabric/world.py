# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job on a cluster: which schedule serves what they ask for, and what it costs.

`Threads` connects ranks that run in threads of one process; processes have a connection of their own
(`frontends.torch.distributed`), over the same schedules and with the same results, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from trnlab.collectives import Collective, like_parts
from trnlab.fabric.cluster import Cluster, parse
from trnlab.fabric.execute import RankSchedule, exchanged, part
from trnlab.fabric.faults import applied
from trnlab.fabric.flows import Floats
from trnlab.fabric.network import Network, build
from trnlab.fabric.schedule import Ints, Schedule
from trnlab.fabric.selection import cost_of, schedule_of, seconds_of
from trnlab.fabric.threads import Hub, Queues
from trnlab.fabric.timing import CollectiveCost

Array = npt.NDArray[Any]
T = TypeVar("T")
COUNT = 4  # bytes of a number of elements: uint32
FASTER_CARDS, DEALT = "cards of twice the rate", "ranks dealt out over instances"


def counted(parts: CollectiveCost, request: Collective, network: Network, placed: Ints) -> CollectiveCost:
    """The cost of an all-to-all of parts that differ: how many elements come is told first, to each by each.

    The vendor's AllToAllV takes counts of what is sent, and its runtime fills in those of what is received
    (nki/library/api/permute-a2av.rst, build-all-to-all-v-metadata.rst: "recv_counts_known: not currently supported");
    that they are a step of their own is assumed, with the launch of the whole.
    """
    nbytes = COUNT * request.ranks
    told = cost_of(request, network, placed, nbytes)
    return replace(
        parts,
        seconds=parts.seconds + told.seconds - told.launch,
        latency=parts.latency + told.latency,
        loads=parts.loads + told.loads,
    )


@dataclass(frozen=True)
class World:
    """So many ranks on a cluster, spelled as `4xtrn2.48xlarge`. Raises UsageError for what cannot be."""

    cluster_name: str
    size: int
    # of its network, see `fabric.faults`; schedules stay as they are, and take as long as what is left allows
    faults: tuple[str, ...] = ()
    # what would be otherwise if somebody paid for it: `FASTER_CARDS` (network cards of twice the rate), `DEALT`
    # (neighbours in the order of ranks lie on different instances, as cards are dealt)
    changes: tuple[str, ...] = ()
    _costs: dict[tuple[Collective, int, bool], CollectiveCost] = field(
        default_factory=dict, compare=False, repr=False
    )
    _parts: dict[tuple[Collective, int, int], RankSchedule] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def cluster(self) -> Cluster:
        """The instances."""
        return parse(self.cluster_name)

    @cached_property
    def network(self) -> Network:
        """The links between them."""
        network = build(self.cluster)
        if FASTER_CARDS in self.changes:
            kinds = np.array([link.kind == "card" for link in network.template] * self.cluster.instances)
            kinds = np.append(kinds, np.zeros(len(network.rates) - len(kinds), np.bool_))
            network = replace(network, rates=np.where(kinds, 2 * network.rates, network.rates))
        return applied(network, self.faults)

    @cached_property
    def placed(self) -> Ints:
        """The chip of each rank."""
        placed = self.cluster.placed(self.size)
        if DEALT in self.changes:
            placed = np.ascontiguousarray(placed.reshape(self.cluster.instances, -1).T).reshape(-1)
        return placed

    def schedule(self, request: Collective, nbytes: int) -> Schedule:
        """See `selection.schedule_of`."""
        request, nbytes = like_parts(request, nbytes)
        return schedule_of(request, self.network, self.placed, nbytes)

    def cost(self, request: Collective, nbytes: int) -> CollectiveCost:
        """Time and links of a collective, whose larger buffer has so many bytes.

        Raises UsageError (TRN187) where data would have to take a link that is down.
        """
        like, nbytes = like_parts(request, nbytes)
        key = like, nbytes, bool(request.gives)
        if key not in self._costs:
            found = cost_of(like, self.network, self.placed, nbytes)
            uneven = request.gives and like.kind == "all_to_all"
            self._costs[key] = counted(found, like, self.network, self.placed) if uneven else found
        return self._costs[key]

    def seconds(self, request: Collective, nbytes: Floats) -> Floats:
        """The time of each of many sizes, on the healthy network; parts of an all-to-all are equal."""
        return seconds_of(request, self.network, self.placed, nbytes)

    def part(self, request: Collective, nbytes: int, rank: int) -> RankSchedule:
        """What a rank does in it."""
        key = request, nbytes, rank
        if key not in self._parts:
            self._parts[key] = part(self.schedule(request, nbytes), rank)
        return self._parts[key]


@lru_cache(maxsize=16)
def world_of(cluster: str, size: int, faults: tuple[str, ...] = (), changes: tuple[str, ...] = ()) -> World:
    """The world of this name, once per process."""
    return World(cluster, size, faults, changes)


@dataclass(frozen=True)
class Threads:
    """One of the ranks that run as threads of this process; see `together`."""

    world: World
    rank: int
    transport: Queues

    @property
    def size(self) -> int:
        """Ranks of the world."""
        return self.world.size

    def perform(self, request: Collective, source: Array) -> Array:
        """This rank's part, once all others of its group have come."""
        named = request.pairs or len(request.group_of(self.rank)) > 1
        if not named or not source.size:
            return source.copy()
        if request.gives:
            return exchanged(request, self.rank, source, self.transport)
        nbytes = max(source.size, request.count(source.size)) * source.itemsize
        return self.world.part(request, nbytes, self.rank).run(source, self.transport, request.reduction)


def together(world: World, run: Callable[[Threads], T]) -> list[T]:
    """What `run` gives on each rank, all at the same time. Raises what the first rank that fails raises."""
    hub = Hub(world.size)
    with ThreadPoolExecutor(world.size) as pool:
        futures = [pool.submit(run, Threads(world, rank, hub.of(rank))) for rank in range(world.size)]
        return [future.result() for future in futures]
