# SPDX-License-Identifier: Apache-2.0
"""An affine ramp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import SBUF_ONLY, Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec
from trnlab.isa.elementwise.affine import affine_values, check_pattern


@register
class Iota(Instruction):
    """dst[p, i...] = offset + p * channel_multiplier + sum of i * step, in 32-bit integers, then cast to dst.

    p counts from dst's own first row; pattern is ((step, num), ...), outermost dimension first.
    """

    name = "iota"
    opcode = 11
    dataflow = Dataflow.PARTITION
    engines = (Engine.GPSIMD,)
    operands = (OperandSpec("dst", "dst", SBUF_ONLY),)
    attrs: ClassVar[Mapping[str, Any]] = {"pattern": (), "offset": 0, "channel_multiplier": 0}
    limits = ("pattern has one to four dimensions and covers dst; offset, multiplier and steps are 32-bit",)
    source = "nki.isa.iota"
    example = """
        place = nl.ndarray((128, 512), nl.int32)
        nisa.iota(dst=place, pattern=[[1, 512]], channel_multiplier=512)  # 512 p + f
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The pattern covers dst."""
        check_pattern(self, ops["dst"], attrs, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The ramp as int32."""
        dst = arrays["dst"]
        return {"dst": affine_values(attrs, dst.shape[0]).reshape(dst.shape)}
