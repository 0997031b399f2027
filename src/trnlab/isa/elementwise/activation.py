# SPDX-License-Identifier: Apache-2.0
"""A pointwise function on ScalarE, with a multiply and an add before it and a sum behind it."""

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
from trnlab.isa.activations import activation_op
from trnlab.isa.alu import alu_op
from trnlab.isa.base import (
    ANY_DTYPE,
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
from trnlab.isa.opcheck import check_activation


@register
class Activation(Instruction):
    """dst = op(data * scale + bias), and the sum of each row of results in the accumulators, in float32.

    scale and bias are one value per partition, or numbers; they and the sum cost no throughput. The sum is taken
    before dst is rounded to its format. reduce_cmd says what the accumulators start from, and reduce_res gets what
    they hold in the end, at the price of one access to them.
    """

    name = "activation"
    opcode = 3
    dataflow = Dataflow.POINTWISE
    engines = (Engine.SCALAR,)
    operands = (
        OperandSpec("dst", "dst"),
        RESULT,
        ACCUMULATORS,
        OperandSpec("data", "src"),
        OperandSpec("bias", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=ANY_DTYPE - {"tfloat32"}),
        OperandSpec("scale", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOAT32),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "op": "copy",
        "scale": 1.0,
        "bias": 0.0,
        "reduce_op": "add",
        "reduce_cmd": "reset_reduce",
    }
    indirect = ("dst", "data")
    limits = (
        "op is a name of isa.activations",
        "a bias that is a number other than 0 needs scalar_bias_immediate",
        "reciprocal takes no bias without scalar_bias_immediate",
        "reduce_op is add; reduce_cmd is idle, reset, reduce or reset_reduce (isa.accumulators)",
    )
    cost_kinds: ClassVar[tuple[str, ...]] = ("scalar.activation", "scalar.activation_reduce")
    source = "nki.isa.activation; trainium_inferentia2_arch.rst:421-502"
    example = """
        x, y = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.bfloat16)
        nisa.activation(dst=y, op=nl.exp, data=x, scale=0.125)  # exp(x / 8)
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Whether the accumulators are read."""
        return former_matters(attrs, ON_SCALAR)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The function exists, and its bias and reduction are possible."""
        check_activation(self, attrs["op"], chip)
        bias = attrs.get("bias")
        if "bias" not in ops and bias and not chip.has("scalar_bias_immediate"):
            self.refuse(
                "the bias of this generation is a tile",
                limit="an access pattern [P, 1]",
                got=bias,
                chip=chip,
                remedy="memset a [P, 1] tile with the number and pass it as bias",
                code="TRN414",
            )
        if attrs["op"] == "reciprocal" and ("bias" in ops or bias) and not chip.has("scalar_bias_immediate"):
            self.refuse(
                "reciprocal of this generation takes no bias",
                limit="no bias",
                got="a bias",
                chip=chip,
                remedy="add with tensor_scalar first",
                code="TRN411",
            )
        if attrs["reduce_op"] != "add":
            self.refuse(
                "the accumulators only add",
                limit="add",
                got=attrs["reduce_op"],
                chip=chip,
                remedy="reduce dst with tensor_reduce",
                code="TRN412",
            )
        check_command(self, ON_SCALAR, ops, attrs, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """One float32 multiply and add, the function, the row sums; without a bias a negative zero keeps its sign."""
        x = as_float(arrays["data"])
        scale, bias = (arrays.get(name, attrs.get(name)) for name in ("scale", "bias"))
        with np.errstate(all="ignore"):
            if scale is not None:
                x = x * per_partition(scale, x.ndim)
            if "bias" in arrays or bias:
                x = x + per_partition(bias, x.ndim)
            result = {"dst": activation_op(attrs["op"])(x).reshape(arrays["dst"].shape)}
            if "reduce_res" in arrays or "accumulators" in arrays:
                sums = accumulated(alu_op("add"), result["dst"], arrays, attrs, ON_SCALAR)
                write_back(result, sums, arrays)
        return result

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements; m is the function's table set; a reduction adds a read of the accumulators."""
        kind = "activation_reduce" if "reduce_res" in ops else "activation"
        flops = 4 if "reduce_res" in ops else 3
        return self.streaming(ops, engine, m=activation_op(attrs["op"]).table, flops=flops, kind=kind)
