# SPDX-License-Identifier: Apache-2.0
"""Every rank gets its part of what all ranks' tensors add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab.isa import register
from trnlab.isa.base import Array, Arrays
from trnlab.isa.collectives.collective import SAME_GROUPS, SAME_MEMORY, ReductionInstruction, reduced


@register
class ReduceScatter(ReductionInstruction):
    """dst on the r-th rank of a group = the r-th part along dimension 0 of the ranks' src, combined with op."""

    name = "reduce_scatter"
    opcode = 61
    cost_kinds = ("collective.reduce_scatter",)
    limits = ("op is add, min or max", SAME_GROUPS, SAME_MEMORY, "src has as many elements as dst, times the ranks")
    source = "nki.collectives.reduce_scatter"
    example = """
        x = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((64, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=x, src=nl.ones((128, 512), nl.float32))
        ncc.reduce_scatter([x], [y], ncc.ReplicaGroup([[0, 1]]), collective_dim=0, op=nl.add)
    """
    example_on = (1, 2)

    def sizes_fit(self, dst: int, src: int, ranks: int) -> bool:
        """src is for all ranks."""
        return src == dst * ranks

    def combine(self, mine: int, sources: list[Array], arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
        """This rank's part of each, reduced."""
        part = sources[0].size // len(sources)
        return reduced([source[mine * part : (mine + 1) * part] for source in sources], attrs["op"])
