# SPDX-License-Identifier: Apache-2.0
"""Every rank gets what all ranks' tensors add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow
from trnlab.isa.collectives.collective import SAME_GROUPS, SAME_MEMORY, ReductionInstruction, reduced


@register
class AllReduce(ReductionInstruction):
    """dst = src of rank 0 op src of rank 1 op ..., over the ranks of the group, the same on all of them."""

    name = "all_reduce"
    opcode = 60
    dataflow = Dataflow.PARTITION
    cost_kinds = ("collective.all_reduce",)
    limits = ("op is add, min or max", SAME_GROUPS, SAME_MEMORY, "dst has as many elements as src")
    source = "nki.collectives.all_reduce"
    example = """
        x = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=x, src=nl.ones((128, 512), nl.float32))
        ncc.all_reduce([x], [y], ncc.ReplicaGroup([[0, 1]]), op=nl.add)
    """
    example_on = (1, 2)

    def combine(self, mine: int, sources: list[Array], arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
        """All of them, reduced."""
        return reduced(sources, attrs["op"])
