# SPDX-License-Identifier: Apache-2.0
"""Every rank gets the tensors of all ranks, one behind the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Engine, Memory, Operand
from trnlab.isa.collectives.collective import COMMON, SAME_GROUPS, SAME_MEMORY, CollectiveInstruction


@register
class AllGather(CollectiveInstruction):
    """dst = the src of all ranks of the group, concatenated along dimension `dim` in the order of the group."""

    name = "all_gather"
    opcode = 62
    attrs: ClassVar[Mapping[str, Any]] = {**COMMON, "dim": 0}
    cost_kinds = ("collective.all_gather",)
    limits = (
        "dim is 0, in SBUF also 1",
        SAME_GROUPS,
        SAME_MEMORY,
        "dst has as many elements as src, times the ranks",
    )
    source = "nki.collectives.all_gather"
    example = """
        x = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((256, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=x, src=nl.ones((128, 512), nl.float32))
        ncc.all_gather([x], [y], ncc.ReplicaGroup([[0, 1]]), collective_dim=0)
    """
    example_on = (1, 2)

    def sizes_fit(self, dst: int, src: int, ranks: int) -> bool:
        """dst is for all ranks."""
        return dst == src * ranks

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """A dimension that can be concatenated."""
        super().check(ops, attrs, engine, chip)
        dst, src = ops["dst"], ops["src"]
        in_hbm = dst.memory is Memory.HBM
        rows = src.partitions * (self.group_size(attrs) if attrs["dim"] == 0 else 1)
        if attrs["dim"] not in ((0,) if in_hbm else (0, 1)) or (not in_hbm and dst.partitions != rows):
            self.refuse(
                "tensors cannot be gathered along this dimension",
                limit=self.limits[0],
                got=f"dim {attrs['dim']} in {dst.memory.name}, {src.partitions} partitions into {dst.partitions}",
                chip=chip,
                code="TRN411",
                remedy="gather along dimension 0 in HBM, or along partitions or the free dimension of tiles",
            )

    def combine(self, mine: int, sources: list[Array], arrays: Arrays, attrs: Mapping[str, Any]) -> Array:
        """One behind the other."""
        if attrs["dim"] == 0:
            return np.concatenate(sources)
        rows = arrays["dst"].shape[0]
        return np.concatenate([source.reshape(rows, -1) for source in sources], axis=1)
