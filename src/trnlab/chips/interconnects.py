# SPDX-License-Identifier: Apache-2.0
"""How the chips of an instance are wired, and what network cards it has.

Rates are of one direction of one link; the vendor's pages print both directions of all links of a chip together.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trnlab.chips.catalog import Target
from trnlab.chips.sources import assumed, documented, measured
from trnlab.chips.spec import Confidence, Figure
from trnlab.chips.trn2 import LINKS  # of launch, step and efficiency nothing is known by generation

INTERNODE = "neuron-runtime/explore/internode-collective-comm.rst"
GIGA = 1e9


@dataclass(frozen=True)
class Interconnect:
    """The wires of one instance. `shape`: chips along each axis of a torus or ring, or (groups, chips per group).

    `near`: byte/s to a neighbour. `far`: byte/s along the last axis of a torus of three, between racks of a switched
    fabric, or to the same chip of a neighbouring instance of an UltraServer. `card`: byte/s of one EFA card.
    """

    kind: str  # single, ring, torus, switched
    shape: tuple[int, ...]
    near: Figure
    far: Figure
    cards: int
    card: Figure


@dataclass(frozen=True)
class Collectives:
    """What moving data between chips costs beyond the rates of links. Times in ns."""

    launch: Figure  # from the trigger to the first step
    step: Figure  # of a step within an instance, beyond its bytes
    network_step: Figure  # of a step between instances
    link_efficiency: Figure  # share of a link's rate that collectives reach
    card_efficiency: Figure  # the same of an EFA card
    dma_share: Figure  # share of the chip's DMA engines that collectives use while nothing else runs


COLLECTIVE_COSTS = Collectives(
    launch=LINKS.launch,
    step=LINKS.step,
    network_step=documented(15_000, "ns", f"{INTERNODE} about 15 us from point to point"),
    link_efficiency=LINKS.efficiency,
    card_efficiency=measured(0.7, "ratio", "Mooncake pull request 3888: 16 devices of a trn2 write 270 to 279 GB/s"),
    dma_share=assumed(1.0, "ratio", "not published"),
)


def of(target: Target) -> Interconnect:
    """The wires of an instance; a bare chip has none."""
    return _table().get(target.name, SINGLE)


@cache
def _table() -> dict[str, Interconnect]:
    with files(__package__).joinpath("interconnects.csv").open(encoding="utf-8") as file:
        return {row["name"]: _read(row) for row in csv.DictReader(file)}


def _read(row: dict[str, str]) -> Interconnect:
    kind, _, shape = row["topology"].partition(" ")
    sure = Confidence(row["confidence"])

    def rate(column: str, scale: float) -> Figure:
        return Figure(float(row[column] or 0) * scale, "byte/s", sure, row["source"])

    return Interconnect(
        kind=kind, shape=tuple(int(n) for n in shape.split("x")) if shape else (1,),
        near=rate("gigabytes_per_s", GIGA), far=rate("far_gigabytes_per_s", GIGA),
        cards=int(row["efa_cards"]), card=rate("efa_gigabits_per_s", GIGA / 8),
    )  # fmt: skip


_NOTHING = assumed(0, "byte/s", "a chip by itself has no links")
SINGLE = Interconnect("single", (1,), _NOTHING, _NOTHING, 0, _NOTHING)
