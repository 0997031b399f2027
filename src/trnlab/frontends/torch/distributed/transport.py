# SPDX-License-Identifier: Apache-2.0
"""What becomes of what a process group is asked for: a transport moves values, or only writes down what was asked.

A group says which tensors an exchange reads and writes, and the transport decides whether to read them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from trnlab.collectives import Collective, Groups
from trnlab.frontends.torch.distributed.calls import CollectiveCall
from trnlab.frontends.torch.distributed.flat import Flat
from trnlab.frontends.torch.distributed.jobs import PendingCall
from trnlab.frontends.torch.distributed.reductions import ReduceOp, fabrics_name
from trnlab.frontends.torch.distributed.world import ProcessWorld

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GroupExchange:
    """One collective of a group."""

    request: Collective
    source: Flat  # what this rank gives
    result: Flat  # where what comes out goes
    purpose: str = ""  # one of `collectives.PURPOSES`; "" of tensors of the host, which are not counted
    reduction: ReduceOp | None = None
    root: int = -1  # the position that all ranks have to name, -1 where there is none
    scatters: bool = False  # a broadcast of a list, of which each position keeps one part


class GroupTransport(ABC):
    """How the ranks of one group reach each other. Ranks are numbers in the job; `rank` is this process.

    What is asked for gives the jobs that have to be waited for: none where it is over at once. reads: whether values
    are read, so that tensors made of others have to be taken apart first.
    """

    reads = True

    def __init__(self, rank: int) -> None:
        self.rank = rank

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """How many collectives were asked for."""

    @abstractmethod
    def collective(self, exchange: GroupExchange) -> list[PendingCall]:
        """Do what all ranks of the group do together."""

    @abstractmethod
    def barrier(self) -> list[PendingCall]:
        """Nobody goes on before all are there."""

    @abstractmethod
    def join(self) -> list[PendingCall]:
        """This rank asks for nothing more: it adds zeros to what the others reduce, until all have joined. The result
        is the rank that was the last to join."""

    @abstractmethod
    def send(self, given: Flat, target: int, tag: int, purpose: str) -> list[PendingCall]:
        """A message to a rank."""

    @abstractmethod
    def receive(self, result: Flat, source: int | None, tag: int, purpose: str) -> list[PendingCall]:
        """A message from a rank; from whoever sends first where it is None."""

    @abstractmethod
    def meet(self, limit_s: float | None) -> None:
        """Wait at a barrier. Raises CollectiveError with the ranks that are missing after `limit_s`."""

    @abstractmethod
    def set_timeout(self, seconds: float) -> None:
        """From now on collectives have this much time."""

    @abstractmethod
    def drain(self) -> None:
        """Wait for all that was asked for."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection, if this group opened it."""


