# SPDX-License-Identifier: Apache-2.0
"""The CC cores' streams: which collective runs when, what they take from each other and from the program's transfers.

Each replica group has a stream, in turn, as the vendor gives one to tensor parallel and one to sharded layers
(compute-comm-overlap.rst:120); what is on one stream follows in the order of the program. Collectives that are on
their way together share the links of the network: one that comes earlier in the program takes what it needs, later
ones what is left (assumed: the runtime arbitrates by the sizes of packets, and by default all streams have the same).
So no collective is done later with several streams than with one.

Collectives and the program's own transfers share the DMA engines and HBM. Engines serve their rings in turn, packet
by packet, collectives with packets of 64 KiB and programs with 4 KiB by default (compute-comm-overlap.rst:76-95): 16
of 17 bytes where both have work. A collective needs less, so it keeps its time, and transfers move at what it leaves.
Which engines its rings are on is not published: it is taken to load all of them alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.fabric.cluster import CORES_PER_RANK
from trnlab.fabric.flows import Floats
from trnlab.fabric.timing import CollectiveCost
from trnlab.fabric.world import World
from trnlab.sim.timing.layout import NEVER, WHOLE, Ints

LEAST = 4 / (64 + 4)  # of the engines, that transfers get in any case: packets of 4 KiB beside those of 64 KiB


@dataclass(frozen=True, eq=False)
class StreamUse:
    """What a collective takes while it is on its way, alone.

    groups: who does it together. links: share of each link of the network. dma: share of a core's DMA engines. hbm:
    share of a core's HBM. room: how much faster than its transfers a core's HBM is, at least 1.
    """

    groups: object
    links: Floats = field(default_factory=lambda: np.zeros(0))
    dma: float = 0.0
    hbm: float = 0.0
    room: float = 1.0


def use_of(cost: CollectiveCost, world: World, chip: Chip, groups: object) -> StreamUse:
    """What a collective that costs this takes of a core of `chip`: of the one that has most to do."""
    network, placed = world.network, world.placed
    links = cost.loads / np.maximum(network.rates, 1) / cost.seconds if cost.seconds else np.zeros(len(cost.loads))
    chips, ranks = np.unique(placed, return_counts=True)
    cores = ranks * CORES_PER_RANK.get(chip.name, 1)
    rate = chip.dma.engines.value * chip.dma.engine_bandwidth.value
    hbm = chip.hbm.bandwidth.value
    moved = cost.loads[network.dma(chips)] / cores / max(cost.seconds, 1e-12)
    touched = cost.loads[network.hbm(chips)] / cores / max(cost.seconds, 1e-12)
    return StreamUse(groups, links, float(moved.max() / rate), float(touched.max() / hbm), max(hbm / rate, 1.0))


@dataclass
class _Section:
    """From when on which collectives are on their way, and how fast each is."""

    begin: int
    running: tuple[tuple[StreamUse, float], ...] = ()


class CollectiveStreams:
    """The streams of one core. `free`: of each, when it is, and the number of the instruction that was last on it."""

    def __init__(self, count: int, base: int, competes: bool) -> None:
        self.free = np.array([[base, -1]] * count, np.int64)
        self.competes = competes
        self._stream: dict[object, int] = {}
        self._sections = [_Section(NEVER)]

    def of(self, use: StreamUse) -> Ints:
        """The row of `free` of the stream that a collective is on."""
        number = self._stream.setdefault(use.groups, len(self._stream))
        row: Ints = self.free[number % len(self.free)]
        return row

    def place(self, use: StreamUse, begin: int, work: int) -> int:
        """When a collective ends that begins then and takes `work` picoseconds alone."""
        at = self._cut_at(begin)
        now, left = begin, float(work)
        while True:
            section = self._sections[at]
            until = self._sections[at + 1].begin if at + 1 < len(self._sections) else None
            speed = _speed(use, section.running)
            if until is None or (until - now) * speed >= left:
                end = now + round(left / speed)
                break
            left -= (until - now) * speed
            section.running += ((use, speed),)
            now, at = until, at + 1
        if end > now:
            self._cut_at(end)
            self._sections[at].running += ((use, speed),)
        return end

    def cut(self) -> Ints:
        """What is left to the program's transfers: rows of `order.Clocks.cut`."""
        if not self.competes or len(self._sections) == 1:
            return np.zeros((0, 2), np.int64)
        return np.array([(s.begin, round(WHOLE * _left(s.running))) for s in self._sections], np.int64)

    def _cut_at(self, time: int) -> int:
        """Let a section begin at a time; returns its number."""
        at = len(self._sections) - 1
        while self._sections[at].begin > time:
            at -= 1
        if self._sections[at].begin == time:
            return at
        self._sections.insert(at + 1, _Section(time, self._sections[at].running))
        return at + 1


def _speed(use: StreamUse, running: tuple[tuple[StreamUse, float], ...]) -> float:
    """How fast a collective is beside others that come before it: 1 alone."""
    if not running:
        return 1.0
    taken = sum((speed * other.links for other, speed in running), np.zeros(len(use.links)))
    needs = use.links > 0
    return float(np.clip((1 - taken[needs]) / use.links[needs], 0, 1).min(initial=1.0))


def _left(running: tuple[tuple[StreamUse, float], ...]) -> float:
    """How fast the program's transfers are beside collectives: 1 alone."""
    dma = sum(speed * use.dma for use, speed in running)
    hbm = sum(speed * use.hbm for use, speed in running)
    room = min((use.room for use, _ in running), default=1.0)
    return max(min(1.0, 1 - dma, (1 - hbm) * room), LEAST)
