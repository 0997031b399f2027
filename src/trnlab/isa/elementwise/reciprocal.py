# SPDX-License-Identifier: Apache-2.0
"""One over each element, on VectorE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work, as_float


@register
class Reciprocal(Instruction):
    """dst = 1 / data in float32: slower and more precise than the same function of `activation`."""

    name = "reciprocal"
    opcode = 10
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR,)
    operands = (OperandSpec("dst", "dst"), OperandSpec("data", "src"))
    source = "nki.isa.reciprocal"
    example = """
        x, y = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32)
        nisa.reciprocal(dst=y, data=x)
    """

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The correctly rounded quotient; an infinity of the same sign for zero."""
        with np.errstate(all="ignore"):
            return {"dst": (np.float32(1) / as_float(arrays["data"])).reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements."""
        return self.streaming(ops, engine, flops=1)
