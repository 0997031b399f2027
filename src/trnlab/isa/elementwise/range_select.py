# SPDX-License-Identifier: Apache-2.0
"""Selection of the elements whose index lies in a range that differs from row to row."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
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
    FLOAT32,
    FLOATS,
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
from trnlab.isa.opcheck import check_one_of

COMPARISONS = ("is_equal", "is_gt", "is_ge", "is_lt", "is_le")
COMMANDS = tuple(command for command in ON_VECTOR if command != "load_reduce")
SMALLEST = float(np.finfo(np.float32).min)
EXACT_INDEX = 1 << 24  # float32 counts no further


@register
class RangeSelect(Instruction):
    """dst = on_true_tile where (i comp_op0 bound0) and (i comp_op1 bound1), the smallest float32 elsewhere.

    i = range_start + the place of the element in its row, as a float32; each bound is one float32 per partition. The
    largest of each row of results goes to the accumulators, and from there to reduce_res. In a format of 16 or 8 bits
    the fill is minus infinity: keep reduce_res in float32 then, so that no infinity is taken from another.
    """

    name = "range_select"
    opcode = 41
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR,)
    feature = "range_select"
    operands = (
        OperandSpec("dst", "dst", dtypes=FLOATS),
        RESULT,
        ACCUMULATORS,
        OperandSpec("on_true_tile", "src", dtypes=FLOATS),
        OperandSpec("bound0", "src", shape=("P", "1"), dtypes=FLOAT32),
        OperandSpec("bound1", "src", shape=("P", "1"), dtypes=FLOAT32),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "comp_op0": "is_ge",
        "comp_op1": "is_lt",
        "range_start": 0,
        "on_false_value": SMALLEST,
        "reduce_op": "max",
        "reduce_cmd": "reset_reduce",
    }
    limits = (
        "comp_op0 and comp_op1 are is_equal, is_gt, is_ge, is_lt or is_le",
        "range_start is whole, and no index leaves -2**24..2**24",
        "on_false_value is the smallest float32; reduce_op is max",
        "reduce_cmd is idle, reduce or reset_reduce (isa.accumulators)",
    )
    source = "nki.isa.range_select"
    example = """
        x, y = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32)
        largest = nl.ndarray((128, 1), nl.float32)
        low, high = nl.zeros((128, 1), nl.float32), nl.full((128, 1), 256.0, nl.float32)
        nisa.range_select(dst=y, on_true_tile=x, comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=low, bound1=high,
                          reduce_res=largest, reduce_op=nl.maximum)  # columns low to high, the rest very negative
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Whether the accumulators are read."""
        return former_matters(attrs, COMMANDS)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Comparisons, indices and fill are what the hardware can do."""
        for name in ("comp_op0", "comp_op1"):
            check_one_of(self, name, COMPARISONS, attrs, chip)
        check_one_of(self, "reduce_op", ("max",), attrs, chip)
        start = attrs["range_start"]
        whole = isinstance(start, Real) and float(start).is_integer()
        if not whole or start < -EXACT_INDEX or start + ops["dst"].free > EXACT_INDEX:
            self.refuse(
                "indices are float32",
                limit=f"whole numbers within {EXACT_INDEX}",
                got=start,
                chip=chip,
                remedy="shift the bounds instead",
                code="TRN411",
            )
        if np.float32(attrs["on_false_value"]) != np.float32(SMALLEST):
            self.refuse(
                "the fill is fixed",
                limit=SMALLEST,
                got=attrs["on_false_value"],
                chip=chip,
                remedy="leave on_false_value out, or use select_reduce",
                code="TRN411",
            )
        check_command(self, COMMANDS, ops, attrs, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Two comparisons of the index, the choice, the row maximum."""
        lanes = arrays["dst"].shape[0]
        data = as_float(arrays["on_true_tile"]).reshape(lanes, -1)
        index = np.float32(attrs["range_start"]) + np.arange(data.shape[1], dtype=np.float32)
        index = np.broadcast_to(index, data.shape)
        taken = np.ones(data.shape, bool)
        for comparison, bound in (("comp_op0", "bound0"), ("comp_op1", "bound1")):
            taken &= alu_op(attrs[comparison])(index, arrays[bound].reshape(lanes, 1)) != 0
        result = np.where(taken, data, np.float32(SMALLEST))
        largest = accumulated(alu_op("max"), result, arrays, attrs, COMMANDS)
        return write_back({"dst": result.reshape(arrays["dst"].shape)}, largest, arrays)

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements."""
        return self.streaming(ops, engine, flops=3)
