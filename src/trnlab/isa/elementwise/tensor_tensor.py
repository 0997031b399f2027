# SPDX-License-Identifier: Apache-2.0
"""An operator on two tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.alu import alu_op, binary
from trnlab.isa.base import INT32, Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work, as_float
from trnlab.isa.opcheck import check_alu, check_bits

CHEAP = frozenset({"add", "subtract", "multiply"})


@register
class TensorTensor(Instruction):
    """dst = data1 op data2, element by element.

    In float32 for arithmetic operators, on the bits of integers for bitvec operators. Two 32-bit integer inputs are
    computed exactly, wrapping at 32 bits, which only GpSimd can do; with exact=False they pass through float32, as on
    VectorE.
    """

    name = "tensor_tensor"
    opcode = 6
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR, Engine.GPSIMD)
    operands = (OperandSpec("dst", "dst"), OperandSpec("data1", "src"), OperandSpec("data2", "src"))
    attrs: ClassVar[Mapping[str, Any]] = {"op": "add", "exact": True}
    indirect = ("dst", "data1")
    not_both_psum = ("data1", "data2")
    limits = (
        "op is a name of isa.alu that exists on the engine and takes two operands",
        "bitvec operators: integers of one format",
        "arithmetic on two 32-bit integer tiles: gpsimd, or exact=False",
    )
    source = "nki.isa.tensor_tensor; nki.api.shared.rst (operators); trainium2_arch.rst:222-239 (fast modes)"
    example = """
        x, y = nl.ones((128, 512), nl.float32), nl.ones((128, 512), nl.float32)
        total = nl.ndarray((128, 512), nl.float32)
        nisa.tensor_tensor(dst=total, data1=x, data2=y, op=nl.add)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Operator, formats and engine go together."""
        op = check_alu(self, attrs["op"], engine, chip)
        if op.unary:
            self.refuse(
                f"operator {op.name} has one operand",
                limit="an operator of two operands",
                got=op.name,
                chip=chip,
                remedy="use tensor_scalar or tensor_copy",
                code="TRN412",
            )
        if op.bitvec:
            check_bits(self, ops, ("dst", "data1", "data2"), chip)
        elif {ops["data1"].dtype.name, ops["data2"].dtype.name} <= INT32 and attrs["exact"]:
            self._check_integers(op.integer, engine, chip)

    def _check_integers(self, exact: bool, engine: Engine, chip: Chip) -> None:
        if engine is not Engine.GPSIMD or not exact:
            self.refuse(
                "32-bit integers lose bits here",
                limit="gpsimd, and an operator defined on integers",
                got=engine.name.lower(),
                chip=chip,
                remedy="issue it on gpsimd, or with exact=False where 24 bits are enough",
                code="TRN408",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The operator on the elements in order."""
        op, shape = alu_op(attrs["op"]), arrays["dst"].shape
        x, y = (arrays[name].reshape(shape) for name in ("data1", "data2"))
        if not attrs["exact"] and not op.bitvec:
            x = as_float(x)
        return {"dst": binary(op, x, y)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements; m = 1 for the operators that VectorE can do at full rate in bfloat16."""
        return self.streaming(ops, engine, m=int(alu_op(attrs["op"]).name in CHEAP), flops=1)
