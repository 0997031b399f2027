# SPDX-License-Identifier: Apache-2.0
"""Which operator of PyTorch each value of a graph was imported from, for those who compare the two.

with provenance.kept():
    captured = capture_step(...)
    origin = provenance.of(captured.graph)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import fx

from trnlab.graph.ir import Graph


@dataclass(frozen=True)
class Provenance:
    """An FX graph, and for each of its nodes the value (or values) of the graph that it became.

    inputs: the name of the placeholder behind each input of the graph, None for the seed of random numbers.
    """

    module: fx.GraphModule
    values: Mapping[fx.Node, Any]
    inputs: tuple[str | None, ...]


_kept: list[WeakKeyDictionary[Graph, Provenance]] = []


@contextmanager
def kept() -> Iterator[None]:
    """Within the block the importer's graphs remember where they come from, as long as they live."""
    _kept.append(WeakKeyDictionary())
    try:
        yield
    finally:
        _kept.pop()


def note(graph: Graph, found: Provenance) -> None:
    """Called by the importer for each graph."""
    if _kept:
        _kept[-1][graph] = found


def is_kept() -> bool:
    """Whether somebody wants to know."""
    return bool(_kept)


def of(graph: Graph) -> Provenance | None:
    """Where a graph comes from, if that was kept."""
    return _kept[-1].get(graph) if _kept else None
