# SPDX-License-Identifier: Apache-2.0
"""A value per partition and a second tile in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.alu import alu_op, binary, with_scalar
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work, as_float
from trnlab.isa.opcheck import check_arithmetic


@register
class ScalarTensorTensor(Instruction):
    """dst = (data op0 operand0) op1 operand1: operand0 is a number or one value per partition, operand1 a tile.

    reverse0 and reverse1 swap the sides of their operator. All in float32; about as fast as tensor_tensor alone.
    """

    name = "scalar_tensor_tensor"
    opcode = 8
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst"),
        OperandSpec("data", "src"),
        OperandSpec("operand0", "src", optional=True, immediate=True, shape=("P", "1")),
        OperandSpec("operand1", "src"),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"op0": "multiply", "op1": "add", "reverse0": False, "reverse1": False}
    required = ("dst", "data", "op0", "operand0", "op1", "operand1")
    not_both_psum = ("data", "operand1")
    limits = ("op0 and op1 are arithmetic operators of VectorE, op1 with two operands",)
    source = "nki.isa.scalar_tensor_tensor"
    example = """
        x, row, y = nl.ones((128, 512), nl.float32), nl.ones((128, 1), nl.float32), nl.ones((128, 512), nl.float32)
        # y += x * row
        nisa.scalar_tensor_tensor(dst=y, data=x, op0=nl.multiply, operand0=row, op1=nl.add, operand1=y)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Both operators are arithmetic; the second, as that of tensor_tensor, has two operands."""
        first, second = (check_arithmetic(self, attrs[name], engine, chip) for name in ("op0", "op1"))
        if "operand0" not in ops and attrs.get("operand0") is None and not first.unary:
            self.refuse(
                "operand 'operand0' is missing",
                limit="an access pattern or a number",
                got=None,
                chip=chip,
                remedy="pass operand0=",
                code="TRN402",
            )
        if second.unary:
            self.refuse(
                f"operator {second.name} has one operand",
                limit=self.limits[0],
                got=second.name,
                chip=chip,
                remedy="use tensor_scalar",
                code="TRN412",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The scalar operator, then the tile operator."""
        shape = arrays["dst"].shape
        scalar = arrays.get("operand0", attrs.get("operand0"))
        if isinstance(scalar, np.ndarray):
            scalar = scalar.reshape(-1, *(1,) * (len(shape) - 1))
        left = with_scalar(alu_op(attrs["op0"]), arrays["data"].reshape(shape), scalar, attrs["reverse0"])
        right = as_float(arrays["operand1"]).reshape(shape)
        if attrs["reverse1"]:
            left, right = right, left
        return {"dst": binary(alu_op(attrs["op1"]), left, right)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements; m = 1 for subtract then multiply on an even N, which bfloat16 does at full rate."""
        names = [alu_op(attrs[name]).name for name in ("op0", "op1")]
        cheap = names == ["subtract", "multiply"] and ops["data"].free % 2 == 0
        return self.streaming(ops, engine, m=int(cheap), flops=2)
