# SPDX-License-Identifier: Apache-2.0
"""Fill of a tile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    HALF_FLOATS,
    MOVABLE,
    Array,
    Arrays,
    Dataflow,
    Engine,
    Instruction,
    Operand,
    OperandSpec,
    Work,
)
from trnlab.isa.opcheck import check_value


@register
class Memset(Instruction):
    """dst = value in every element."""

    name = "memset"
    opcode = 5
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR, Engine.GPSIMD)
    operands = (OperandSpec("dst", "dst", dtypes=MOVABLE),)
    attrs: ClassVar[Mapping[str, Any]] = {"value": 0.0}
    limits = (
        "value is a number; for an integer dst it is whole and within the range of the format",
        "packed formats can only be filled with 0",
    )
    source = "nki.isa.memset"
    example = """
        x = nl.ndarray((128, 512), nl.bfloat16)
        nisa.memset(dst=x, value=0.0)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The value is one that dst can hold."""
        check_value(self, attrs["value"], ops["dst"].dtype, chip)
        if ops["dst"].dtype.is_packed and attrs["value"] != 0:
            self.refuse(
                "packed formats can only be filled with zeros",
                limit=0,
                got=attrs["value"],
                chip=chip,
                remedy="fill the words as integers (AP.cast)",
                code="TRN411",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The value everywhere, exact in integer formats."""
        dst = arrays["dst"]
        return {"dst": np.full(dst.shape, attrs["value"], dst.dtype if dst.dtype.kind in "iu" else np.float32)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements; m = 1 for zeros in a 16-bit float, which go twice as fast on VectorE."""
        return self.streaming(ops, engine, m=int(attrs["value"] == 0 and ops["dst"].dtype.name in HALF_FLOATS))
