# SPDX-License-Identifier: Apache-2.0
"""Every rank gets its part of the tensor of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.isa import register
from trnlab.isa.base import Array, Arrays
from trnlab.isa.collective import HBM_DST, HBM_SRC, SAME_GROUPS, Collective


@register
class AllToAll(Collective):
    """The s-th part along dimension 0 of dst, on the r-th rank = the r-th part of src of the s-th rank."""

    name = "all_to_all"
    opcode = 63
    operands = (HBM_DST, HBM_SRC)
    cost_kinds = ("collective.all_to_all",)
    limits = (SAME_GROUPS, "dst and src lie in HBM", "dst has as many elements as src, a multiple of the ranks")
    source = "nki.collectives.all_to_all"
    example = """
        x = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=x, src=nl.ones((128, 512), nl.float32))
        ncc.all_to_all([x], [y], ncc.ReplicaGroup([[0, 1]]), collective_dim=0)
    """
    example_on = (1, 2)

    def sizes_fit(self, dst: int, src: int, ranks: int) -> bool:
        """Equal, and divisible."""
        return dst == src and src % ranks == 0

    def combine(self, mine: int, sources: list[Array], arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
        """This rank's part of each."""
        part = sources[0].size // len(sources)
        return np.concatenate([source[mine * part : (mine + 1) * part] for source in sources])
