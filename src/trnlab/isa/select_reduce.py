# SPDX-License-Identifier: Apache-2.0
"""Selection between a tile and a value by a predicate, with an optional maximum of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    ANY_DTYPE,
    FLOAT32,
    FLOATS,
    INT32,
    Array,
    Arrays,
    Engine,
    Instruction,
    Operand,
    OperandSpec,
    Work,
    as_float,
    per_partition,
)

PREDICATES = frozenset({"uint8", "int8", "uint16", "int16", "bool"})


@register
class SelectReduce(Instruction):
    """dst = on_true where predicate is not zero, on_false elsewhere; reduce_res = the largest result of each row.

    on_false is a number or one value per partition. reverse_pred selects on_true where the predicate is zero. In
    float32.
    """

    name = "select_reduce"
    opcode = 13
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst"),
        OperandSpec("reduce_res", "dst", optional=True, shape=("P", "1"), dtypes=FLOATS),
        OperandSpec("predicate", "src", dtypes=PREDICATES),
        OperandSpec("on_true", "src", dtypes=ANY_DTYPE - INT32 - {"tfloat32"}),
        OperandSpec("on_false", "src", immediate=True, shape=("P", "1"), dtypes=FLOAT32),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"reverse_pred": False, "reduce_op": "max"}
    not_both_psum = ("predicate", "on_true")
    limits = ("reduce_op is max",)
    source = "nki.isa.select_reduce"

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Only a maximum can be taken."""
        if attrs["reduce_op"] not in ("max", "maximum"):
            self.refuse(
                "the reduction is a maximum", limit="max", got=attrs["reduce_op"], chip=chip,
                remedy="reduce dst with tensor_reduce", code="TRN412",
            )  # fmt: skip

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Selection, then the row maximum of the float32 results."""
        shape = arrays["dst"].shape
        taken = (arrays["predicate"].reshape(shape) != 0) != bool(attrs["reverse_pred"])
        on_true = as_float(arrays["on_true"]).reshape(shape)
        on_false = per_partition(arrays.get("on_false", attrs.get("on_false")), len(shape))
        result = {"dst": np.where(taken, on_true, on_false)}
        if "reduce_res" in arrays:
            rows = result["dst"].reshape(shape[0], -1).max(axis=1)
            result["reduce_res"] = rows.reshape(arrays["reduce_res"].shape)
        return result

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements."""
        return self.streaming(ops, engine, flops=1 + ("reduce_res" in ops))
