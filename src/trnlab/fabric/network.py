# SPDX-License-Identifier: Apache-2.0
"""The links of a cluster, and the way that data takes over them.

Every resource that transfers share is a link with a rate: wires between chips, the two sides of a network card, a
chip's HBM and its DMA engines. Wires within a torus are taken dimension by dimension, the last axis first, the
shorter way round (assumed: the vendor says that in-between traffic is routed automatically, not how). Between
instances data leaves by the card of its chip and enters by the card of its target's; the network itself does not
block (assumed).

All instances of a cluster are alike: link n of instance i has the number i * (links of an instance) + n, and what is
between instances of an UltraServer comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from trnlab.chips.interconnects import COLLECTIVE_COSTS, Collectives, Interconnect
from trnlab.errors import UsageError
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.schedule import Ints

Floats = npt.NDArray[np.float64]
ULTRASERVER = 4  # instances whose equal chips form a ring
SLED_RATE = 256e9  # byte/s among chips of one sled or server: first of the three levels of Trn3's chip page
RACK = 72  # chips of a switched fabric that share a rack (assumed: 144 chips are said to fill two)
SWITCHED = ("sled", "wire", "far")  # kinds of the levels of a switched fabric


@dataclass(frozen=True)
class Link:
    """One direction of one wire, or a side of a card, or an engine."""

    kind: str  # wire, far, sled, card, hbm, dma
    rate: float  # byte/s
    ends: tuple[int, ...]  # the chips of a wire, the chip of an engine, the card; within the instance
    way: str = ""  # in, out; up, down


@dataclass(frozen=True, eq=False)
class Network:
    """The links of a cluster."""

    cluster: Cluster
    costs: Collectives
    template: tuple[Link, ...]  # of one instance
    wires: Mapping[tuple[int, int], int]  # the number in the template of the wire between two chips of an instance
    joints: tuple[tuple[int, int], ...]  # between chips of different instances
    rates: Floats  # of all links, byte/s
    changed: frozenset[int] = frozenset()  # links that are not as they should be
    avoided: frozenset[int] = frozenset()  # wires that routes go around

    @cached_property
    def joined(self) -> Mapping[tuple[int, int], int]:
        """The number of the wire between two chips of different instances of an UltraServer."""
        first = self.cluster.instances * len(self.template)
        return {pair: first + place for place, pair in enumerate(self.joints)}

    @cached_property
    def cards(self) -> int:
        """The number in the template of the first side of the first card."""
        return next((n for n, link in enumerate(self.template) if link.kind == "card"), -1)

    @cached_property
    def ports(self) -> int:
        """The number in the template of the first way to a switch."""
        return next((n for n, link in enumerate(self.template) if link.way == "up"), -1)

    # -- names ------------------------------------------------------------------------------------------------------
    def name(self, number: int) -> str:
        """What a link is called: link:0-4, link:node1.0-4, efa:node0.rail3.out, hbm:node0.5."""
        instance, place = divmod(number, len(self.template))
        if instance >= self.cluster.instances:
            src, dst = self.joints[number - self.cluster.instances * len(self.template)]
            each = self.cluster.target.chips
            return f"link:node{src // each}-node{dst // each}.{src % each}"
        link = self.template[place]
        if link.kind == "card":
            return f"efa:node{instance}.rail{link.ends[0]}.{link.way}"
        node = f"node{instance}." if self.cluster.instances > 1 else ""
        kind = link.kind if link.kind in ("hbm", "dma") else "port" if link.way else "link"
        level = f".{SWITCHED.index(link.kind)}.{link.way}" if link.way else ""
        return f"{kind}:{node}{'-'.join(map(str, link.ends))}{level}"

    def kind(self, number: int) -> str:
        """What kind of link it is."""
        inside = number < self.cluster.instances * len(self.template)
        return self.template[number % len(self.template)].kind if inside else "far"

    # -- where things are -------------------------------------------------------------------------------------------
    def hbm(self, chips: Ints) -> Ints:
        """The links that stand for the HBM of chips."""
        instance, local = np.divmod(chips, self.cluster.target.chips)
        hbm: Ints = instance * len(self.template) + local * 2
        return hbm

    def dma(self, chips: Ints) -> Ints:
        """The links that stand for the DMA engines of chips."""
        dma: Ints = self.hbm(chips) + 1
        return dma

    def neighbours(self) -> frozenset[tuple[int, int]]:
        """Pairs of chips of one instance with a wire from the first to the second."""
        return frozenset(self.wires)

    def outside(self, pairs: Ints) -> npt.NDArray[np.bool_]:
        """Which pairs of chips [n, 2] reach each other through network cards."""
        instance = pairs // self.cluster.target.chips
        apart: npt.NDArray[np.bool_] = instance[:, 0] != instance[:, 1]
        if self.joints:
            apart &= np.array([tuple(pair) not in self.joined for pair in pairs.tolist()], dtype=bool)
        return apart

    # -- routes -----------------------------------------------------------------------------------------------------
    def routes(self, pairs: Ints) -> tuple[Ints, Ints]:
        """The links between pairs of chips [n, 2], one pair after the other, and how many each has.

        Raises UsageError (TRN182) where there is no way.
        """
        apart = self.outside(pairs)
        if apart.all():
            return self._through_cards(pairs).reshape(-1), np.full(len(pairs), 2)
        found: list[Ints] = [np.empty(0, np.int64)] * len(pairs)
        if apart.any():
            for place, way in zip(np.flatnonzero(apart), self._through_cards(pairs[apart])):
                found[place] = way
        each, ways = self.cluster.target.chips, dict[tuple[int, int, int], Ints]()
        for place in np.flatnonzero(~apart):
            src, dst = pairs[place].tolist()
            if src // each != dst // each:
                found[place] = np.array([self.joined[src, dst]])
                continue
            local = (src % each, dst % each, src // each if self.avoided else 0)
            if local not in ways:
                ways[local] = np.array(self._inside(*local), dtype=np.int64)
            found[place] = ways[local] + src // each * len(self.template)
        return np.concatenate(found), np.array([len(way) for way in found])

    def _inside(self, src: int, dst: int, instance: int) -> list[int]:
        """Links of the template from chip to chip of an instance."""
        wires = self.cluster.interconnect
        if src == dst:
            return []
        if wires.kind == "switched":
            level = _level(wires, src, dst)
            return [self.ports + 2 * (chip * len(SWITCHED) + level) + way for way, chip in enumerate((src, dst))]
        way = [self.wires[pair] for pair in _hops(wires.shape, src, dst)]
        first = instance * len(self.template)
        return self._around(src, dst, first) if any(first + wire in self.avoided for wire in way) else way

    def _around(self, src: int, dst: int, first: int) -> list[int]:
        """The shortest way that takes no avoided wire; of several the one over chips of low numbers. first: the
        number of the instance's first link. Raises UsageError (TRN197) where there is none."""
        ways: dict[int, list[int]] = {src: []}
        waiting = [src]
        for chip in waiting:
            for (a, b), wire in sorted(self.wires.items()):
                if a == chip and b not in ways and first + wire not in self.avoided:
                    ways[b] = [*ways[a], wire]
                    waiting.append(b)
        if dst not in ways:
            raise UsageError(
                f"no way is left from chip {src} to chip {dst}",
                code="TRN197",
                limit="instances whose chips are connected",
                got=", ".join(self.name(number) for number in sorted(self.avoided)),
                remedy="replace the instance, or leave some of these links",
            )
        return ways[dst]

    def _through_cards(self, pairs: Ints) -> Ints:
        wires, each = self.cluster.interconnect, self.cluster.target.chips
        if not wires.cards:
            raise UsageError(
                f"{self.cluster.target.name} has no network cards for collectives between instances",
                code="TRN182",
                limit="EFA",
                got=self.cluster.name,
                remedy="use one instance, or a type with EFA: `trnlab chips`",
            )
        instance, local = np.divmod(pairs, each)
        card = local * wires.cards // each
        sides: Ints = instance * len(self.template) + self.cards + 2 * card + np.array([0, 1])
        return sides

    def with_rates(self, factors: Mapping[int, float], avoided: frozenset[int] = frozenset()) -> Network:
        """The same network with the rates of some links multiplied, and routes around some wires."""
        rates = self.rates.copy()
        for number, factor in factors.items():
            rates[number] *= factor
        return replace(self, rates=rates, changed=self.changed | set(factors), avoided=self.avoided | avoided)


