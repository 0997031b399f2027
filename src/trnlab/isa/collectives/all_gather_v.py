# SPDX-License-Identifier: Apache-2.0
"""Every rank gets a piece of its own length from every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Engine, Operand
from trnlab.isa.collectives.collective import SAME_GROUPS
from trnlab.isa.collectives.variable import LAYOUT, Variable

RANKS = 4  # of a group: those of one chip


@register
class AllGatherV(Variable):
    """The s-th part of dst = the piece of src that the s-th rank sends to all.

    Row 0 of its metadata says how many elements, row 1 from where on, both in column 0.
    """

    name = "all_gather_v"
    opcode = 66
    cost_kinds = ("collective.all_gather_v",)
    limits = (
        "has_rdispls is false; groups have 4 ranks, whose kernels run on two cores",
        SAME_GROUPS,
        "dst and src lie in HBM",
        LAYOUT,
    )
    source = "nki.collectives.all_gather_v"
    example = """
        x = nl.ndarray((32,), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((32,), nl.float32, buffer=nl.shared_hbm)
        counts = nl.ndarray((3, 4), nl.uint32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=x.reshape((1, 32)), src=nl.ones((1, 32), nl.float32))
        nisa.dma_copy(dst=counts, src=nl.ones((3, 4), nl.uint32))
        ncc.all_gather_v([x], [y], ncc.ReplicaGroup([[0, 1, 2, 3]]), counts)
    """
    example_on = (2, 4)

    def column(self, target: int) -> int:
        """One piece for all."""
        return 0

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """What the runtime supports so far."""
        super().check(ops, attrs, engine, chip)
        if attrs["has_rdispls"] or self.group_size(attrs) != RANKS or not attrs["joint"]:
            self.refuse(
                "not supported by the runtime",
                limit=self.limits[0],
                got=f"has_rdispls={attrs['has_rdispls']}, groups of {self.group_size(attrs)}, "
                f"{2 if attrs['joint'] else 1} cores",
                chip=chip,
                remedy="use all_gather, or launch with kernel[2] on groups of four",
                code="TRN411",
            )
