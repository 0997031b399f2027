# SPDX-License-Identifier: Apache-2.0
"""Reduction along the free dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.alu import alu_op, reduce
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work
from trnlab.isa.opcheck import check_bits, check_reduction

CHEAP = frozenset({"add", "max"})


@register
class TensorReduce(Instruction):
    """dst [P, outer...] = op over the last `axes` free dimensions of data [P, outer..., reduced...].

    Arithmetic folds in float32 in an order that is not specified; negate changes the sign of the result.
    """

    name = "tensor_reduce"
    opcode = 9
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (OperandSpec("dst", "dst", shape=("P", "O")), OperandSpec("data", "src"))
    attrs: ClassVar[Mapping[str, Any]] = {"op": "add", "axes": 1, "negate": False}
    indirect = ("dst", "data")
    limits = (
        "op is a reduction of isa.alu; bitvec operators take integers of one format and no negate",
        "axes is between one and the number of free dimensions of data",
        "O is the product of the dimensions that remain",
    )
    source = "nki.isa.tensor_reduce"
    example = """
        x, largest = nl.ones((128, 512), nl.float32), nl.ndarray((128, 1), nl.float32)
        nisa.tensor_reduce(dst=largest, op=nl.maximum, data=x, axis=1)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The operator can reduce, and what is left fits dst."""
        op = check_reduction(self, attrs["op"], engine, chip)
        if op.bitvec:
            check_bits(self, ops, ("dst", "data"), chip)
        if op.bitvec and attrs["negate"]:
            self.refuse(
                "bits have no sign", limit="negate=False", got=True, chip=chip, remedy="leave it out", code="TRN411"
            )
        axes, dims = attrs["axes"], ops["data"].dims
        if not 1 <= axes <= len(dims):
            self.refuse(
                "no such dimensions to reduce",
                limit=f"1..{len(dims)} trailing free dimensions",
                got=axes,
                chip=chip,
                remedy="split the free dimension of data, or reduce fewer",
                code="TRN411",
            )
        left = prod(count for _, count in dims[: len(dims) - axes])
        if ops["dst"].free != left:
            self.refuse(
                "dst does not hold what is left",
                limit=f"{left} elements per partition",
                got=ops["dst"].free,
                chip=chip,
                remedy="give dst the dimensions of data that are not reduced",
                code="TRN409",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The fold over the trailing dimensions."""
        data = arrays["data"]
        result = reduce(alu_op(attrs["op"]), data, tuple(range(data.ndim - attrs["axes"], data.ndim)))
        if attrs["negate"]:
            result = np.negative(result)
        return {"dst": result.reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements of data; m = 1 for the operators that bfloat16 does at twice the rate."""
        return self.streaming(ops, engine, m=int(alu_op(attrs["op"]).name in CHEAP), flops=1)
