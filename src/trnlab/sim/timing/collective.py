# SPDX-License-Identifier: Apache-2.0
"""How long a kernel's collective takes: what its schedule takes on the network of the chip's largest instance.

A kernel knows its chip and its ranks, not the instance: ranks fill chips from the first (`fabric.cluster`), as many
instances as they need, and all groups of a collective move at the same time over the same links. Launch, steps, the
rate of wires and what they reach are the chip's own figures, so that what-if changes them. Where only some cores of a
chip take part, only their share of its DMA engines does.

What collectives and kernels take from each other's DMA engines and HBM is not modelled: engines serve their rings
round robin, packet by packet, but which of them a collective's rings use beside a kernel's is not published.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from trnlab.chips import catalog
from trnlab.chips.interconnects import COLLECTIVE_COSTS
from trnlab.chips.spec import Chip
from trnlab.collectives import Collective
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.network import Network, build
from trnlab.fabric.schedule import Ints
from trnlab.fabric.selection import seconds_of
from trnlab.isa.base import Work
from trnlab.units import PS_PER_NS, PS_PER_S

INSTANCES = {
    "trn1": "trn1.32xlarge",
    "trn2": "trn2.48xlarge",
    "inf2": "inf2.48xlarge",
    "trn3": "trn3-gen1-ultraserver",
}
_SUM_RATE = 0.5  # of the rate of copies: nki/guides/architecture/trainium3_arch.rst:270, before NeuronCore-v4


def collective_time(work: Work, chip: Chip) -> tuple[int, int]:
    """Picoseconds that the triggering engine is busy, and from then until the result is there on all ranks.

    Raises UsageError for groups that the runtime does not support (TRN183) or that no network joins (TRN182).
    """
    busy = round(chip.sync.semaphore.value * PS_PER_NS)
    return busy, round(_seconds(work.kind.partition(".")[2], work.groups, work.nbytes, work.n, chip) * PS_PER_S)


@lru_cache(maxsize=4096)
def _seconds(name: str, groups: tuple[tuple[int, ...], ...], nbytes: int, of_a_core: int, chip: Chip) -> float:
    """Seconds of a message of `nbytes`, of which one core moves `of_a_core`."""
    ranks = 1 + max(rank for group in groups for rank in group)
    network = _network(chip, ranks)
    cluster = network.cluster
    placed = cluster.placed(cluster.ranks)
    cores = int(chip.cores.value) // cluster.ranks_per_chip
    network = network.with_rates(_shares(network, placed, groups, min(-(-nbytes // max(of_a_core, 1)) / cores, 1)))
    kind = name.removesuffix("_v").removesuffix("_reduce") if name != "all_reduce" else name
    if kind == "collective_permute":
        if name.endswith("_reduce"):
            nbytes = round(nbytes / _SUM_RATE)
        asked = Collective(kind, pairs=tuple((a, b) for a, b in groups))
    else:
        asked = Collective(kind, groups)
    return float(seconds_of(asked, network, placed, np.array([nbytes], np.float64))[0])


@lru_cache(maxsize=64)
def _network(chip: Chip, ranks: int) -> Network:
    """As many instances as hold the ranks, with the chip's own figures."""
    target = replace(catalog.TARGETS[INSTANCES[chip.name]], chip=chip)
    one = Cluster(target, 1)
    costs = replace(
        COLLECTIVE_COSTS, launch=chip.links.launch, step=chip.links.step, link_efficiency=chip.links.efficiency
    )
    network = build(Cluster(target, -(-ranks // one.ranks)), costs)
    usual = catalog.get(chip.name).links.bandwidth.value
    wires = [n for n in range(len(network.rates)) if network.kind(n) not in ("hbm", "dma", "card")]
    if chip.links.bandwidth.value == usual:
        return network
    return network.with_rates(dict.fromkeys(wires, chip.links.bandwidth.value / usual))


def _shares(network: Network, placed: Ints, groups: tuple[tuple[int, ...], ...], of_rank: float) -> dict[int, float]:
    """What share of a chip's DMA engines its ranks that take part have. of_rank: of a rank's cores, that do."""
    chips, ranks = np.unique(placed[sorted({rank for group in groups for rank in group})], return_counts=True)
    shares = ranks / network.cluster.ranks_per_chip * of_rank
    return {int(link): float(share) for link, share in zip(network.dma(chips), shares) if share < 1}
