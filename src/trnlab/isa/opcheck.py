# SPDX-License-Identifier: Apache-2.0
"""Checks of operator names, shared by the instructions that take one."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.activations import ACTIVATIONS
from trnlab.isa.alu import ALIASES, ALU, AluOp, alu_op
from trnlab.isa.base import Engine, Instruction, Operand
from trnlab.numerics.dtypes import DType


def check_alu(instr: Instruction, name: str, engine: Engine, chip: Chip) -> AluOp:
    """The operator `name`, which must exist on this engine of this chip."""
    if name not in ALU and name not in ALIASES:
        instr.refuse(
            "unknown operator", limit=", ".join(ALU), got=name, chip=chip, remedy="use one of these", code="TRN412"
        )
    op = alu_op(name)
    if op.feature is not None and op.feature not in chip.features:
        instr.refuse(
            f"operator {op.name} is not of this generation",
            limit=op.feature,
            got=op.name,
            chip=chip,
            remedy="compose it from other operators",
            code="TRN414",
        )
    on_scalar = engine is Engine.SCALAR and chip.has("scalar_alu") and Engine.VECTOR in op.engines and not op.bitvec
    if engine not in op.engines and not on_scalar:
        names = ", ".join(sorted(e.name.lower() for e in op.engines))
        instr.refuse(
            f"operator {op.name} does not exist on {engine.name.lower()}",
            limit=names,
            got=engine.name.lower(),
            chip=chip,
            remedy=f"issue it on {names}",
            code="TRN412",
        )
    return op


def check_reduction(instr: Instruction, name: str, engine: Engine, chip: Chip) -> AluOp:
    """The operator `name`, which must be legal in a reduction."""
    op = check_alu(instr, name, engine, chip)
    if not op.reduces:
        instr.refuse(
            f"operator {op.name} cannot reduce",
            limit=", ".join(o.name for o in ALU.values() if o.reduces),
            got=op.name,
            chip=chip,
            remedy="use one of these",
            code="TRN412",
        )
    return op


def check_arithmetic(instr: Instruction, name: str, engine: Engine, chip: Chip) -> AluOp:
    """The operator `name`, which must not be a bitvec operator."""
    op = check_alu(instr, name, engine, chip)
    if op.bitvec:
        instr.refuse(
            f"operator {op.name} works on bits",
            limit="an arithmetic operator",
            got=op.name,
            chip=chip,
            remedy="use tensor_scalar or tensor_tensor for bits",
            code="TRN412",
        )
    return op


def check_one_of(
    instr: Instruction, attribute: str, allowed: tuple[str, ...], attrs: Mapping[str, Any], chip: Chip
) -> AluOp:
    """The operator that `attribute` names, which must be one of `allowed` (our names)."""
    name = attrs[attribute]
    if (name not in ALU and name not in ALIASES) or alu_op(name).name not in allowed:
        instr.refuse(
            f"{attribute} is not an operator it can be",
            limit=", ".join(allowed),
            got=name,
            chip=chip,
            remedy="use one of these",
            code="TRN412",
        )
    return alu_op(name)


def check_bits(instr: Instruction, ops: Mapping[str, Operand], names: tuple[str, ...], chip: Chip) -> None:
    """Bitvec operators take integers of one format and do not cast."""
    formats = {name: ops[name].dtype for name in names if name in ops}
    if not all(d.is_integer for d in formats.values()) or len(set(formats.values())) > 1:
        instr.refuse(
            "operators on bits take integers of one width",
            limit=" = ".join(formats),
            got={name: d.name for name, d in formats.items()},
            chip=chip,
            remedy="cast with tensor_copy, or reinterpret with AP.cast",
            code="TRN408",
        )


def check_packed(instr: Instruction, ops: Mapping[str, Operand], chip: Chip) -> None:
    """Packed words move as they are: from and to one format."""
    formats = {name: ops[name].dtype.name for name in ("dst", "src")}
    if any(ops[name].dtype.is_packed for name in formats) and len(set(formats.values())) > 1:
        instr.refuse(
            "packed formats do not cast",
            limit="one format",
            got=formats,
            chip=chip,
            remedy="quantize with quantize_mx, or reinterpret with AP.cast",
            code="TRN408",
        )


def check_value(instr: Instruction, value: Any, dtype: DType, chip: Chip) -> None:
    """A number that a tile of format `dtype` can hold: integer formats take whole numbers within their range."""
    if not isinstance(value, Real):
        instr.refuse(
            "the value is not a number",
            limit="a number",
            got=value,
            chip=chip,
            remedy="pass an int or a float",
            code="TRN411",
        )
    if not dtype.is_integer:
        return
    info = np.iinfo(dtype.numpy)
    number = float(value)
    if not info.min <= number <= info.max or not number.is_integer():
        instr.refuse(
            f"the value does not exist in {dtype.name}",
            limit=f"whole numbers {info.min}..{info.max}",
            got=value,
            chip=chip,
            remedy="use a value of the format, or a float tile",
            code="TRN411",
        )


def check_activation(instr: Instruction, name: Any, chip: Chip) -> None:
    """The function `name`, which must exist."""
    if name not in ACTIVATIONS:
        instr.refuse(
            "unknown function",
            limit=", ".join(ACTIVATIONS),
            got=name,
            chip=chip,
            remedy="use one of these",
            code="TRN412",
        )
