# SPDX-License-Identifier: Apache-2.0
"""A new register."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, Work
from trnlab.isa.opcheck import check_value
from trnlab.isa.registers.registers import COST, REGISTER, SEQUENCERS, one_register


@register
class RegisterAlloc(Instruction):
    """dst = x, an integer, where the life of a register begins; without x, all bits set: it holds nothing yet."""

    name = "register_alloc"
    opcode = 43
    dataflow = Dataflow.PARTITION
    engines = SEQUENCERS
    operands = (REGISTER,)
    attrs: ClassVar[Mapping[str, Any]] = {"x": None}
    cost_kinds = COST
    limits = ("x is an integer that dst can hold, or left out",)
    source = "nki.isa.register_alloc"
    example = """
        count = nisa.register_alloc(4)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """x is a value of dst."""
        if attrs["x"] is not None:
            check_value(self, attrs["x"], ops["dst"].dtype, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The number in dst's format."""
        dst = arrays["dst"]
        if attrs["x"] is None:
            return {"dst": np.full(dst.shape, 0xFFFFFFFF, np.uint32).view(dst.dtype)}
        return {"dst": np.full(dst.shape, attrs["x"], dst.dtype)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """One register."""
        return one_register()
