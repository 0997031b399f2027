# SPDX-License-Identifier: Apache-2.0
"""Reduction across partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import SBUF_ONLY, Array, Arrays, Engine, Instruction, Operand, OperandSpec, Work, as_float
from trnlab.isa.opcheck import check_bits

OPERATORS = ("add", "average", "max", "bitwise_or", "bitwise_and")


@register
class TensorPartitionReduce(Instruction):
    """dst [1, F] = op over the partitions of data [P, F].

    Arithmetic folds in float32, in an order that is not specified; the average is the sum over P.
    """

    name = "tensor_partition_reduce"
    opcode = 20
    engines = (Engine.GPSIMD,)
    operands = (OperandSpec("dst", "dst", SBUF_ONLY, shape=("1", "F")), OperandSpec("data", "src", SBUF_ONLY))
    attrs: ClassVar[Mapping[str, Any]] = {"op": "add"}
    limits = ("op is add, average, max (or maximum), bitwise_or or bitwise_and, these two on integers of one format",)
    source = "nki.isa.tensor_partition_reduce"
    example = """
        x, total = nl.ones((128, 512), nl.float32), nl.ndarray((1, 512), nl.float32)
        nisa.tensor_partition_reduce(dst=total, op=nl.add, data=x)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The operator is one of five."""
        if _plain(attrs["op"]) not in OPERATORS:
            self.refuse(
                "an operator that cannot reduce across partitions",
                limit=", ".join(OPERATORS),
                got=attrs["op"],
                chip=chip,
                remedy="transpose and use tensor_reduce",
                code="TRN412",
            )
        if _plain(attrs["op"]).startswith("bitwise"):
            check_bits(self, ops, ("dst", "data"), chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The fold over the first dimension."""
        data, op = arrays["data"], _plain(attrs["op"])
        with np.errstate(all="ignore"):
            if op == "bitwise_or":
                result = np.bitwise_or.reduce(data, axis=0)
            elif op == "bitwise_and":
                result = np.bitwise_and.reduce(data, axis=0)
            elif op == "max":
                result = as_float(data).max(axis=0)
            else:
                result = as_float(data).sum(axis=0, dtype=np.float32)
                result = result / np.float32(data.shape[0] if op == "average" else 1)
        return {"dst": np.asarray(result).reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements of data on each partition."""
        return self.streaming(ops, engine, flops=1)


def _plain(op: str) -> str:
    return "max" if op == "maximum" else op
