# SPDX-License-Identifier: Apache-2.0
"""What each operand of a routine does with its bytes, as bits for `scan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.isa.base import Dataflow, Engine, Instruction, OperandSpec
from trnlab.isa.collectives.meeting import Meeting
from trnlab.program.routine import COL, Routine
from trnlab.sim.checks.shadow_memory import (
    ADDS,
    MATMUL,
    MULTIPLIES,
    MUST,
    OCTETS,
    POINTWISE,
    READ,
    ROWWISE,
    SOME,
    TURNS,
    WRITE,
    ZEROES,
)

Array = np.ndarray[Any, Any]

_FLOWS = {
    Dataflow.ANY: 0,
    Dataflow.PARTITION: ROWWISE,
    Dataflow.POINTWISE: POINTWISE | ROWWISE,
    Dataflow.OCTETS: OCTETS,
    Dataflow.TRANSPOSE: TURNS,
    Dataflow.PRODUCT: MULTIPLIES,
}


def usage(routine: Routine) -> tuple[Array, Array]:
    """Bits per operand, and bits per instruction."""
    flags, what = np.zeros(len(routine.operands), np.int64), np.zeros(len(routine), np.int64)
    if not len(routine):
        return flags, what
    counts = np.diff(routine.first_operand)
    owner = np.repeat(np.arange(len(routine)), counts)
    roles = routine.operands[:, COL["role"]]
    present = np.bitwise_or.reduceat(np.append(np.int64(1) << roles, 0), routine.first_operand[:-1])  # sets of roles
    present[counts == 0] = 0
    heads = ((routine.attr.astype(np.int64) << 10 | routine.opcode) << 3 | routine.engine) << 24 | present
    rows, which = np.unique(heads, return_inverse=True)
    width = int(roles.max(initial=0)) + 1
    table = np.zeros((len(rows), width), np.int64)
    kinds = np.zeros(len(rows), np.int64)
    for number, head in enumerate(rows.tolist()):
        mask, engine, opcode, attr = head & 0xFFFFFF, head >> 24 & 7, head >> 27 & 1023, head >> 37
        instr, attrs = isa.BY_OPCODE[opcode], dict(routine.attr_table[attr])
        on_pe = engine == Engine.TENSOR and not instr.is_dma
        kinds[number] = MATMUL if on_pe else 0
        kinds[number] |= _flow(instr, mask) | (ZEROES if zeroes(instr, attrs) else 0)
        names = {spec.name for role, spec in enumerate(instr.operands) if mask >> role & 1}
        for role, spec in enumerate(instr.operands[:width]):
            table[number, role] = _bits(instr, spec, attrs, names)
    return table[which[owner], roles], kinds[which]


def zeroes(instr: Instruction, attrs: Mapping[str, Any]) -> bool:
    """Whether an instruction writes nothing but zeros."""
    return instr.name == "memset" and attrs.get("value") == 0


def _flow(instr: Instruction, mask: int) -> int:
    """Bits of the instruction's dataflow; a transfer's rows are not partitions, and an index may take any of them."""
    bits = _FLOWS[instr.dataflow]
    if instr.is_dma:
        bits &= 0 if _has(instr, mask, "index") else ~ROWWISE
    return bits


def _has(instr: Instruction, mask: int, name: str) -> bool:
    """Whether an operand is among those given."""
    return any(spec.name == name and mask >> role & 1 for role, spec in enumerate(instr.operands))


def _bits(instr: Instruction, spec: OperandSpec, attrs: Mapping[str, Any], present: set[str]) -> int:
    if spec.state or not instr.moves_data:
        return 0
    some = SOME if spec.name in _picked(instr, attrs, present) else 0
    if spec.role == "src":
        return READ | some | (MUST if _is_observed(instr, spec) else 0)
    if spec.rw and instr.accumulates and instr.reads_destination(attrs):
        return READ | WRITE | ADDS | some | MUST
    return WRITE | some


def _is_observed(instr: Instruction, spec: OperandSpec) -> bool:
    """Whether undefined values there matter wherever the result goes: addresses, registers, sums across cores.

    What is only moved to another core may be undefined in parts that nobody uses there.
    """
    to_memory = any(s.role == "dst" and not s.state for s in instr.operands)
    summed = isinstance(instr, Meeting) and not instr.moves_bits
    return not to_memory or "index" in spec.name or spec.name == "indices" or summed


def _picked(instr: Instruction, attrs: Mapping[str, Any], present: set[str]) -> set[str]:
    """Operands of which the elements used are chosen at run time."""
    picked = {*instr.partly_used, *(name[:-6] for name in present if name.endswith("_index"))}
    if "index" in present and instr.is_dma:
        picked |= {"src", "src0"} if attrs.get("indirect", "src") == "src" else {"dst"}
        if attrs.get("oob_mode") == "skip":
            picked.add("dst")
    return picked