def build(cluster: Cluster, costs: Collectives = COLLECTIVE_COSTS) -> Network:
    """The network of a cluster."""
    wires = cluster.interconnect
    links = _engines(cluster, costs)
    numbers: dict[tuple[int, int], int] = {}
    for a, b, kind in _pairs(wires):
        numbers[a, b] = len(links)
        links.append(Link(kind, _rate(wires, kind, costs), (a, b)))
    if wires.kind == "switched":
        links += [
            Link(kind, _rate(wires, kind, costs), (chip,), way)
            for chip, kind, way in product(range(cluster.target.chips), SWITCHED, ("up", "down"))
        ]
    rate = wires.card.value * costs.card_efficiency.value
    links += [Link("card", rate, (card,), way) for card, way in product(range(wires.cards), ("out", "in"))]
    joints = tuple(_joints(cluster))
    far = np.full(len(joints), wires.far.value * costs.link_efficiency.value)
    rates = np.concatenate([np.tile([link.rate for link in links], cluster.instances), far])
    return Network(cluster, costs, tuple(links), numbers, joints, rates)


def _engines(cluster: Cluster, costs: Collectives) -> list[Link]:
    """HBM and DMA engines of every chip of an instance, in the order that `Network.hbm` and `dma` count on."""
    chip = cluster.target.chip
    cores = int(chip.cores.value)
    hbm = chip.hbm.bandwidth.value * cores
    dma = min(chip.dma.engines.value * chip.dma.engine_bandwidth.value, costs.core_rate.value) * cores
    kinds = (("hbm", hbm), ("dma", dma))
    return [Link(kind, rate, (number,)) for number in range(cluster.target.chips) for kind, rate in kinds]


