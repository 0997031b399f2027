# SPDX-License-Identifier: Apache-2.0
"""Copy and cast of a tile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import MOVABLE, Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec
from trnlab.isa.opcheck import check_packed


@register
class TensorCopy(Instruction):
    """dst = src: bit-exact within one format, otherwise through float32 with rounding to nearest even.

    Between SBUF and PSUM, between formats, and between layouts of the free dimensions.
    """

    name = "tensor_copy"
    opcode = 4
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR, Engine.GPSIMD, Engine.SCALAR)
    engine_features: ClassVar[Mapping[Engine, str]] = {Engine.SCALAR: "scalar_tensor_copy"}
    operands = (OperandSpec("dst", "dst", dtypes=MOVABLE), OperandSpec("src", "src", dtypes=MOVABLE))
    indirect = ("dst", "src")
    limits = ("packed formats are copied as they are, not cast",)
    source = "nki.isa.tensor_copy; trainium2_arch.rst:222-239 (fast modes)"
    example = """
        x, y = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.bfloat16)
        nisa.tensor_copy(dst=y, src=x)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Packed words stay what they are."""
        check_packed(self, ops, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The elements of src in the shape of dst."""
        return {"dst": arrays["src"].reshape(arrays["dst"].shape)}
