# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job send each other: by which schedules, how long it takes on the fabric, and the sum of it."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trnlab.collectives import Collective
from trnlab.errors import CollectiveError
from trnlab.fabric import choice
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.execute import Transport
from trnlab.fabric.world import world_of
from trnlab.runtime.communication import UncapturedCollective
from trnlab.runtime.session import Session

Array = npt.NDArray[Any]
MOST = 1 << 18  # collectives between two steps that are remembered one by one
WORLDS: Mapping[str, tuple[int, ...]] = {"trn1.32xlarge": (1, 2, 4, 8, 32), "trn1n.32xlarge": (1, 2, 4, 8, 32)}


@dataclass
class CollectiveTotals:
    """Sum of collectives: how many, the bytes that they were given, seconds on the fabric."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, nbytes: int, seconds: float) -> None:
        """One more."""
        self.calls, self.bytes, self.seconds = self.calls + 1, self.bytes + nbytes, self.seconds + seconds

    def as_json(self) -> dict[str, Any]:
        """For the summary."""
        return {"calls": self.calls, "bytes": self.bytes, "seconds": self.seconds}


@dataclass
class Traffic:
    """The sums of one rank, by purpose and by operation, and the bytes on each link.

    healthy: seconds of all on the network without its faults, where it has some.
    """

    by_purpose: dict[str, CollectiveTotals] = field(default_factory=lambda: defaultdict(CollectiveTotals))
    by_operation: dict[str, CollectiveTotals] = field(default_factory=lambda: defaultdict(CollectiveTotals))
    loads: Any = 0.0
    healthy: float = 0.0
    recent: list[UncapturedCollective] = field(default_factory=list)  # since a step ended, up to `MOST`
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, each: UncapturedCollective, healthy: float = 0.0) -> None:
        """One more collective."""
        with self.lock:
            self.healthy += healthy
            self.by_purpose[each.purpose].add(each.nbytes, each.cost.seconds)
            self.by_operation[each.request.kind].add(each.nbytes, each.cost.seconds)
            self.loads = self.loads + each.cost.loads
        self.note(each)

    def note(self, each: UncapturedCollective) -> None:
        """The step takes longer by it."""
        with self.lock:
            if len(self.recent) < MOST:
                self.recent.append(each)

    def take(self) -> list[UncapturedCollective]:
        """What was added since this was last asked, in order."""
        with self.lock:
            found, self.recent = self.recent, []
        return found


class Fabric:
    """The network under the ranks of a job, for one of them.

    Raises UsageError when the ranks have no room (TRN180) or the network lacks a link that is said to be sick
    (TRN184), and CollectiveError (TRN274) when the runtime does not start so many on an instance.
    """

    def __init__(self, session: Session, ranks: int, rank: int) -> None:
        self.ranks, self.rank = ranks, rank
        name = Cluster(session.target, instances(session, ranks)).name
        self.world, self.well = world_of(name, ranks, session.faults), world_of(name, ranks)
        self.network, self.placed = self.world.network, self.world.placed
        self._check_world()
        self.traffic = Traffic()
        session.counters.fabric = self

    def _check_world(self) -> None:
        cluster = self.network.cluster
        allowed = WORLDS.get(cluster.target.name)
        each = self.ranks // cluster.instances
        if allowed is not None and each not in allowed:
            raise CollectiveError(
                f"{each} ranks on one {cluster.target.name} are not a world that the runtime starts",
                code="TRN274",
                limit=f"{', '.join(map(str, allowed))} ranks per instance",
                got=each,
                chip=cluster.target.chip.name,
                remedy=f"start {max(n for n in allowed if n < each)} or {min(n for n in allowed if n > each)} ranks",
            )

    def check_group(self, groups: Sequence[Sequence[int]]) -> None:
        """Raises UsageError (TRN183) for a group that is not the same on every instance and chip."""
        for group in groups:
            if len(group) > 1:
                choice.shape_of(group, self.network, self.placed)

    @property
    def place(self) -> dict[str, int]:
        """Where this rank is: instance, chip within it, and core within the chip."""
        chip = int(self.placed[self.rank])
        core = int(np.flatnonzero(self.placed == chip).tolist().index(self.rank))
        each = self.network.cluster.target.chips
        return {"instance": chip // each, "chip": chip % each, "core": core}

    def perform(self, request: Collective, source: Array, transport: Transport) -> Array:
        """This rank's part of a collective; the result is a new flat array."""
        return self.world.part(request, _nbytes(request, source), self.rank).run(source, transport, request.reduction)

    def count(self, request: Collective, source: Array, purpose: str) -> None:
        """A collective was done: add its time on the fabric."""
        nbytes = _nbytes(request, source)
        healthy = self.well.cost(request, nbytes).seconds if self.world.faults else 0.0
        self.traffic.add(
            UncapturedCollective(request, purpose, source.nbytes, nbytes, self.world.cost(request, nbytes)), healthy
        )

    def take(self) -> list[UncapturedCollective]:
        """What was done together, outside of programs, since this was last asked."""
        return self.traffic.take()

    def count_receipt(self, source: int, target: int, array: Array, purpose: str) -> None:
        """A message came: this rank waited for it as long as its sender; it gave nothing."""
        asked = Collective("collective_permute", pairs=((source, target),))
        self.traffic.note(UncapturedCollective(asked, purpose, 0, array.nbytes, self.world.cost(asked, array.nbytes)))

    def count_transfer(self, source: int, target: int, array: Array, purpose: str) -> None:
        """The same of a message from one rank to another."""
        self.count(Collective("collective_permute", pairs=((source, target),)), array, purpose)

    def record(self) -> dict[str, Any]:
        """For the summary."""
        traffic, rates = self.traffic, np.maximum(self.network.rates, 1)
        busy = np.broadcast_to(np.asarray(traffic.loads, np.float64), rates.shape) / rates
        most = int(busy.argmax()) if len(busy) else 0
        busiest = (
            {"link": self.network.name(most), "seconds": float(busy[most])} if len(busy) and busy[most] else None
        )
        return {
            "rank": self.rank,
            "ranks": self.ranks,
            "instances": self.network.cluster.instances,
            "place": self.place,
            "seconds": sum(each.seconds for each in traffic.by_purpose.values()),
            "by_purpose": {name: each.as_json() for name, each in sorted(traffic.by_purpose.items())},
            "by_operation": {name: each.as_json() for name, each in sorted(traffic.by_operation.items())},
            "busiest": busiest,
            **({"faults": list(self.world.faults), "healthy_seconds": traffic.healthy} if self.world.faults else {}),
        }


def _nbytes(request: Collective, source: Array) -> int:
    """Bytes of the larger of input and output."""
    return max(source.size, request.count(source.size)) * source.itemsize


def instances(session: Session, ranks: int) -> int:
    """Over how many instances the ranks lie: as the target says, or as many as torchrun was started on."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or 0)
    started = ranks // local if local and ranks % local == 0 else 1
    return max(session.instances, started)