class WorldTransport(GroupTransport):
    """The transport that moves values, between processes. first: the group opened the world, and closes it.

    Every job raises CollectiveError where ranks do not agree on it (TRN270), one of them is gone (TRN271), all wait
    for each other (TRN272), or nothing happens for the timeout (TRN273).
    """

    def __init__(
        self, world: ProcessWorld, name: str, ranks: Sequence[int], groups: Groups, timeout: timedelta, first: bool
    ) -> None:
        super().__init__(world.rank)
        self._world, self._first, self._groups = world, first, groups
        self._channel = world.channel(name, ranks)
        self.set_timeout(timeout.total_seconds())
        world.fabric.check_group(groups)

    @property
    def num_requests(self) -> int:
        """See `GroupTransport`, as all others."""
        return self._channel.asked

    def collective(self, exchange: GroupExchange) -> list[PendingCall]:
        """Queued behind what the group was asked for before; the source is read now."""
        if exchange.scatters:
            return [self._scattered(exchange)]
        asked, reduction, source = exchange.request, exchange.reduction, exchange.source.read()
        if asked.gives:
            return [self._uneven(exchange, source)]
        if reduction is not None:
            source = reduction.before(source, exchange.source.tensors[0].dtype)

        def sink(values: Array) -> None:
            exchange.result.write(values if reduction is None else reduction.after(values, len(self._channel.ranks)))

        spoken = "" if reduction is None else reduction.spoken
        call = CollectiveCall(asked.kind, source.dtype.name, source.size, spoken, exchange.root)
        counted = bool(exchange.purpose)
        return [self._channel.collective(asked, source, sink, exchange.purpose, call, counted)]

    def _scattered(self, exchange: GroupExchange) -> PendingCall:
        """Straight from the root to each rank, which nobody else's part goes to, in the time of the broadcast."""
        asked, channel, fabric, source = exchange.request, self._channel, self._world.fabric, exchange.source
        count, dtype = len(channel.ranks), source.like().dtype
        each, gives = source.elements // count, self.rank == channel.ranks[exchange.root]
        given = source.read() if gives else np.empty(0, dtype)
        takes = [each if position == exchange.root else 0 for position in range(count)]

        def body(job: PendingCall, _: Mapping[int, CollectiveCall]) -> None:
            values = channel.all_to_all(given, [each if gives else 0] * count, takes)
            if not job.done:
                if exchange.purpose:
                    fabric.count(asked, np.empty(each * count, dtype), exchange.purpose)
                Flat(exchange.result.tensors).write(values)

        return channel.ask(CollectiveCall(asked.kind, dtype.name, each * count, root=exchange.root), body)

    def _uneven(self, exchange: GroupExchange, source: Array) -> PendingCall:
        """Parts of different sizes: straight from each rank to each. Where each rank has a part for one at most, that
        is a permutation. Else it takes the time of equal parts as large as the largest (assumed: the vendor says of
        its AllToAllV only that it is there)."""
        asked, channel, fabric = exchange.request, self._channel, self._world.fabric

        def body(job: PendingCall, calls: Mapping[int, CollectiveCall]) -> None:
            values = channel.all_to_all(source, asked.gives, asked.takes)
            if not job.done:
                if exchange.purpose:
                    fabric.count(*_cost_of_uneven(calls, asked.groups, source.dtype), exchange.purpose)
                exchange.result.write(values)

        return channel.ask(
            CollectiveCall("all_to_all", source.dtype.name, gives=asked.gives, takes=asked.takes), body
        )

    def barrier(self) -> list[PendingCall]:
        """All ranks meet, and nothing moves."""
        return [self._channel.ask(CollectiveCall("barrier"), lambda job, calls: None)]

    def join(self) -> list[PendingCall]:
        """Nothing that it answers is counted: there is no step of this rank's that it would take time of."""

        def answer(call: CollectiveCall) -> None:
            if call.operation == "all_reduce":
                request = Collective("all_reduce", self._groups, fabrics_name(call.reduction))
                self._world.fabric.perform(request, np.zeros(call.elements, call.dtype), self._channel)

        return [self._channel.join(answer)]

    def send(self, given: Flat, target: int, tag: int, purpose: str) -> list[PendingCall]:
        """It begins when the other rank receives; the tensor is read now."""
        return [self._channel.send(given.read(), target, tag, purpose, bool(purpose))]

    def receive(self, result: Flat, source: int | None, tag: int, purpose: str) -> list[PendingCall]:
        """It ends with the values in the tensor."""
        return [self._channel.receive(result.like(), source, tag, result.write, purpose)]

    def meet(self, limit_s: float | None) -> None:
        """Every barrier names the ranks that are missing."""
        (job,) = self.barrier()
        if not job.wait(limit_s):
            raise self._world.watch.late(job, limit_s or 0.0)

    def set_timeout(self, seconds: float) -> None:
        """Set the seconds after which a collective of this group fails."""
        self._channel.timeout_s = seconds

    def drain(self) -> None:
        """Wait for what is under way in all groups of the world."""
        self._world.watch.drain()

    def close(self) -> None:
        """Finish what was asked for, and tell the others."""
        if self._first:
            self._world.close()


def _cost_of_uneven(calls: Mapping[int, CollectiveCall], groups: Groups, dtype: Any) -> tuple[Collective, Array]:
    """What takes the time of an all-to-all whose parts differ, and what a rank gives to it. `calls`: by rank."""
    ranks = sorted(calls)
    pairs = [(rank, ranks[k]) for rank in ranks for k, n in enumerate(calls[rank].gives) if n and ranks[k] != rank]
    largest = max(max(call.gives, default=0) for call in calls.values())
    if pairs and all(len(set(ends)) == len(pairs) for ends in zip(*pairs)):
        return Collective("collective_permute", pairs=tuple(pairs)), np.empty(largest, dtype)
    return Collective("all_to_all", groups), np.empty(largest * len(ranks), dtype)