def _pairs(wires: Interconnect) -> list[tuple[int, int, str]]:
    """Wires within an instance, in both directions."""
    if wires.kind not in ("torus", "ring"):
        return []
    found = []
    for place in product(*(range(n) for n in wires.shape)):
        for axis, n in enumerate(wires.shape):
            if n > 1:
                other = list(place)
                other[axis] = (place[axis] + 1) % n
                kind = "far" if len(wires.shape) == 3 and axis == 0 else "wire"
                a, b = _number(wires.shape, place), _number(wires.shape, tuple(other))
                found += [(a, b, kind), (b, a, kind)]
    return list(dict.fromkeys(found))


def _joints(cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Rings of equal chips through every four instances of an UltraServer."""
    wires, each = cluster.interconnect, cluster.target.chips
    if wires.kind != "torus" or len(wires.shape) > 2 or not wires.far.value:
        return
    for first in range(0, cluster.instances - ULTRASERVER + 1, ULTRASERVER):
        for step, chip in product(range(ULTRASERVER), range(each)):
            a = (first + step) * each + chip
            b = (first + (step + 1) % ULTRASERVER) * each + chip
            yield from ((a, b), (b, a))


def _rate(wires: Interconnect, kind: str, costs: Collectives) -> float:
    rates = {"wire": wires.near.value, "far": wires.far.value, "sled": SLED_RATE}
    return rates[kind] * costs.link_efficiency.value


def _level(wires: Interconnect, src: int, dst: int) -> int:
    """The lowest level at which two chips of one instance meet: sled, rack, between racks."""
    if src // wires.shape[1] == dst // wires.shape[1]:
        return 0
    return 1 if src // RACK == dst // RACK else 2


def _number(shape: tuple[int, ...], place: tuple[int, ...]) -> int:
    return int(np.ravel_multi_index(place, shape))


@lru_cache(maxsize=1 << 15)
def _hops(shape: tuple[int, ...], src: int, dst: int) -> tuple[tuple[int, int], ...]:
    """Chip to chip, dimension by dimension, the last axis first."""
    here, there = ([int(place) for place in np.unravel_index(chip, shape)] for chip in (src, dst))
    hops = []
    for axis in reversed(range(len(shape))):
        n = shape[axis]
        forward = int((there[axis] - here[axis]) % n)
        way = 1 if forward <= n - forward else -1
        while here[axis] != there[axis]:
            before = _number(shape, tuple(here))
            here[axis] = (here[axis] + way) % n
            hops.append((before, _number(shape, tuple(here))))
    return tuple(hops)
