# SPDX-License-Identifier: Apache-2.0
"""What compiling a program will take here, from its size and from what the cache recorded of others.

The figures are measured (`python -m tools.compile_times`), in processor seconds; what a machine needs for that is
calibrated by the entries of its cache, each of which keeps its size and the seconds that it took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.graph.ir import Graph, Op
from trnlab.runtime.cache.executables import Cache

# Measured by `tools.compile_times` on ten steps, 2026-11, on one of two processors of a host in the cloud. What these
# took lies between 0.76 and 2.3 times what the figures say: wide layers and convolutions take longer than small ones.
ONCE_S, OP_S, DISTINCT_S = 0.0, 4.29e-4, 1.441e-3
LEAST, MOST = 0.7, 2.5  # times a prediction by them: what was measured, and a little more
ENOUGH = 5  # entries from which on they say how far off a prediction is


@dataclass(frozen=True)
class GraphSize:
    """The size of a graph, as far as the time of compiling it goes by that."""

    ops: int  # of a graph
    # of them, those that differ in more than their place: layers that are alike count once, as their routines are
    # compiled once
    distinct_ops: int

    @property
    def seconds(self) -> float:
        """Processor seconds on the machine of the figures."""
        return ONCE_S + OP_S * self.ops + DISTINCT_S * self.distinct_ops


def size_of(graph: Graph) -> GraphSize:
    """Size of a graph, as an entry of the cache keeps it."""
    return GraphSize(len(graph.ops), len({_kind(op) for op in graph.ops}))


def _kind(op: Op) -> tuple[str, ...]:
    types = (*(str(v.type) for v in op.operands), "->", *(str(v.type) for v in op.results))
    attrs = (f"{name}={_word(value)}" for name, value in sorted(op.attrs.items()))
    return (op.name, *types, *attrs)


def _word(value: object) -> str:
    return f"array{list(value.shape)}" if isinstance(value, np.ndarray) else str(value)


def size_in(metadata: Mapping[str, Any]) -> GraphSize | None:
    """What an entry of the cache keeps; None for kernels, and entries of versions that did not."""
    ops, distinct = metadata.get("ops"), metadata.get("distinct_ops")
    return GraphSize(ops, distinct) if isinstance(ops, int) and isinstance(distinct, int) else None


@dataclass(frozen=True)
class Predicted:
    """Seconds of compiling here, and between which two they should lie. basis: what that leans on."""

    seconds: float
    low: float
    high: float
    basis: str

    def words(self) -> str:
        """For people."""
        return f"{self.seconds:.2g} s ({self.low:.2g} to {self.high:.2g} s)"

    def times(self, share: float) -> Predicted:
        """The prediction for so many of it."""
        return Predicted(self.seconds * share, self.low * share, self.high * share, self.basis)


def predicted(size: GraphSize, known: Iterable[Mapping[str, Any]]) -> Predicted:
    """What a graph of this size takes. known: metadata of entries of the cache, which say how fast this machine is:
    half of them took less than what is predicted, one in ten less than `low`, one in ten more than `high`."""
    found = ((size_in(each), each.get("compile_seconds", 0.0)) for each in known)
    ratios = [seconds / of.seconds for of, seconds in found if of is not None and seconds > 0]
    if len(ratios) < ENOUGH:
        return Predicted(
            size.seconds,
            size.seconds * LEAST,
            size.seconds * MOST,
            f"by the figures of another machine: {ENOUGH} programs say how fast this is, the cache has {len(ratios)}",
        )
    low, middle, high = (float(np.quantile(ratios, q)) * size.seconds for q in (0.1, 0.5, 0.9))
    return Predicted(middle, low, high, f"by what {len(ratios)} programs of the cache took")


@dataclass(frozen=True)
class RequestedProgram:
    """A program that is asked for. there: whether the cache has it; then it takes no compiling."""

    key: str
    name: str
    ops: int
    distinct_ops: int
    there: bool
    predicted: Predicted

    def row(self) -> str:
        """For people."""
        how = "in the cache" if self.there else self.predicted.words()
        return f"{self.key[:12]}  {self.name:24} {self.ops:7,} operations {self.distinct_ops:5,} distinct  {how}"


def ahead(programs: Mapping[str, Graph], cache: Cache | None) -> list[RequestedProgram]:
    """What compiling each of these graphs takes, by key, those that the cache lacks first, the longest first."""
    entries = [e for e in cache.entries() if e.problem is None] if cache is not None else []
    known, there = [e.metadata for e in entries], {e.key for e in entries}
    found = []
    for key, graph in programs.items():
        size = size_of(graph)
        said = predicted(size, known)
        found.append(RequestedProgram(key, graph.name, size.ops, size.distinct_ops, key in there, said))
    return sorted(found, key=lambda p: (p.there, -p.predicted.seconds, p.key))


def wall(programs: Sequence[RequestedProgram], jobs: int) -> Predicted:
    """Seconds until so many processes have compiled all that the cache lacks, on as many processors: the longest
    program first, each to whoever is free, as `runtime.precompile` hands them out."""
    missing = [p.predicted for p in programs if not p.there]
    if not missing:
        return Predicted(0.0, 0.0, 0.0, "all are in the cache")
    busy = [0.0] * jobs
    for each in missing:
        busy[busy.index(min(busy))] += each.seconds
    return missing[0].times(max(busy) / missing[0].seconds)
