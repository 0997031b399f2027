# SPDX-License-Identifier: Apache-2.0
"""exp(x - maximum) on VectorE with the sum of each row: the heart of a softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.accumulators import (
    ACCUMULATORS,
    ON_VECTOR,
    accumulated,
    check_command,
    former_matters,
    write_back,
)
from trnlab.isa.activations import activation_op
from trnlab.isa.alu import alu_op
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
)
from trnlab.isa.base import per_partition as column

_SHARED = frozenset(
    {"float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "int8", "int16", "int32", "uint8", "uint16"}
)
SUMS = frozenset({"float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32"})


@register
class Exponential(Instruction):
    """dst = exp(src - max_value), and the sum of each row of results in the accumulators, in float32.

    max_value is a number or one value per partition. reduce_cmd says what the accumulators start from, reduce_init
    the value of load_reduce, and reduce_res gets what they hold in the end. The default reduces from zero; `idle`
    reduces nothing and leaves the accumulators undefined.
    """

    name = "exponential"
    opcode = 34
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR,)
    feature = "vector_exponential"
    operands = (
        OperandSpec("dst", "dst", dtypes=_SHARED | {"tfloat32"}),
        OperandSpec("reduce_res", "dst", optional=True, shape=("P", "1"), dtypes=SUMS),
        ACCUMULATORS,
        OperandSpec("src", "src", dtypes=_SHARED | {"uint32"}),
        OperandSpec("max_value", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOAT32),
        OperandSpec("reduce_init", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOAT32),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"max_value": 0.0, "reduce_cmd": "reset_reduce", "reduce_init": None}
    indirect = ("dst", "src")
    limits = (
        "reduce_cmd is idle, reduce, reset_reduce or load_reduce, the last with reduce_init (isa.accumulators)",
    )
    source = "nki.isa.exponential; trainium3_arch.rst:179 (four times the rate of ScalarE)"
    example = """
        x, largest = nl.ones((128, 512), nl.float32), nl.ones((128, 1), nl.float32)
        y = nl.ndarray((128, 512), nl.bfloat16)
        nisa.exponential(dst=y, src=x, max_value=largest)  # exp(x - largest)
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Whether the accumulators are read."""
        return former_matters(attrs, ON_VECTOR)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The command has what it reads."""
        check_command(self, ON_VECTOR, ops, attrs, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """A float32 difference, its exponential, the row sums."""
        x = as_float(arrays["src"]).reshape(arrays["dst"].shape)
        with np.errstate(all="ignore"):
            values = activation_op("exp")(x - column(arrays.get("max_value", attrs.get("max_value")), x.ndim))
        sums = accumulated(alu_op("add"), values, arrays, attrs, ON_VECTOR)
        return write_back({"dst": values}, sums, arrays)

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements."""
        return self.streaming(ops, engine, flops=3)
