# SPDX-License-Identifier: Apache-2.0
"""A pointwise function on ScalarE with freely chosen operators before it and a reduction behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.accumulators import (
    ACCUMULATORS,
    ON_SCALAR,
    RESULT,
    accumulated,
    check_command,
    former_matters,
    write_back,
)
from trnlab.isa.activations import NO_TABLE, activation_op
from trnlab.isa.alu import ALIASES, ALU, alu_op, with_scalar
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
    as_float,
    per_partition,
)
from trnlab.isa.opcheck import check_activation, check_one_of

PRELU = "prelu"  # the one function with a parameter
REDUCTIONS = ("add", "max", "min", "abs_max", "abs_min")
COMBINATIONS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)


@register
class Activate2(Instruction):
    """dst = op((data op0 imm0) op1 imm1), and each row of results reduced by reduce_op in the accumulators.

    imm0, imm1 and relu_param are numbers or one value per partition; reverse0 and reverse1 swap the sides of their
    operator, bypass leaves its operand out. op is a function of isa.activations, or prelu: x where x > 0, relu_param
    * x elsewhere. All in float32. reduce_cmd says what the accumulators start from, and reduce_res gets what they
    hold in the end.
    """

    name = "activate2"
    opcode = 23
    dataflow = Dataflow.POINTWISE
    engines = (Engine.SCALAR,)
    feature = "activate2"
    operands = (
        OperandSpec("dst", "dst"),
        RESULT,
        ACCUMULATORS,
        OperandSpec("data", "src"),
        OperandSpec("imm0", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOAT32),
        OperandSpec("imm1", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOAT32),
        OperandSpec("relu_param", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOAT32),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "op": "copy",
        "op0": "bypass",
        "imm0": 0.0,
        "reverse0": False,
        "op1": "bypass",
        "imm1": 0.0,
        "reverse1": False,
        "relu_param": 0.0,
        "reduce_op": "add",
        "reduce_cmd": "reset_reduce",
    }
    indirect = ("dst", "data")
    limits = (
        "op is a name of isa.activations, or prelu",
        "(op0, op1) is (multiply, add), (multiply, subtract), or multiply, add, subtract or bypass with bypass",
        "bypass is not reversed",
        "reduce_op is add, max, min, abs_max or abs_min",
        "reduce_cmd is idle, reset, reduce or reset_reduce (isa.accumulators)",
    )
    cost_kinds = ("scalar.activate2", "scalar.activate2_reduce")
    source = "nki.isa.activate2; trainium3_arch.rst:225-232"
    example = """
        x, y = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.bfloat16)
        # relu(2 x - 1)
        nisa.activate2(dst=y, op=nl.relu, data=x, imm0=2.0, imm1=1.0, op0=nl.multiply, op1=nl.subtract)
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Whether the accumulators are read."""
        return former_matters(attrs, ON_SCALAR)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The function, the operators and the reduction exist, in a combination that does."""
        if attrs["op"] != PRELU:
            check_activation(self, attrs["op"], chip)
        used = tuple(_plain(attrs[name]) for name in ("op0", "op1"))
        if used not in COMBINATIONS:
            self.refuse(
                "scalar does not combine these operators",
                limit=self.limits[1],
                got=used,
                chip=chip,
                remedy="apply one of them with tensor_scalar first",
                code="TRN412",
            )
        for name, reverse in zip(used, ("reverse0", "reverse1")):
            if name == "bypass" and attrs[reverse]:
                self.refuse(
                    f"{reverse} without an operator",
                    limit="False",
                    got=True,
                    chip=chip,
                    remedy="leave it out",
                    code="TRN411",
                )
        check_one_of(self, "reduce_op", REDUCTIONS, attrs, chip)
        check_command(self, ON_SCALAR, ops, attrs, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Two operators, the function, the fold of each row."""
        x = as_float(arrays["data"]).reshape(arrays["dst"].shape)

        def scalar(name: str) -> Any:
            return per_partition(arrays.get(name, attrs.get(name)), x.ndim)

        for i in ("0", "1"):
            op = alu_op(attrs["op" + i])
            x = x if op.name == "bypass" else with_scalar(op, x, scalar("imm" + i), attrs["reverse" + i])
        if attrs["op"] == PRELU:
            with np.errstate(all="ignore"):
                values = np.where(x > 0, x, scalar("relu_param") * x).astype(np.float32)
        else:
            values = activation_op(attrs["op"])(x)
        result: dict[str, Array] = {"dst": values}
        if "reduce_res" in arrays or "accumulators" in arrays:
            sums = accumulated(alu_op(attrs["reduce_op"]), values, arrays, attrs, ON_SCALAR)
            write_back(result, sums, arrays)
        return result

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements; m is the function's table set; reading the accumulators is an access more."""
        kind = "activate2_reduce" if "reduce_res" in ops else "activate2"
        table = NO_TABLE if attrs["op"] == PRELU else activation_op(attrs["op"]).table
        return self.streaming(ops, engine, m=table, flops=4, kind=kind)


def _plain(name: Any) -> str:
    return alu_op(name).name if name in ALU or name in ALIASES else str(name)
