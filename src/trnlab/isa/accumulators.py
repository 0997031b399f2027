# SPDX-License-Identifier: Apache-2.0
"""The accumulators of VectorE and of ScalarE: one float32 per lane, in which instructions reduce their rows.

Each engine has one set, shared by all of its instructions that reduce. `reduce_cmd` says what happens to it:

    reset_reduce   start from the operator's identity, then take the row
    load_reduce    start from a value that is given, then take the row (VectorE)
    reduce         go on from what earlier instructions left
    reset          start from the identity and take nothing (ScalarE)
    idle           take nothing: ScalarE keeps what it has, on VectorE it becomes undefined (NaN here)

Afterwards reduce_res, if given, gets the accumulators. They are the operand `accumulators`, a column of the lanes at
work; it may be left out where nothing reads them later, and must be there where they are read.

Sources: nki.isa.activation, activate2, exponential, range_select, select_reduce, tensor_scalar_reduce,
tensor_scalar_cumulative (accumulator behaviour).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.alu import AluOp, reduce
from trnlab.isa.base import FLOAT32, FLOATS, SBUF_ONLY, Array, Arrays, Instruction, Operand, OperandSpec

ACCUMULATORS = OperandSpec(
    "accumulators", "dst", SBUF_ONLY, optional=True, rw=True, shape=("P", "1"), dtypes=FLOAT32, state=True
)
RESULT = OperandSpec("reduce_res", "dst", optional=True, shape=("P", "1"), dtypes=FLOATS)

ON_SCALAR = ("idle", "reset", "reduce", "reset_reduce")
ON_VECTOR = ("idle", "reduce", "reset_reduce", "load_reduce")
IDENTITY = {
    "add": 0.0,
    "subtract": 0.0,
    "multiply": 1.0,
    "max": -np.inf,
    "min": np.inf,
    "abs_max": 0.0,
    "abs_min": np.inf,
}


def former_matters(attrs: Mapping[str, Any], commands: tuple[str, ...]) -> bool:
    """Whether the accumulators are read: to go on from them, or to keep them."""
    return attrs["reduce_cmd"] == "reduce" or (attrs["reduce_cmd"] == "idle" and commands is ON_SCALAR)


def check_command(
    instr: Instruction, commands: tuple[str, ...], ops: Mapping[str, Operand], attrs: Mapping[str, Any], chip: Chip
) -> None:
    """The command exists, and what it reads is there."""
    command = attrs["reduce_cmd"]
    if command not in commands:
        instr.refuse(
            "no such command for the accumulators",
            limit=", ".join(commands),
            got=command,
            chip=chip,
            remedy="use one of these",
            code="TRN411",
        )
    if command == "idle" and "reduce_res" in ops and commands is not ON_SCALAR:
        instr.refuse(
            "an idle instruction leaves nothing in the accumulators to read",
            limit="no reduce_res, or a reduction",
            got="idle",
            chip=chip,
            remedy="use reduce_cmd='reset_reduce'",
            code="TRN411",
        )
    reads = command == "reduce" or (command == "idle" and "reduce_res" in ops)
    if reads and "accumulators" not in ops:
        instr.refuse(
            "the accumulators are read but not there",
            limit="operand accumulators",
            got=None,
            chip=chip,
            remedy="pass the tile that holds the engine's accumulators",
            code="TRN402",
        )
    initial = "reduce_init" in ops or attrs.get("reduce_init") is not None
    if initial != (command == "load_reduce"):
        instr.refuse(
            "a value to start from and load_reduce come together",
            limit="both or neither",
            got=command,
            chip=chip,
            remedy="pass reduce_init with reduce_cmd='load_reduce' only",
            code="TRN411",
        )


def accumulated(
    op: AluOp, results: Array, arrays: Arrays, attrs: Mapping[str, Any], commands: tuple[str, ...]
) -> Array:
    """float32 [P]: the accumulators after an instruction with these results, float32 [P, F...]."""
    command, lanes = attrs["reduce_cmd"], results.shape[0]
    former = arrays["accumulators"].reshape(-1) if "accumulators" in arrays else None
    if command == "idle":
        return former if former is not None and commands is ON_SCALAR else np.full(lanes, np.nan, np.float32)
    if command == "reset":
        return np.full(lanes, IDENTITY[op.name], np.float32)
    row = reduce(op, results.reshape(lanes, -1), (1,))
    if command == "reset_reduce":
        return row
    start = former if command == "reduce" else arrays.get("reduce_init", attrs.get("reduce_init"))
    start = np.broadcast_to(np.asarray(start, np.float32).reshape(-1), (lanes,))
    return np.asarray(op(start, row), np.float32)


def write_back(result: dict[str, Array], values: Array, arrays: Arrays, *, negate: bool = False) -> dict[str, Array]:
    """`result` with the accumulators, and their copy (or its negative) in reduce_res, where these are operands."""
    if "reduce_res" in arrays:
        shown = np.negative(values) if negate else values
        result["reduce_res"] = shown.reshape(arrays["reduce_res"].shape)
    if "accumulators" in arrays:
        result["accumulators"] = values.reshape(arrays["accumulators"].shape)
    return result
