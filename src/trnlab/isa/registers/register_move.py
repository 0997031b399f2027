# SPDX-License-Identifier: Apache-2.0
"""A number, or another register, into a register."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, Work
from trnlab.isa.opcheck import check_value
from trnlab.isa.registers.registers import COST, REGISTER, SEQUENCERS, SOURCE, one_register


@register
class RegisterMove(Instruction):
    """dst = src: an integer, or what another register of the same format holds."""

    name = "register_move"
    opcode = 44
    dataflow = Dataflow.PARTITION
    engines = SEQUENCERS
    operands = (REGISTER, replace(SOURCE, immediate=True))
    same_dtype = ("dst", "src")
    cost_kinds = COST
    limits = ("a number as src is one that dst can hold",)
    source = "nki.isa.register_move"
    example = """
        count = nisa.register_alloc(0)
        nisa.register_move(dst=count, src=4)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """A number is a value of dst."""
        if "src" not in ops:
            check_value(self, attrs["src"], ops["dst"].dtype, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The same bits, or the number in dst's format."""
        dst = arrays["dst"]
        if "src" in arrays:
            return {"dst": arrays["src"].reshape(dst.shape)}
        return {"dst": np.full(dst.shape, attrs["src"], dst.dtype)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """One register."""
        return one_register()
