# SPDX-License-Identifier: Apache-2.0
"""A recurrence along the free dimension, driven by two tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.alu import alu_op
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work, as_float
from trnlab.isa.opcheck import check_arithmetic


@register
class TensorTensorScan(Instruction):
    """dst[i] = (data0[i] op0 dst[i - 1]) op1 data1[i], element after element of each row, in float32.

    `initial`, a number or one value per partition, stands before the first element. reverse0 and reverse1 swap the
    sides of their operator. What is carried on is the float32 result, before it is rounded to dst's format.
    """

    name = "tensor_tensor_scan"
    opcode = 28
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst"),
        OperandSpec("data0", "src"),
        OperandSpec("data1", "src"),
        OperandSpec("initial", "src", immediate=True, shape=("P", "1")),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"op0": "multiply", "op1": "add", "reverse0": False, "reverse1": False}
    required = ("dst", "data0", "data1", "initial", "op0", "op1")
    not_both_psum = ("data0", "data1")
    limits = ("op0 and op1 are arithmetic operators of VectorE with two operands",)
    source = "nki.isa.tensor_tensor_scan; that the carry is not rounded is assumed"
    example = """
        decay, x = nl.ones((128, 512), nl.float32), nl.ones((128, 512), nl.float32)
        state = nl.ndarray((128, 512), nl.float32)
        nisa.tensor_tensor_scan(dst=state, data0=decay, data1=x, initial=0.0, op0=nl.multiply, op1=nl.add)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Both operators are arithmetic and binary."""
        for name in ("op0", "op1"):
            op = check_arithmetic(self, attrs[name], engine, chip)
            if op.unary:
                self.refuse(
                    f"operator {op.name} has one operand",
                    limit=self.limits[0],
                    got=op.name,
                    chip=chip,
                    remedy="apply it with tensor_scalar first",
                    code="TRN412",
                )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """One column after the other."""
        lanes = arrays["dst"].shape[0]
        data0, data1 = (as_float(arrays[name]).reshape(lanes, -1) for name in ("data0", "data1"))
        initial = np.asarray(arrays.get("initial", attrs.get("initial")), np.float32).reshape(-1)
        carry: Array = np.broadcast_to(initial, (lanes,))
        op0, op1 = alu_op(attrs["op0"]), alu_op(attrs["op1"])
        result = np.empty(data0.shape, np.float32)
        for i in range(data0.shape[1]):
            x, y = (carry, data0[:, i]) if attrs["reverse0"] else (data0[:, i], carry)
            x, y = np.asarray(op0(x, y), np.float32), data1[:, i]
            x, y = (y, x) if attrs["reverse1"] else (x, y)
            result[:, i] = carry = np.asarray(op1(x, y), np.float32)
        return {"dst": result.reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements of each tile."""
        return self.streaming(ops, engine, flops=2)
