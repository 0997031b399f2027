# SPDX-License-Identifier: Apache-2.0
"""What so many chips are as a place: megawatts, halls, and the network between its halves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trnlab.chips import interconnects
from trnlab.chips.catalog import Target
from trnlab.chips.sources import assumed, derived
from trnlab.chips.spec import Figure
from trnlab.fleet.bills import energy

HALL = assumed(30e6, "W", "of one hall; halls of 20 to 60 MW are built")
GRADIENT = 4  # bytes of a gradient that is summed, in fp32
ORDERED, HALVING, DEALT = (
    "rings, neighbours in order",
    "recursive halving, far partners first",
    "rings, dealt like cards",
)


@dataclass(frozen=True)
class BisectionTraffic:
    """A way to add up gradients."""

    name: str
    nbytes: float  # that cross from one half of the network to the other, each way, in a step
    seconds: float  # on the network as it is
    bearable: float  # times fewer links between the halves, at which it takes `share` of a step


@dataclass(frozen=True)
class Site:
    """`chips` of a target, spares among them.

    oversubscription: how many times less the halves of the network are connected by than their cards could send.
    """

    target: Target
    chips: int
    oversubscription: float = 1.0

    @property
    def instances(self) -> int:
        """That the chips are in."""
        return -(-self.chips // self.target.chips)

    @property
    def watts(self) -> float:
        """Watts of all chips at work, their hosts, and the site."""
        return self.chips * energy.full_load(self.target.chip.name).value

    @property
    def halls(self) -> int:
        """That take so much."""
        return math.ceil(self.watts / HALL.value)

    def chips_for(self, watts: float) -> int:
        """How many chips so many watts are enough for, in whole instances."""
        each = energy.full_load(self.target.chip.name).value * self.target.chips
        return int(watts / each) * self.target.chips

    @property
    def bisection(self) -> Figure:
        """Byte/s from one half of the instances to the other."""
        wires = interconnects.of(self.target)
        each = wires.cards * wires.card.value * interconnects.COLLECTIVE_COSTS.card_efficiency.value
        return derived(
            self.instances // 2 * each / self.oversubscription,
            "byte/s",
            f"cards of half of the instances, as far as collectives use them, {self.oversubscription:g}:1",
        )

    def crossings(self, parameters: float, replica: int, step: float, share: float = 0.25) -> list[BisectionTraffic]:
        """What adding up the gradients of data parallel replicas asks of the bisection: `replica` chips have one copy
        of so many parameters; a step takes `step` seconds."""
        gradients = parameters * GRADIENT
        pairs = self.chips / replica / 2  # replicas of one half, of which each has a counterpart in the other
        ways = {ORDERED: 2 * gradients, HALVING: pairs * gradients, DEALT: 2 * pairs * gradients}
        rate = self.bisection.value
        if rate <= 0:
            return []
        return [
            BisectionTraffic(name, nbytes, _ratio(nbytes, rate), _ratio(rate * share * step, nbytes))
            for name, nbytes in ways.items()
            if pairs >= 1
        ]


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.inf
