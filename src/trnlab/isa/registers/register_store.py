# SPDX-License-Identifier: Apache-2.0
"""From a register into memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work
from trnlab.isa.registers.registers import ANYWHERE, LOADED, MEMORY, SEQUENCERS, SOURCE, STORE, one_register


@register
class RegisterStore(Instruction):
    """dst = src, into one element of HBM or SBUF; of an integer, as many of the lowest bits as dst has."""

    name = "register_store"
    opcode = 46
    dataflow = Dataflow.PARTITION
    engines = SEQUENCERS
    operands = (OperandSpec("dst", "dst", MEMORY, shape=("1", "1"), dtypes=LOADED, starts=ANYWHERE), SOURCE)
    cost_kinds = STORE
    limits = ("integer registers are stored as integers, float32 ones as float32",)
    source = "nki.isa.register_store"
    example = """
        x, count = nl.ndarray((1, 1), nl.int32), nisa.register_alloc(4)
        nisa.register_store(dst=x, src=count)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """No arithmetic on the way."""
        if ops["dst"].dtype.is_float != ops["src"].dtype.is_float:
            self.refuse(
                "a register is stored without conversion",
                limit=self.limits[0],
                got=f"{ops['dst'].dtype.name} from {ops['src'].dtype.name}",
                chip=chip,
                remedy="cast with tensor_copy afterwards",
                code="TRN408",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The lowest bits."""
        return {"dst": arrays["src"].astype(arrays["dst"].dtype).reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """One register."""
        return one_register(STORE)
