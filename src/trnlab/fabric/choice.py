# SPDX-License-Identifier: Apache-2.0
"""Which algorithms may serve a collective: by operation, size and how the group lies on chips, as the vendor's do.

Those within an instance and their windows of size are the vendor's (intranode-collective-comm.rst: mesh below 1 MB,
recursive doubling and halving from 1 to 56 MB, KangaRing above, ring as the fallback), and so are those between
instances (internode-collective-comm.rst: mesh for small groups and messages, recursive for medium and large groups of
2^p, ring for large messages, the single-step mesh while the step that it saves is worth more than the bytes that it
adds). The runtime has a table of limits for each operation and group (nec.h), which is not published: of those whose
windows have not ended, the fastest is taken (`selection`), so that no larger buffer takes less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from trnlab.errors import UsageError
from trnlab.fabric.algorithms import DirectMesh, Hierarchy, PairedRing, Recursive, Ring, SingleRank
from trnlab.fabric.cycles import cycles
from trnlab.fabric.network import Network
from trnlab.fabric.schedule import Algorithm, Ints, Phase, ints
from trnlab.units import KIB, MIB

NAMES = ("mesh", "rdh", "kangaring", "ring")


@dataclass(frozen=True)
class AlgorithmThresholds:
    """Below how many bytes each algorithm may be taken. `name`: of the runtime whose choices these are."""

    name: str = "2.32"
    mesh: float = MIB  # where recursive doubling and halving can follow
    rdh: float = 56 * MIB
    rdh_ranks: float = inf  # of an instance: with more its window has no end, nor has that of the mesh
    at_once: float = inf  # that a rank sends to all others: single-step mesh
    mesh_instances: int = 8  # of a mesh between them; assumed


# Of undated runs little is printed of what was chosen: of 16 ranks of Trainium2 "mesh", to 8 KiB in half the time of
# 128 KiB, and "kangaring" for 32 MiB (nccom-test.rst, --show-algorithm). Of more ranks nothing is: there windows have
# no end, so that time has no jumps that nobody has seen.
WINDOWS = {
    w.name: w
    for w in (
        AlgorithmThresholds(),
        AlgorithmThresholds("trn1-undated", mesh=inf, rdh=inf, at_once=128 * KIB),
        AlgorithmThresholds("trn2-undated", mesh=32 * MIB, rdh=32 * MIB, rdh_ranks=16, at_once=128 * KIB),
    )
}


@dataclass(frozen=True)
class GroupShape:
    """How a group lies: `order[i, c, r]` is the position in the group of rank r on chip c of its i-th instance.

    Where some chips have more ranks of the group than others, every rank counts as a chip of its own.
    """

    order: Ints
    chips: tuple[int, ...]  # within the instance

    @property
    def uneven(self) -> bool:
        """Whether chips are listed once for each rank."""
        return len(set(self.chips)) < len(self.chips)


def shape_of(group: Sequence[int], network: Network, placed: Ints) -> GroupShape:
    """The shape of a group. Raises UsageError (TRN183) for a group that is not the same on every instance."""
    chips = placed[ints(group)]
    order = np.argsort(chips, kind="stable")
    instance = chips[order] // network.cluster.target.chips
    local = chips[order] % network.cluster.target.chips
    counts = np.unique(instance, return_counts=True)[1]
    instances = len(counts)
    per_chip = np.unique(local, return_counts=True)[1] // instances
    row = tuple(local[: counts[0]].tolist())
    if (counts != counts[0]).any() or (local.reshape(instances, -1) != row).any():
        raise UsageError(
            "a replica group is not the same on every instance",
            code="TRN183",
            limit="as many ranks of the group on each of its instances, on the same chips",
            got=list(group),
            remedy="make groups of ranks with equal places on every instance",
        )
    if len(set(per_chip)) > 1:
        return GroupShape(order.reshape(instances, -1, 1), row)
    return GroupShape(order.reshape(instances, -1, int(per_chip[0])), tuple(dict.fromkeys(row)))


def windows_of(network: Network) -> AlgorithmThresholds:
    """The windows of size of the network's runtime."""
    return WINDOWS[network.costs.runtime]


def window_ends(instances: int, windows: AlgorithmThresholds = WINDOWS["2.32"]) -> list[float]:
    """Bytes of a group on so many instances at which an algorithm's window ends, whatever is faster."""
    return [limit * instances for limit in (windows.mesh, windows.rdh) if limit < inf]


