# SPDX-License-Identifier: Apache-2.0
"""How long a collective takes: a launch, steps of an algorithm, and bytes at the rate of the slowest part of the way.

    time = launch + steps * step + bytes / rate

N ranks, B bytes of the whole message (gathered, or to be reduced). Within a chip bytes go through HBM, read and
written once each, at the share of the cores that take part. A ring over several chips crosses each border once, so
that one rank at a time has all of a chip's links. The algorithm is the fastest of three, roughly as with the
windows of size that the vendor gives (mesh below 1 MB, rings above 56 MB):

    mesh        all to all at once: one step within a chip, two across chips, over-subscribed links
    doubling    log2 N steps, for powers of two
    ring        N - 1 steps

Which ranks are on which chip follows from their numbers: neighbours share chips. Collectives between instances, and
what collectives and kernels take from each other's DMA and links, are not modelled.

Sources: neuron-runtime/explore/intranode-collective-comm.rst of aws-neuron/aws-neuron-sdk (algorithms, steps); the
nccom-test page (factors of B, launch).
"""

from __future__ import annotations

from trnlab.chips.spec import Chip
from trnlab.isa.base import Work
from trnlab.units import PS_PER_NS, PS_PER_S

_SUM_RATE = 0.5  # of the rate of copies: nki/guides/architecture/trainium3_arch.rst:270, before NeuronCore-v4
_GATHERS = ("all_gather", "all_gather_v", "all_to_all", "all_to_all_v")


def collective_time(work: Work, chip: Chip) -> tuple[int, int]:
    """Picoseconds that the triggering engine is busy, and from then until the result is there on all ranks."""
    name = work.kind.partition(".")[2]
    busy = round(chip.sync.semaphore.value * PS_PER_NS)
    rounds, moved = _rounds(name, work.m)
    links, chips = chip.links, -(-work.k // int(chip.cores.value))
    cores = work.nbytes / max(work.n, 1)
    through_hbm = chip.hbm.bandwidth.value / 2 * cores
    times = []
    for steps, crowded in _algorithms(name, work.m, chips):
        rate = through_hbm
        if chips > 1:
            border = links.neighbours.value * links.bandwidth.value * links.efficiency.value
            rate = min(rate, border / (links.oversubscription.value if crowded else 1))
        nanoseconds = links.launch.value + rounds * steps * links.step.value
        times.append(round(nanoseconds * PS_PER_NS + work.nbytes * moved * PS_PER_S / rate))
    return busy, min(times)


def _rounds(name: str, ranks: int) -> tuple[int, float]:
    """How often an algorithm runs, and what a rank moves as a share of the message; sums count for their rate."""
    part = (ranks - 1) / ranks
    if name == "all_reduce":
        return 2, part / _SUM_RATE + part
    if name == "reduce_scatter":
        return 1, part / _SUM_RATE
    if name in _GATHERS:
        return 1, part
    return 1, 1.0 if name == "collective_permute" else 1 / _SUM_RATE


def _algorithms(name: str, ranks: int, chips: int) -> list[tuple[int, bool]]:
    """Steps of each algorithm, and whether it over-subscribes links."""
    mesh = (1 if chips == 1 else 2, True)
    if name.startswith("collective_permute"):
        return [(1, False)]
    if name.startswith("all_to_all"):
        return [mesh]
    found = [mesh, (max(ranks - 1, 1), False)]
    if ranks & (ranks - 1) == 0:
        found.append((max(ranks.bit_length() - 1, 1), False))
    return found
