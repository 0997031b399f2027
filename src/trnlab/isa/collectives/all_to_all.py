# SPDX-License-Identifier: Apache-2.0
"""Every rank gets its part of the tensor of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Engine, Operand
from trnlab.isa.collectives.collective import COMMON, HBM_DST, HBM_SRC, SAME_GROUPS, CollectiveInstruction

PARTS = "gives, takes: parts of src and dst for each rank of the group, triggered by the CC cores"


@register
class AllToAll(CollectiveInstruction):
    """The s-th part along dimension 0 of dst, on the r-th rank = the r-th part of src of the s-th rank.

    gives, takes: of compiled programs, whose ranks know the sizes of their own parts: elements for each rank of the
    group, from the beginning of src and dst on; position: where this rank is in its group.
    """

    name = "all_to_all"
    opcode = 63
    operands = (HBM_DST, HBM_SRC)
    attrs: ClassVar[Mapping[str, Any]] = {**COMMON, "gives": (), "takes": (), "position": 0}
    cost_kinds = ("collective.all_to_all",)
    limits = (
        SAME_GROUPS,
        "dst and src lie in HBM",
        PARTS,
        "dst has as many elements as src, a multiple of the ranks",
    )
    source = "nki.collectives.all_to_all"
    example = """
        x = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=x, src=nl.ones((128, 512), nl.float32))
        ncc.all_to_all([x], [y], ncc.ReplicaGroup([[0, 1]]), collective_dim=0)
    """
    example_on = (1, 2)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Parts that differ lie in src and fill dst."""
        if not attrs["gives"]:
            super().check(ops, attrs, engine, chip)
            return
        self.check_groups(attrs, chip)
        self.check_memories(ops, attrs, chip)
        dst, src = (ops[name].partitions * ops[name].free for name in ("dst", "src"))
        gives, takes, ranks = attrs["gives"], attrs["takes"], self.group_size(attrs)
        named = len(gives) == len(takes) == ranks and 0 <= attrs["position"] < ranks
        if engine is not Engine.CC or not named or sum(gives) > src or max(sum(takes), 1) != dst:
            self.refuse(
                "parts do not fit their tensors",
                limit=PARTS,
                chip=chip,
                code="TRN409",
                got=f"dst of {dst} elements, src of {src}, gives {list(gives)}, takes {list(takes)}",
                remedy="name a part for each rank of the group",
            )

    def sizes_fit(self, dst: int, src: int, ranks: int) -> bool:
        """Equal, and divisible."""
        return dst == src and src % ranks == 0

    def combine(self, mine: int, sources: list[Array], arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
        """This rank's part of each."""
        part = sources[0].size // len(sources)
        return np.concatenate([source[mine * part : (mine + 1) * part] for source in sources])
