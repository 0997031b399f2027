# SPDX-License-Identifier: Apache-2.0
"""Kernels on several simulated ranks, in one process: what nki.collectives communicate between.

    ranks = nki.simulate(kernel[2], ranks=4)
    results = ranks(nki.per_rank(shards), weights)      # a list, one result per rank

A rank has HBM of its own. An argument in `per_rank` differs from rank to rank; any other array is what all ranks
start with, each with a copy of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from trnlab.errors import UsageError
from trnlab.nki.kernel import Kernel
from trnlab.nki.target import default_chip
from trnlab.nki.tracing.arrays import Array, HostArray, origin_of
from trnlab.nki.tracing.traces import MultiRankTrace, Trace, memory_of, result_of
from trnlab.timeline import Timeline


class PerRank(tuple[Any, ...]):
    """One value for each rank."""

    __slots__ = ()


def per_rank(values: Iterable[Any]) -> PerRank:
    """An argument that is another one on each rank: as many values as there are ranks."""
    return PerRank(values)


class RankedKernel:
    """A kernel that runs on `ranks` ranks at once. Recorded at each call: ranks may differ in what they do."""

    def __init__(self, kernel: Kernel, ranks: int) -> None:
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise UsageError("a number of ranks", code="TRN115", limit="1 or more", got=ranks, remedy="ranks=2")
        self.kernel, self.ranks = kernel, ranks

    def __getitem__(self, grid: Any) -> RankedKernel:
        """On so many cores per rank."""
        return RankedKernel(self.kernel[grid], self.ranks)

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Run; returns what each rank returns. Arrays in `per_rank` are written in place, others are not."""
        from trnlab.nki.tracing.execution import execute

        calls = self._calls(args, kwargs)
        recording, own = self._record(calls), _own(args, kwargs)
        chip = self.kernel.chip or default_chip()
        memories = [_memory(trace, arrays, own) for trace, (_, arrays) in zip(recording.traces, calls)]
        execute(recording.program, chain(*memories), chip, self.kernel.policy(chip), self.kernel.options)
        results = []
        for trace, (_, arrays), memory in zip(recording.traces, calls, memories):
            for position in trace.written:
                if id(arrays[position].origin) in own:
                    arrays[position].store(memory[position])
            results.append(result_of(trace, memory, origin_of(arrays)))
        return results

    def timeline(self, *args: Any, **kwargs: Any) -> Timeline:
        """When each instruction of each core of each rank would run."""
        from trnlab.sim.timing import time_program

        recording, chip = self._record(self._calls(args, kwargs)), self.kernel.chip or default_chip()
        return time_program(recording.program, chip, policy=self.kernel.policy(chip))

    def _record(self, calls: list[tuple[dict[str, Any], list[HostArray]]]) -> MultiRankTrace:
        return self.kernel.record(calls, self.kernel.chip or default_chip())

    def _calls(self, args: Any, kwargs: Any) -> list[tuple[dict[str, Any], list[HostArray]]]:
        """The arguments of each rank."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, PerRank) and len(value) != self.ranks:
                raise UsageError(
                    "per_rank has one value for each rank",
                    code="TRN115",
                    limit=f"{self.ranks} values",
                    got=len(value),
                    remedy="pass as many values as ranks",
                )
        return [
            self.kernel.bind([self._of(v, rank) for v in args], {k: self._of(v, rank) for k, v in kwargs.items()})
            for rank in range(self.ranks)
        ]

    @staticmethod
    def _of(value: Any, rank: int) -> Any:
        return value[rank] if isinstance(value, PerRank) else value


def _own(args: Any, kwargs: Any) -> set[int]:
    """Identities of the arrays that belong to one rank."""
    return {id(value) for given in (*args, *kwargs.values()) if isinstance(given, PerRank) for value in given}


def _memory(trace: Trace, arrays: list[HostArray], own: set[int]) -> list[Array]:
    """One array per tensor of a rank; what all ranks were given and this one writes to is a copy."""
    mine = [
        replace(array, data=array.data.copy()) if n in trace.written and id(array.origin) not in own else array
        for n, array in enumerate(arrays)
    ]
    return memory_of(trace, mine)
