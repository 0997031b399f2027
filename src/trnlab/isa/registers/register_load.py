# SPDX-License-Identifier: Apache-2.0
"""From memory into a register."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work
from trnlab.isa.registers.registers import ANYWHERE, LOAD, LOADED, MEMORY, REGISTER, SEQUENCERS, one_register


@register
class RegisterLoad(Instruction):
    """dst = src, one element of HBM or SBUF; narrow integers are extended to 32 bits with their sign."""

    name = "register_load"
    opcode = 45
    dataflow = Dataflow.PARTITION
    engines = SEQUENCERS
    operands = (REGISTER, OperandSpec("src", "src", MEMORY, shape=("1", "1"), dtypes=LOADED, starts=ANYWHERE))
    cost_kinds = LOAD
    limits = ("integers are loaded into integer registers, float32 into float32 ones",)
    source = "nki.isa.register_load"
    example = """
        x, count = nl.ones((1, 1), nl.int32), nisa.register_alloc()
        nisa.register_load(dst=count, src=x)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """No arithmetic on the way."""
        if ops["dst"].dtype.is_float != ops["src"].dtype.is_float:
            self.refuse(
                "a register is loaded without conversion",
                limit=self.limits[0],
                got=f"{ops['dst'].dtype.name} from {ops['src'].dtype.name}",
                chip=chip,
                remedy="cast with tensor_copy first",
                code="TRN408",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The element, extended."""
        return {"dst": arrays["src"].astype(arrays["dst"].dtype).reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """One register."""
        return one_register(LOAD)
