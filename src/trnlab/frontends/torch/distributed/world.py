# SPDX-License-Identifier: Apache-2.0
"""The connection of this process to the other ranks: gloo carries the bytes, lanes do what was asked for in order."""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from trnlab.collectives import Collective
from trnlab.errors import CollectiveError
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.execute import exchanged
from trnlab.frontends.torch.distributed import calls, run_folder, sites
from trnlab.frontends.torch.distributed.calls import HEADER_BYTES, CollectiveCall
from trnlab.frontends.torch.distributed.jobs import MEETING, MOVING, CallQueue, PendingCall
from trnlab.frontends.torch.distributed.watch import PeerWatch
from trnlab.frontends.torch.parallel.attempts import of_attempt
from trnlab.runtime import session
from trnlab.runtime.analysis.traffic import Fabric

Array = npt.NDArray[Any]
Body = Callable[[PendingCall, Mapping[int, CollectiveCall]], Any]
LARGEST_TAG = 0x7FFFFFFF
PATIENCE_S = 0.5
CONNECTING_S = 10.0  # at most, for ranks that still do at the end of this one
_opened: Counter[tuple[int, ...]] = Counter()  # how many worlds this process has had of the same ranks


class ProcessWorld:
    """All ranks that this process can reach. `ranks`: their numbers in the job, in the order of their positions.

    Raises UsageError when no target is chosen or the ranks do not fit on it (TRN120, TRN180, TRN274).
    """

    def __init__(self, store: Any, rank: int, ranks: Sequence[int], size: int, timeout: timedelta) -> None:
        self.rank, self.ranks, self.size = rank, tuple(ranks), size
        self.fabric = Fabric(session.current(), size, rank)
        self.positions = {each: position for position, each in enumerate(self.ranks)}
        self.closed = False
        self._lanes: dict[object, CallQueue] = {}
        self.store = dist.PrefixStore(f"trnlab/{_nth(self.ranks)}", store)
        self.timeout_s = timeout.total_seconds()
        self.watch = PeerWatch(self, self.store, self.timeout_s)
        self.watch.start()
        try:
            self.watch.all_there()
        except BaseException:  # while there is a store to write to
            self.watch.stop("failed", "not all ranks came")
            raise
        self.gloo = dist.ProcessGroupGloo(
            dist.PrefixStore("gloo", self.store), self.positions[rank], len(self.ranks), timeout
        )
        self.watch.connected()
        self._channels: dict[tuple[str, tuple[int, ...]], Channel] = {}
        self._lock = threading.Lock()
        self._mail: dict[int, SimpleQueue[Array]] = {}
        self._kept: list[Any] = []  # of transfers that failed: gloo may still write to their memory

    @property
    def cluster(self) -> Cluster:
        """The instances that the ranks are on."""
        return self.fabric.world.cluster

    def perform(self, request: Collective, source: Array) -> Array:
        """One collective of a compiled program: blocks, and returns a new flat array.

        `source`: flat. Raises CollectiveError when ranks disagree or one is gone.
        """
        group = request.group_of(self.rank) if request.groups else self.ranks
        if request.gives:
            return self._exchanged(request, group, source)
        if len(group) == 1 or not source.size:
            return source.copy()
        call = CollectiveCall(request.kind, source.dtype.name, source.size, request.reduction, request.root)
        job = self.channel("programs", group).collective(request, source, _same, "program", call, counted=False)
        job.wait()
        result: Array = job.result
        return result

    def _exchanged(self, request: Collective, group: tuple[int, ...], source: Array) -> Array:
        channel = self.channel("programs", group)
        call = CollectiveCall(request.kind, source.dtype.name, gives=request.gives, takes=request.takes)
        job = channel.ask(call, lambda job, calls: exchanged(request, self.rank, source, channel))
        job.wait()
        result: Array = job.result
        return result

    def channel(self, name: str, ranks: Sequence[int]) -> Channel:
        """The channel of some of the ranks, which all of them know by this name."""
        with self._lock:
            return self._channels.setdefault((name, tuple(ranks)), Channel(self, name, tuple(ranks)))

    def lane(self, key: object) -> CallQueue:
        """The lane for one kind of jobs."""
        with self._lock:
            return self._lanes.setdefault(key, CallQueue(f"trnlab {key}"))

    def exchange(self, tag: int, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """As `Transport.exchange`, between ranks of the job; messages with other tags do not get in between."""
        if self.rank in sends:
            self._own(tag).put(sends[self.rank].copy())
        others = [peer for peer in receives if peer != self.rank]
        pairs = [(peer, self._post(self.gloo.recv, peer, receives[peer], tag)) for peer in others]
        others = [peer for peer in sends if peer != self.rank]
        pairs += [(peer, self._post(self.gloo.send, peer, sends[peer], tag)) for peer in others]
        if self.rank in receives:
            receives[self.rank][:] = self._own(tag).get()
        for peer, work in pairs:
            try:
                work.wait()
            except RuntimeError as error:
                self._kept.append((pairs, sends, receives))
                raise self.watch.lost(peer) from error

    def _own(self, tag: int) -> SimpleQueue[Array]:
        """Messages from this rank to itself, which gloo does not carry."""
        with self._lock:
            return self._mail.setdefault(tag, SimpleQueue())

    def _post(self, operation: Any, peer: int, array: Array, tag: int) -> Any:
        try:
            return operation([torch.from_numpy(array)], self.positions[peer], tag)
        except RuntimeError as error:
            raise self.watch.lost(peer) from error

    def close(self) -> None:
        """Finish what was asked for, tell the others, and let go."""
        if not self.closed:
            self.closed = True
            self.watch.drain()
            self.watch.stop("left")
            self.release()

    def release(self) -> None:
        """End the threads. One that waits for a rank that will never answer is freed by breaking all connections,
        which gloo does when a wait takes too long."""
        self.watch.all_connected(CONNECTING_S)
        for lane in self._lanes.values():
            lane.close()
        ended = [lane.join(PATIENCE_S) for lane in self._lanes.values()]
        if not all(ended):
            other = next(rank for rank in self.ranks if rank != self.rank)
            with contextlib.suppress(RuntimeError):
                nothing = self.gloo.recv([torch.zeros(1)], self.positions[other], LARGEST_TAG)
                nothing.wait(timedelta(milliseconds=1))
            for lane in self._lanes.values():
                lane.join(PATIENCE_S)


class Channel:
    """Some of the ranks, who do things together in one order. `name`: for messages. `timeout_s`: of its calls."""

    def __init__(self, world: ProcessWorld, name: str, ranks: tuple[int, ...]) -> None:
        self.world, self.name, self.ranks = world, name, ranks
        self.timeout_s = world.timeout_s
        self.others = [rank for rank in ranks if rank != world.rank]
        self._counts: dict[object, int] = {}
        self._lock = threading.Lock()
        self._tag = self.tag("data")
        self._lane = ("collectives", self.name, self.ranks)

    def tag(self, *parts: object) -> int:
        """A tag that all ranks of the channel agree on."""
        return zlib.crc32(repr((self.name, self.ranks, parts)).encode()) & LARGEST_TAG

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """As `Transport.exchange`."""
        self.world.exchange(self._tag, sends, receives)

    # -- all ranks ------------------------------------------------------------------------------------------------
    def ask(self, call: CollectiveCall, body: Body) -> PendingCall:
        """Queue `body`, which runs once all ranks have asked for the same, with what each of them asked for."""

        def work(job: PendingCall) -> Any:
            asked = self._meet(job)
            calls.check_of_joined(asked, self.name)
            asked = {rank: each for rank, each in asked.items() if not each.joined}
            calls.check(asked, self.name)
            job.phase = MOVING
            return body(job, asked)

        return self._put(self._lane, call, self.ranks, work)

    def join(self, answer: Callable[[CollectiveCall], Any]) -> PendingCall:
        """Queue the end of this rank's calls: `answer` is called with each that the others still make, until all have
        joined. The job's result is the rank that was the last to join."""

        def work(job: PendingCall) -> int:
            while True:
                asked = self._meet(job)
                others = {rank: each for rank, each in asked.items() if not each.joined}
                if not others:
                    return calls.last_joined(asked)
                self._answer(job, asked, others, answer)
                answered, since = job.call.joined
                job.call = replace(job.call, joined=(answered + 1, since))
                job.since = time.monotonic()
                with self._lock:
                    self._counts[self._lane] += 1

        return self._put(self._lane, CollectiveCall("join", joined=(0, time.time_ns())), self.ranks, work)

    def _answer(
        self,
        job: PendingCall,
        asked: Mapping[int, CollectiveCall],
        others: Mapping[int, CollectiveCall],
        answer: Callable[[CollectiveCall], Any],
    ) -> None:
        """Take part in what the others ask for; not in a mistake, which they find out themselves."""
        try:
            calls.check_of_joined(asked, self.name)
            calls.check(others, self.name)
        except CollectiveError:
            return
        job.phase = MOVING
        answer(next(iter(others.values())))

    def collective(
        self,
        request: Collective,
        source: Array,
        sink: Callable[[Array], Any],
        purpose: str,
        call: CollectiveCall,
        counted: bool = True,
    ) -> PendingCall:
        """Queue a collective of the fabric's. `sink` is given the result; `source` must not change any more."""
        fabric = self.world.fabric

        def body(job: PendingCall, _: Mapping[int, CollectiveCall]) -> Any:
            result = fabric.perform(request, source, self)
            if not job.done:
                if counted:
                    fabric.count(request, source, purpose)
                return sink(result)
            return None

        return self.ask(call, body)

    def _meet(self, job: PendingCall) -> dict[int, CollectiveCall]:
        job.phase = MEETING
        mine = np.frombuffer(job.call.encoded(), np.uint8).copy()
        theirs = {rank: np.empty(HEADER_BYTES, np.uint8) for rank in self.others}
        self.world.exchange(self.tag("meet"), dict.fromkeys(self.others, mine), theirs)
        return {self.world.rank: job.call} | {rank: calls.decoded(each.tobytes()) for rank, each in theirs.items()}

    def all_to_all(self, source: Array, gives: Sequence[int], takes: Sequence[int]) -> Array:
        """Within a job: parts of these many elements go to each position, and come from each; flat."""
        asked = Collective("all_to_all", (self.ranks,), gives=tuple(gives), takes=tuple(takes))
        return exchanged(asked, self.world.rank, source, self)[: sum(takes)]

    @property
    def asked(self) -> int:
        """How many collectives were asked for."""
        return self._counts.get(self._lane, 0)

    # -- two ranks ------------------------------------------------------------------------------------------------
    def send(self, array: Array, target: int, tag: int, purpose: str, counted: bool) -> PendingCall:
        """Queue a transfer to a rank; it begins when that rank receives (assumed: the device keeps no message)."""

        def work(job: PendingCall) -> None:
            self._agree(job, target, tag, first=True)
            self.world.exchange(self.tag("transfer", tag), {target: _bytes(array)} if array.size else {}, {})
            if counted:
                self.world.fabric.count_transfer(self.world.rank, target, array, purpose)

        call = CollectiveCall("send", array.dtype.name, array.size)
        return self._put(("send", self.name, self.ranks, target, tag), call, (self.world.rank, target), work)

    def receive(
        self,
        like: Array,
        source: int | None,
        tag: int,
        sink: Callable[[Array], Any],
        purpose: str = "",
    ) -> PendingCall:
        """Queue a transfer from a rank, or from whoever sends first. `sink` is given what came. purpose: of what is
        counted."""

        def work(job: PendingCall) -> None:
            job.source = self._agree(job, source, tag, first=False)
            arrived = np.empty(like.size, like.dtype)
            if like.size:
                self.world.exchange(self.tag("transfer", tag), {}, {job.source: _bytes(arrived)})
            if not job.done:
                if purpose:
                    self.world.fabric.count_receipt(job.source, self.world.rank, like, purpose)
                sink(arrived)

        call = CollectiveCall("recv", like.dtype.name, like.size)
        partners = self.ranks if source is None else (self.world.rank, source)
        return self._put(("recv", self.name, self.ranks, source, tag), call, partners, work)

    def _agree(self, job: PendingCall, peer: int | None, tag: int, first: bool) -> int:
        """Exchange headers with the partner of a transfer; returns who it is."""
        job.phase = MEETING
        mine, theirs = np.frombuffer(job.call.encoded(), np.uint8).copy(), np.empty(HEADER_BYTES, np.uint8)
        head, answer = self.tag("head", tag), self.tag("answer", tag)
        if peer is None:
            peer = self._anyone(theirs, head)
            self.world.exchange(answer, {peer: mine}, {})
        elif first:
            self.world.exchange(head, {peer: mine}, {})
            self.world.exchange(answer, {}, {peer: theirs})
        else:
            self.world.exchange(head, {}, {peer: theirs})
            self.world.exchange(answer, {peer: mine}, {})
        other = calls.decoded(theirs.tobytes())
        if (other.dtype, other.elements) != (job.call.dtype, job.call.elements):
            both = {self.world.rank: job.call, peer: other}
            raise calls.mismatch(
                both, "two ranks disagree on what is sent", "a recv has the format and size of its send"
            )
        job.phase = MOVING
        return peer

    def _anyone(self, header: Array, tag: int) -> int:
        work = self.world.gloo.recv_anysource([torch.from_numpy(header)], tag)
        try:
            work.wait()
        except RuntimeError as error:
            raise self.world.watch.lost(None) from error
        return self.world.ranks[work._source_rank()]

    def _put(
        self, lane: object, call: CollectiveCall, ranks: Sequence[int], work: Callable[[PendingCall], Any]
    ) -> PendingCall:
        watch = self.world.watch
        if watch.verdict is not None:
            raise watch.verdict
        with self._lock:
            number = self._counts[lane] = self._counts.get(lane, 0) + 1
            asked = replace(call, number=number, site=str(sites.site()))
            job = PendingCall(asked, ranks, self.name, work, self.timeout_s)
            watch.add(job)
            return self.world.lane(lane).put(job)


def _same(array: Array) -> Array:
    return array


def _bytes(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


_current: ProcessWorld | None = None


def _nth(ranks: tuple[int, ...]) -> str:
    """A name for a world of these ranks that none before it has had: a store outlives `destroy_process_group`, with
    all that was said in it."""
    _opened[ranks] += 1
    return f"{ranks}-{_opened[ranks]}"


def current() -> ProcessWorld | None:
    """The world of this process, if it has one."""
    return _current if _current is not None and not _current.closed else None


def open_world(store: Any, rank: int, ranks: Sequence[int], size: int, timeout: timedelta) -> ProcessWorld:
    """Connect to the other ranks; what a session's programs use is this world too."""
    global _current
    store = of_attempt(store)
    _current = ProcessWorld(store, rank, ranks, size, timeout)
    session.current().communicator = _current
    run_folder.begin(_current.store, rank, size)
    return _current
