# SPDX-License-Identifier: Apache-2.0
"""How the chips of an instance are wired, and what network cards it has.

Rates are of one direction of one link; the vendor's pages print both directions of all links of a chip together.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from trnlab.chips.catalog import Target
from trnlab.chips.sources import COLLECTIVES, assumed, derived, documented, measured
from trnlab.chips.spec import Confidence, Figure
from trnlab.chips.trn2 import LINKS  # of launch, step and efficiency nothing is known by generation

INTERNODE = "neuron-runtime/explore/internode-collective-comm.rst"
GIGA = 1e9


@dataclass(frozen=True)
class Interconnect:
    """The wires of one instance."""

    kind: str  # single, ring, torus, switched
    shape: tuple[int, ...]  # chips along each axis of a torus or ring, or (groups, chips per group)
    near: Figure  # byte/s to a neighbour
    # byte/s along the last axis of a torus of three, between racks of a switched fabric, or to the same chip of a
    # neighbouring instance of an UltraServer
    far: Figure
    cards: int
    card: Figure  # byte/s of one EFA card


@dataclass(frozen=True)
class Collectives:
    """What moving data between chips costs beyond the rates of links. Times in ns."""

    runtime: str  # whose figures these are
    launch: Figure  # from the trigger to the first step
    launch_rank: Figure  # the same once more for each rank of the group
    step: Figure  # of a step within an instance, beyond its bytes
    step_beside: Figure  # the same while other streams load HBM
    network_step: Figure  # of a step between instances
    link_efficiency: Figure  # share of a link's rate that collectives reach
    card_efficiency: Figure  # the same of an EFA card
    core_rate: Figure  # byte/s that the DMA rings of a physical core's collectives move


NCCOM = "aws-neuron/aws-neuron-sdk 81ce03ae tools/neuron-sys-tools/nccom-test.rst"
COLLECTIVE_COSTS = Collectives(
    runtime="2.32",
    launch=LINKS.launch,
    launch_rank=measured(0, "ns", f"{NCCOM}: 1 KiB is gathered from 32 ranks no slower than from 8"),
    step=LINKS.step,
    step_beside=documented(2_000, "ns", f"{COLLECTIVES}:61 one to two microseconds a hop, by how loaded HBM is"),
    network_step=documented(15_000, "ns", f"{INTERNODE} about 15 us from point to point"),
    link_efficiency=LINKS.efficiency,
    card_efficiency=measured(0.7, "ratio", "Mooncake pull request 3888: 16 devices of a trn2 write 270 to 279 GB/s"),
    core_rate=measured(56.9e9, "byte/s", f"{NCCOM}: 1 GiB reduced by two ranks in 18930 us, less 58 us for 1 KiB"),
)
# Of most of the vendor's printed runs, which have launches and steps of tens of microseconds. The page says neither
# when nor with which release they were made, so they are named after the chip.
_FITTED = f"{NCCOM}: least sum of |log(predicted / printed)| over the 15 calibration rows of Trainium1's undated runs"
TRN1_UNDATED = replace(
    COLLECTIVE_COSTS,
    runtime="trn1-undated",
    launch_rank=derived(1_500, "ns", _FITTED),
    step=derived(48_000, "ns", _FITTED),
    step_beside=derived(48_000, "ns", "as of one stream: nothing is printed of several"),
    network_step=derived(400_000, "ns", _FITTED),
)
TRN2_UNDATED = replace(
    TRN1_UNDATED,
    runtime="trn2-undated",
    step=derived(136_000, "ns", f"{NCCOM}: the same over the 3 of allr -r 16"),
    step_beside=derived(136_000, "ns", "as of one stream: nothing is printed of several"),
)
RUNTIMES = {costs.runtime: costs for costs in (COLLECTIVE_COSTS, TRN1_UNDATED, TRN2_UNDATED)}


def beside_others(costs: Collectives) -> Collectives:
    """The same where several streams are at work at once."""
    return replace(costs, step=costs.step_beside)


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
        kind=kind,
        shape=tuple(int(n) for n in shape.split("x")) if shape else (1,),
        near=rate("gigabytes_per_s", GIGA),
        far=rate("far_gigabytes_per_s", GIGA),
        cards=int(row["efa_cards"]),
        card=rate("efa_gigabits_per_s", GIGA / 8),
    )


_NOTHING = assumed(0, "byte/s", "a chip by itself has no links")
SINGLE = Interconnect("single", (1,), _NOTHING, _NOTHING, 0, _NOTHING)
