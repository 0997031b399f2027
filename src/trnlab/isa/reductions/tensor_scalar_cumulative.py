# SPDX-License-Identifier: Apache-2.0
"""A running reduction along the free dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.accumulators import ACCUMULATORS, IDENTITY, ON_VECTOR, check_command, former_matters, write_back
from trnlab.isa.alu import alu_op, with_scalar
from trnlab.isa.base import (
    ANY_DTYPE,
    FLOAT32,
    INT32,
    Array,
    Arrays,
    Dataflow,
    Engine,
    Instruction,
    Operand,
    OperandSpec,
    Work,
    per_partition,
)
from trnlab.isa.opcheck import check_arithmetic, check_one_of

STREAMED = ANY_DTYPE - INT32 - {"tfloat32", "bool", "float8_e8m0fnu"}
CUMULATIVE = ("add", "subtract", "multiply", "max", "min")
COMMANDS = tuple(command for command in ON_VECTOR if command != "idle")


@register
class TensorScalarCumulative(Instruction):
    """dst[i] = register = (src[i] op0 imm0) op1 register, element after element of each row, in float32.

    The register is the lane's accumulator: reduce_cmd lets it start from op1's identity, from imm1 (load_reduce) or
    from what an earlier instruction left (reduce).
    """

    name = "tensor_scalar_cumulative"
    opcode = 21
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst", dtypes=STREAMED),
        ACCUMULATORS,
        OperandSpec("src", "src", dtypes=STREAMED),
        OperandSpec("imm0", "src", immediate=True, shape=("P", "1"), dtypes=FLOAT32),
        OperandSpec("imm1", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOAT32),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "op0": "multiply",
        "op1": "add",
        "imm1": None,
        "reduce_cmd": "reset_reduce",
    }
    indirect = ("dst", "src")
    limits = (
        "op0 is an arithmetic operator of isa.alu; op1 is add, subtract, multiply, max or min",
        "reduce_cmd is reduce, reset_reduce or load_reduce, which needs imm1 (isa.accumulators)",
    )
    source = "nki.isa.tensor_scalar_cumulative"
    example = """
        x, sums = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32)
        nisa.tensor_scalar_cumulative(dst=sums, src=x, op0=nl.multiply, op1=nl.add, imm0=1.0, imm1=0.0)  # running sum
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Whether the accumulators are read."""
        return former_matters(attrs, COMMANDS)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Operators and command go together."""
        check_arithmetic(self, attrs["op0"], engine, chip)
        check_one_of(self, "op1", CUMULATIVE, attrs, chip)
        loads = attrs["reduce_cmd"] == "load_reduce"
        initial = ops.get("imm1", attrs.get("imm1")) if loads else None
        check_command(self, COMMANDS, ops, {**attrs, "reduce_init": initial}, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """One column after the other."""
        src, op = arrays["src"], alu_op(attrs["op1"])
        imm0 = per_partition(arrays.get("imm0", attrs.get("imm0")), src.ndim)
        values = with_scalar(alu_op(attrs["op0"]), src, imm0, False).reshape(src.shape[0], -1)
        register = self._start(arrays, attrs, src.shape[0])
        running = np.empty_like(values)
        for i in range(values.shape[1]):
            running[:, i] = register = np.asarray(op(values[:, i], register), np.float32)
        return write_back({"dst": running.reshape(arrays["dst"].shape)}, register, arrays)

    def _start(self, arrays: Arrays, attrs: Mapping[str, Any], lanes: int) -> Array:
        former: Any = IDENTITY[alu_op(attrs["op1"]).name]
        if attrs["reduce_cmd"] == "reduce":
            former = arrays["accumulators"]
        elif attrs["reduce_cmd"] == "load_reduce":
            former = arrays.get("imm1", attrs.get("imm1"))
        return np.broadcast_to(np.asarray(former, np.float32).reshape(-1), (lanes,)).copy()

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements, two operators each."""
        return self.streaming(ops, engine, flops=2)
