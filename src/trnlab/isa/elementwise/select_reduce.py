# SPDX-License-Identifier: Apache-2.0
"""Selection between a tile and a value by a predicate, with an optional maximum of each row."""

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
from trnlab.isa.alu import alu_op
from trnlab.isa.base import (
    ANY_DTYPE,
    INT32,
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

PREDICATES = frozenset({"uint8", "int8", "uint16", "int16", "bool"})
COMMANDS = tuple(command for command in ON_VECTOR if command != "load_reduce")


@register
class SelectReduce(Instruction):
    """dst = on_true where predicate is not zero, on_false elsewhere; the largest of each row in the accumulators.

    on_false is a number or one value per partition. reverse_pred selects on_true where the predicate is zero. In
    float32. reduce_cmd says what the accumulators start from, and reduce_res gets what they hold in the end.
    """

    name = "select_reduce"
    opcode = 13
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst"),
        RESULT,
        ACCUMULATORS,
        OperandSpec("predicate", "src", dtypes=PREDICATES),
        OperandSpec("on_true", "src", dtypes=ANY_DTYPE - INT32 - {"tfloat32"}),
        OperandSpec("on_false", "src", immediate=True, shape=("P", "1")),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"reverse_pred": False, "reduce_op": "max", "reduce_cmd": "reset_reduce"}
    not_both_psum = ("predicate", "on_true")
    limits = ("reduce_op is max; reduce_cmd is idle, reduce or reset_reduce (isa.accumulators)",)
    source = "nki.isa.select_reduce"
    example = """
        keep, x = nl.ones((128, 512), nl.uint8), nl.ones((128, 512), nl.float32)
        y = nl.ndarray((128, 512), nl.float32)
        nisa.select_reduce(dst=y, predicate=keep, on_true=x, on_false=-1e30)
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Whether the accumulators are read."""
        return former_matters(attrs, COMMANDS)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Only a maximum can be taken."""
        if attrs["reduce_op"] not in ("max", "maximum"):
            self.refuse(
                "the reduction is a maximum",
                limit="max",
                got=attrs["reduce_op"],
                chip=chip,
                remedy="reduce dst with tensor_reduce",
                code="TRN412",
            )
        check_command(self, COMMANDS, ops, attrs, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Selection, then the row maximum of the float32 results."""
        shape = arrays["dst"].shape
        taken = (arrays["predicate"].reshape(shape) != 0) != bool(attrs["reverse_pred"])
        on_true = as_float(arrays["on_true"]).reshape(shape)
        on_false = per_partition(arrays.get("on_false", attrs.get("on_false")), len(shape))
        result = {"dst": np.where(taken, on_true, on_false)}
        if "reduce_res" in arrays or "accumulators" in arrays:
            write_back(result, accumulated(alu_op("max"), result["dst"], arrays, attrs, COMMANDS), arrays)
        return result

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements."""
        return self.streaming(ops, engine, flops=1 + ("reduce_res" in ops))
