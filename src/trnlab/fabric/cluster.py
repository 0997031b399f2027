# SPDX-License-Identifier: Apache-2.0
"""A cluster: so many instances of a type, and where its ranks are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trnlab import chips
from trnlab.chips import interconnects
from trnlab.chips.catalog import Target
from trnlab.chips.interconnects import Interconnect
from trnlab.errors import UsageError
from trnlab.fabric.schedule import Ints

_SPELLING = re.compile(r"(?:([0-9]{1,6})x)?(?=[a-z])([a-z0-9.-]+)")
CORES_PER_RANK = {"trn2": 2, "trn3": 2}  # logical cores: the runtime's default (NEURON_LOGICAL_NC_CONFIG)


@dataclass(frozen=True)
class Cluster:
    """`instances` of `target`, each with its chips numbered from 0; chip c of instance i is i * chips + c."""

    target: Target
    instances: int

    @property
    def name(self) -> str:
        """As it is written: 4xtrn2.48xlarge."""
        return self.target.name if self.instances == 1 else f"{self.instances}x{self.target.name}"

    @property
    def chips(self) -> int:
        """Chips of all instances."""
        return self.target.chips * self.instances

    @property
    def ranks_per_chip(self) -> int:
        """Ranks that a chip can hold: its cores, two of which are one where the runtime joins them."""
        return int(self.target.chip.cores.value) // CORES_PER_RANK.get(self.target.chip.name, 1)

    @property
    def ranks(self) -> int:
        """Ranks that the cluster can hold."""
        return self.chips * self.ranks_per_chip

    @cached_property
    def interconnect(self) -> Interconnect:
        """The wires of one instance."""
        return interconnects.of(self.target)

    def placed(self, ranks: int) -> Ints:
        """The chip of each of so many ranks: equally many on each instance, which fill its chips from the first.

        Raises UsageError (TRN180) when they do not fit or cannot be shared out equally.
        """
        per_instance, left = divmod(ranks, self.instances)
        room = self.target.chips * self.ranks_per_chip
        if ranks < 1 or left or per_instance > room:
            raise UsageError(
                f"{ranks} ranks cannot be placed on {self.name}",
                code="TRN180",
                limit=f"as many ranks on each of {self.instances}, at most {room} each "
                f"({self.target.chips} chips of {self.ranks_per_chip})",
                got=ranks,
                remedy=f"choose a multiple of {self.instances} up to {self.ranks}",
            )
        local = np.arange(per_instance) // self.ranks_per_chip
        return (np.arange(self.instances)[:, None] * self.target.chips + local).reshape(-1)


def parse(text: str) -> Cluster:
    """`4xtrn2.48xlarge` or `trn1.32xlarge`. Raises UsageError for what names no cluster."""
    found = _SPELLING.fullmatch(text)
    if found is None or int(found[1] or 1) < 1:
        raise UsageError(
            f"{text!r} names no cluster",
            code="TRN181",
            limit="COUNTxTARGET or TARGET, e.g. 4xtrn2.48xlarge",
            got=text,
            remedy="`trnlab chips` lists the targets",
        )
    return Cluster(chips.target(found[2]), int(found[1] or 1))
