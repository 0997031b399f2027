# SPDX-License-Identifier: Apache-2.0
"""An operator between a tile and one value per partition, and a reduction of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.accumulators import (
    ACCUMULATORS,
    ON_VECTOR,
    RESULT,
    accumulated,
    check_command,
    former_matters,
    write_back,
)
from trnlab.isa.alu import alu_op, with_scalar
from trnlab.isa.base import (
    FLOAT32,
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

REDUCTIONS = ("add", "multiply", "max", "min")
COMMANDS = tuple(command for command in ON_VECTOR if command != "idle")


@register
class TensorScalarReduce(Instruction):
    """dst = data op0 operand0, and each row of results reduced by reduce_op in the accumulators, in float32.

    reduce_res gets what the accumulators hold in the end, negated if reduce_res_negate says so. All free dimensions
    are reduced. A unary op0 takes None as its operand.
    """

    name = "tensor_scalar_reduce"
    opcode = 37
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst"),
        RESULT,
        ACCUMULATORS,
        OperandSpec("data", "src"),
        OperandSpec("operand0", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOAT32),
        OperandSpec("reduce_init", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOAT32),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "op0": "multiply",
        "operand0": None,
        "reduce_op": "add",
        "reduce_cmd": "reset_reduce",
        "reduce_init": None,
        "reduce_res_negate": False,
    }
    indirect = ("dst", "data")
    limits = (
        "op0 is an arithmetic operator of isa.alu, not reversed; reduce_op is add, multiply, max or min",
        "reduce_cmd is reduce, reset_reduce or load_reduce, the last with reduce_init (isa.accumulators)",
    )
    source = "nki.isa.tensor_scalar_reduce"
    example = """
        x, y = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32)
        total = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_scalar_reduce(dst=y, data=x, op0=nl.multiply, operand0=0.5, reduce_op=nl.add, reduce_res=total)
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Whether the accumulators are read."""
        return former_matters(attrs, COMMANDS)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Operators, operand and command go together."""
        op = check_arithmetic(self, attrs["op0"], engine, chip)
        if "operand0" not in ops and attrs.get("operand0") is None and not op.unary:
            self.refuse(
                "operand 'operand0' is missing",
                limit="an access pattern or a number",
                got=None,
                chip=chip,
                remedy="pass operand0=",
                code="TRN402",
            )
        check_one_of(self, "reduce_op", REDUCTIONS, attrs, chip)
        check_command(self, COMMANDS, ops, attrs, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The operator, then the fold of its float32 results."""
        data = arrays["data"].reshape(arrays["dst"].shape)
        scalar = arrays.get("operand0", attrs.get("operand0"))
        if isinstance(scalar, np.ndarray):
            scalar = per_partition(scalar, data.ndim)
        values = with_scalar(alu_op(attrs["op0"]), data, scalar, False)
        sums = accumulated(alu_op(attrs["reduce_op"]), values, arrays, attrs, COMMANDS)
        return write_back({"dst": values}, sums, arrays, negate=attrs["reduce_res_negate"])

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements, and one access to the accumulators."""
        return self.streaming(ops, engine, flops=2)
