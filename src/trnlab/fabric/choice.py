# SPDX-License-Identifier: Apache-2.0
"""Which algorithm serves a collective: by operation, size and how the group lies on chips, as the vendor's runtime.

The windows within an instance are the vendor's (intranode-collective-comm.rst: mesh below 1 MB, recursive doubling
and halving from 1 to 56 MB, KangaRing above, ring as the fallback); those between instances and of the single-step
mesh are assumed from its words (internode-collective-comm.rst: mesh for small groups and messages, recursive for
medium and large groups of 2^p, ring for large messages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Up to how many bytes each algorithm is taken. `name`: of the runtime whose choices these are."""

    name: str = "2.32"
    at_once: int = 96 * KIB  # that a rank sends to all others: single-step mesh, for all-reduce, while it is faster
    mesh: int = MIB
    rdh: int = 56 * MIB
    between_mesh: int = MIB
    between_mesh_instances: int = 8
    between_rdh: int = 256 * MIB


# Older runtimes printed "kangaring" for 32 MiB (nccom-test.rst, --show-algorithm); their steps took so long that one
# less was worth more bytes.
WINDOWS = {
    w.name: w
    for w in (
        AlgorithmThresholds(),
        *(AlgorithmThresholds(name, at_once=128 * KIB, rdh=32 * MIB) for name in ("older", "2.28")),
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
    instances = len(np.unique(instance))
    per_chip = np.unique(local, return_counts=True)[1] // instances
    rows = [tuple(int(chip) for chip in local[instance == i]) for i in np.unique(instance)]
    if len(set(rows)) > 1:
        raise UsageError(
            "a replica group is not the same on every instance",
            code="TRN183",
            limit="as many ranks of the group on each of its instances, on the same chips",
            got=list(group),
            remedy="make groups of ranks with equal places on every instance",
        )
    if len(set(per_chip)) > 1:
        return GroupShape(order.reshape(instances, -1, 1), rows[0])
    return GroupShape(order.reshape(instances, -1, int(per_chip[0])), tuple(dict.fromkeys(rows[0])))


def windows_of(network: Network) -> AlgorithmThresholds:
    """The windows of size of the network's runtime."""
    return WINDOWS[network.costs.runtime]


def at_once(group: Sequence[int], network: Network, placed: Ints, nbytes: float) -> bool:
    """Whether an all-reduce of a group is served by the single-step mesh (`collectives.all_reduce_at_once`).

    Small buffers are, and any of two ranks, who send no more in one step than in two; within one instance.
    """
    others = len(group) - 1
    if others < 1 or (others > 1 and nbytes * others > windows_of(network).at_once):
        return False
    return len(np.unique(placed[ints(group)] // network.cluster.target.chips)) == 1


def apart(group: Sequence[int], network: Network, placed: Ints) -> bool:
    """Whether some ranks of a group are on different chips."""
    return len(np.unique(placed[ints(group)])) > 1


def algorithm(
    group: Sequence[int],
    network: Network,
    placed: Ints,
    nbytes: float,
    *,
    inside: str | None = None,
    between: str | None = None,
) -> Algorithm:
    """The algorithm for a group whose buffer has `nbytes`; `inside` and `between` force one by name."""
    if len(group) == 1:
        return SingleRank(1)
    shape, windows = shape_of(group, network, placed), windows_of(network)
    instances, chips, ranks = shape.order.shape
    local = _inside(shape, network, nbytes / instances, windows, inside) if chips * ranks > 1 else None
    outer = _between(instances, nbytes, windows, between) if instances > 1 else None
    both = Hierarchy(outer, local) if outer and local else outer or local
    assert both is not None
    return Relabelled(both, shape.order.reshape(-1))


def _between(instances: int, nbytes: float, windows: AlgorithmThresholds, forced: str | None) -> Algorithm:
    name = forced or _between_name(instances, nbytes, windows)
    if name == "rdh" and _is_power(instances):
        return Recursive(instances)
    return DirectMesh(instances, apart=True) if name == "mesh" else Ring([range(instances)])


def _between_name(instances: int, nbytes: float, windows: AlgorithmThresholds) -> str:
    if nbytes < windows.between_mesh and instances <= windows.between_mesh_instances:
        return "mesh"
    return "rdh" if nbytes < windows.between_rdh and _is_power(instances) else "ring"


def _inside(
    shape: GroupShape, network: Network, nbytes: float, windows: AlgorithmThresholds, forced: str | None
) -> Algorithm:
    """Within an instance: chips joined by one algorithm, the ranks of each chip by a mesh; or rings over all."""
    _, chips, ranks = shape.order.shape
    name = forced or ("mesh" if nbytes < windows.mesh else "rdh" if nbytes < windows.rdh else "kangaring")
    if chips == 1 and (forced is None or name != "kangaring"):  # a ring within a chip moves more than an exchange
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