def at_once(group: Sequence[int], network: Network, placed: Ints) -> float:
    """Below how many bytes the single-step mesh (`collectives.all_reduce_at_once`) may serve an all-reduce.

    Any of two ranks, who send no more in one step than in two.
    """
    windows, others = windows_of(network), len(group) - 1
    instances = len(np.unique(placed[ints(group)] // network.cluster.target.chips))
    if others < 1 or instances > windows.mesh_instances:
        return 0.0
    return inf if others == 1 else np.nextafter(windows.at_once / others, inf)


def apart(group: Sequence[int], network: Network, placed: Ints) -> bool:
    """Whether some ranks of a group are on different chips."""
    return len(np.unique(placed[ints(group)])) > 1


def algorithm(
    group: Sequence[int], network: Network, placed: Ints, *, inside: str = "mesh", between: str = "mesh"
) -> Algorithm:
    """The algorithms of these names for a group, or what serves it in their place where they cannot."""
    if len(group) == 1:
        return SingleRank(1)
    shape = shape_of(group, network, placed)
    instances, chips, ranks = shape.order.shape
    local = _inside(shape, network, inside) if chips * ranks > 1 else None
    outer = _between(instances, between) if instances > 1 else None
    both = Hierarchy(outer, local) if outer and local else outer or local
    assert both is not None
    return Relabelled(both, shape.order.reshape(-1))


def candidates(group: Sequence[int], network: Network, placed: Ints) -> list[tuple[str, str, float]]:
    """Names of algorithms within and between instances that may serve a group, and below how many bytes each pair.

    What the names of two pairs would stand for alike is listed once; the last pair has no limit.
    """
    if len(group) == 1:
        return [("mesh", "mesh", inf)]
    shape, windows = shape_of(group, network, placed), windows_of(network)
    instances = len(shape.order)
    outer = _names_between(instances, windows)
    return [
        (inside, between, limit * instances) for inside, limit in _names_inside(shape, windows) for between in outer
    ]


def _names_between(instances: int, windows: AlgorithmThresholds) -> list[str]:
    if instances == 1:
        return ["mesh"]
    mesh = ["mesh"] if instances <= windows.mesh_instances else []
    return [*mesh, *(["rdh"] if _is_power(instances) else []), "ring"]


def _names_inside(shape: GroupShape, windows: AlgorithmThresholds) -> list[tuple[str, float]]:
    """Names of algorithms within an instance, each with the bytes of an instance at which its window ends."""
    _, chips, ranks = shape.order.shape
    if chips == 1:
        return [("mesh", inf)]
    if chips * ranks > windows.rdh_ranks:
        windows = replace(windows, mesh=inf, rdh=inf)
    if shape.uneven or not _is_power(chips):
        return [("mesh", inf), ("kangaring", inf)]
    return [("mesh", windows.mesh), ("rdh", windows.rdh), ("kangaring", inf)]


def _between(instances: int, name: str) -> Algorithm:
    if name == "rdh" and _is_power(instances):
        return Recursive(instances)
    return DirectMesh(instances, apart=True) if name == "mesh" else Ring([range(instances)])


def _inside(shape: GroupShape, network: Network, name: str) -> Algorithm:
    """Within an instance: chips joined by one algorithm, the ranks of each chip by a mesh; or rings over all."""
    _, chips, ranks = shape.order.shape
    if chips == 1 and name != "kangaring":  # a ring within a chip moves more than an exchange
        return DirectMesh(ranks)
    if shape.uneven:
        return DirectMesh(chips, True) if name == "mesh" else Ring([range(chips), range(chips - 1, -1, -1)])
    if name == "rdh" and not _is_power(chips):
        name = "kangaring"
    if name == "rdh":
        return _over_chips(Relabelled(Recursive(chips, everywhere=True), _hypercube(shape.chips, network)), ranks)
    if name == "mesh":
        return _over_chips(DirectMesh(chips, apart=ranks == 1), ranks)
    if name == "kangaring" and ranks % 2 == 0:
        return PairedRing([_pairs(way, ranks, turn) for turn, way in enumerate(_ways(shape, network))])
    return Ring([[chip * ranks + rank for chip in way for rank in range(ranks)] for way in _ways(shape, network)])


def _over_chips(outer: Algorithm, ranks: int) -> Algorithm:
    return Hierarchy(outer, DirectMesh(ranks), ("chips", "chip")) if ranks > 1 else outer


def _pairs(way: Sequence[int], ranks: int, turn: int) -> list[tuple[int, int]]:
    """The pairs of ranks along a ring of chips; who is primary takes turns from ring to ring."""
    pairs = [(chip * ranks + rank, chip * ranks + rank + 1) for chip in way for rank in range(0, ranks, 2)]
    return [(b, a) for a, b in pairs] if turn % 2 else pairs


def _ways(shape: GroupShape, network: Network) -> list[list[int]]:
    """Rings over the chips of a group, as indices into them: two directions of cycles that share no wire."""
    index = {chip: place for place, chip in enumerate(shape.chips)}
    found = [[index[chip] for chip in cycle] for cycle in cycles(shape.chips, network.neighbours())]
    return found if len(found) > 1 else found * 2  # both members of each pair are primary in one


def _hypercube(chips: tuple[int, ...], network: Network) -> Ints:
    """An order of chips in which those whose places differ in one bit are neighbours, where the torus allows it."""
    shape = network.cluster.interconnect.shape
    if network.cluster.interconnect.kind != "torus" or len(chips) < 4:
        return np.arange(len(chips))
    each = np.stack(np.unravel_index(np.asarray(chips) % network.cluster.target.chips, shape), axis=1)
    codes = np.zeros(len(chips), np.int64)
    for axis, n in enumerate(shape):
        codes = codes * n + (each[:, axis] ^ (each[:, axis] >> 1))  # neighbours on a ring of four: Gray codes
    return np.argsort(codes, kind="stable")


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0


class Relabelled(Algorithm):
    """An algorithm whose position i is position `order[i]` of the group."""

    def __init__(self, inner: Algorithm, order: Ints) -> None:
        super().__init__(inner.n, inner.channels)
        self.inner, self.order, self.name = inner, order, inner.name

    def all_gather(self) -> list[Phase]:
        """As the inner one."""
        return self._laid(self.inner.all_gather())

    def reduce_scatter(self) -> list[Phase]:
        """As the inner one."""
        return self._laid(self.inner.reduce_scatter())

    def _laid(self, phases: list[Phase]) -> list[Phase]:
        slots = (self.order[:, None] * self.channels + np.arange(self.channels)).reshape(1, -1, 1)
        return [part.over(self.order[None], lambda: slots) for part in phases]
