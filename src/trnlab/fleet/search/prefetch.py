# SPDX-License-Identifier: Apache-2.0
"""Costs of programs that an executor makes while a search goes on: on processes of this machine, or on many machines.

A search asks for the costs of shares of a model one after the other, and what it asks next depends on the last
answer. Executors compile what it may ask for soon. What is made so is only used where the search asks for it, so that
a plan is the same with and without; what nobody asks for is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from trnlab import chips
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import MicrobatchCost, Programs
from trnlab.fleet.costs.stages import Stage
from trnlab.fleet.search.candidates import shards_of
from trnlab.fleet.search.shard_costs import ShardCosts, Training
from trnlab.fleet.search.steps import Planner
from trnlab.runtime.session import Session
from trnlab.stacks import OWN as OWN_STACK
from trnlab.stacks import Stack


class CompileRequest(NamedTuple):
    """Costs of a share of a model on a target."""

    target: str
    precision: str
    training: Training
    spec: tuple[Any, ...]
    stack: Stack = OWN_STACK


@dataclass
class CompilePool:
    """Shares that are compiled by an executor, as many at a time as it has workers. progress: hears of progress."""

    executor: Executor
    workers: int
    progress: Callable[[str], None] = lambda _: None
    _waiting: list[CompileRequest] = field(default_factory=list)
    _made: dict[CompileRequest, Future[Mapping[str, Any]]] = field(default_factory=dict)

    def enqueue(self, planner: Planner, training: Training, fixed: Mapping[str, int]) -> None:
        """Take note of what a search on the planner's cluster may ask for, unless it is known."""
        for share in shards_of(planner, training, fixed):
            asked = _asked(planner, training, share)
            if asked not in self._made and asked not in self._waiting and not _known(planner, training, share):
                self._waiting.append(asked)
        self._fill()

    def costs(self, request: CompileRequest) -> Mapping[str, Any]:
        """What a worker made of it; nothing where it was never looked for."""
        if request in self._waiting:
            self._waiting.remove(request)
            self._submit(request)
        if request not in self._made:
            return {}
        found = self._made[request].result()
        self.progress(f"{request.target}: a rank's share of {request.spec} is compiled, {len(self._made)} so far")
        self._fill()
        return found

    def end(self) -> None:
        """Forget what nobody asked for."""
        self._waiting.clear()
        for future in self._made.values():
            future.cancel()

    def _fill(self) -> None:
        while self._waiting and sum(not future.done() for future in self._made.values()) < self.workers:
            self._submit(self._waiting.pop(0))

    def _submit(self, request: CompileRequest) -> None:
        self._made[request] = self.executor.submit(compiled, request)


@dataclass
class PrefetchingPlanner(Planner):
    """A planner whose shares others compile."""

    pool: CompilePool | None = None
    _fetched: set[CompileRequest] = field(default_factory=set)

    def parts(self, training: Training, *share: Any) -> ShardCosts:
        """The costs of a share, from whoever has them."""
        self._fetch(_asked(self, training, share))
        return super().parts(training, *share)

    def layers(self, training: Training, *share: Any) -> ShardCosts:
        """The costs of its layers, which come with all others from whoever has them."""
        self._fetch(_asked(self, training, share))
        return super().layers(training, *share)

    def _fetch(self, asked: CompileRequest) -> None:
        if self.pool is None or asked in self._fetched:
            return
        self._fetched.add(asked)
        for key, value in self.pool.costs(asked).items():
            if key not in self.programs.known:
                self.programs.known[key] = value
                self.programs.compiled += 1


def _asked(planner: Planner, training: Training, share: tuple[Any, ...]) -> CompileRequest:
    session = planner.programs.session
    return CompileRequest(planner.cluster.target.name, session.precision, training, share, session.stack)


def compiled(request: CompileRequest) -> dict[str, Any]:
    """What a worker does: all costs of a share, as a store keeps them."""
    session = Session(chips.target(request.target), precision=request.precision, stack=request.stack)
    session.cache = None
    programs = Programs(session, {})
    planner = Planner(Cluster(session.target, 1), programs, Exchange(session.target))
    planner.parts(request.training, *request.spec)
    return {key: value if isinstance(value, dict) else asdict(value) for key, value in programs.known.items()}


class _UnknownError(Exception):
    """A cost that is not kept."""


class _Kept(Programs):
    """Costs as far as they are known: nothing is compiled."""

    def _kept(self, key: str, make: Callable[[], Stage]) -> MicrobatchCost:
        def missing() -> Stage:
            raise _UnknownError(key)

        return super()._kept(key, missing)


def _known(planner: Planner, training: Training, share: tuple[Any, ...]) -> bool:
    """Whether its layers are kept; a search that left it at those wants no more."""
    kept = _Kept(planner.programs.session, planner.programs.known)
    try:
        Planner(planner.cluster, kept, planner.exchange).layers(training, *share)
    except _UnknownError:
        return False
    return True


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """So many processes of this machine, which are ended with the block even where they are at work."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
            child.join()
