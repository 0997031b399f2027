# SPDX-License-Identifier: Apache-2.0
"""Ranks combine two tensors of their own and send the result to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import DMA_MEMORIES, Array, Arrays, Dataflow, Engine, Operand, OperandSpec
from trnlab.isa.collectives.collective import REDUCTIONS, SAME_MEMORY, check_reduction, reduced
from trnlab.isa.collectives.collective_permute import PAIRS, CollectivePermute


@register
class CollectivePermuteReduce(CollectivePermute):
    """dst on the target of each pair = src0 op src1 on its source."""

    name = "collective_permute_reduce"
    opcode = 65
    dataflow = Dataflow.PARTITION
    operands = (
        OperandSpec("dst", "dst", DMA_MEMORIES, rw=True, shape=("", "")),
        OperandSpec("src0", "src", DMA_MEMORIES, shape=("", "")),
        OperandSpec("src1", "src", DMA_MEMORIES, shape=("", "")),
    )
    attrs: ClassVar[Mapping[str, Any]] = {**CollectivePermute.attrs, "op": "add"}
    same_dtype = ("dst", "src0", "src1")
    moves_bits = False
    cost_kinds = ("collective.collective_permute_reduce",)
    limits = (f"op is {', '.join(REDUCTIONS)}", PAIRS, SAME_MEMORY, "dst, src0 and src1 have as many elements")
    source = "nki.collectives.collective_permute_implicit_reduce"
    example = """
        x = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        y = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=x, src=nl.ones((128, 512), nl.float32))
        ncc.collective_permute_implicit_reduce([[x]], [[x]], [[y]], ncc.ReplicaGroup([[0, 1]]), op=nl.add)
    """
    example_on = (1, 2)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The operator is one of three."""
        check_reduction(self, attrs["op"], chip)
        super().check(ops, attrs, engine, chip)

    def brought(self, side: Arrays, attrs: Mapping[str, Any]) -> Array:
        """The two, combined."""
        return reduced([side["src0"].reshape(-1), side["src1"].reshape(-1)], attrs["op"])
