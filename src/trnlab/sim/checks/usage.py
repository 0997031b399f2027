# SPDX-License-Identifier: Apache-2.0
"""What each operand of a routine does with its bytes, as bits for `watch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.isa.base import Engine, Instruction, OperandSpec
from trnlab.isa.meeting import Meeting
from trnlab.program.routine import COL, Routine
from trnlab.sim.checks.watch import (
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
)  # fmt: skip

Array = np.ndarray[Any, Any]

# Instructions that compute with the former contents of their destination; others that are `rw` only keep some of it.
_ADDING = ("nc_matmul", "nc_matmul_mx", "dma_compute")
_PICKED = {  # operands of which an instruction uses only some elements
    "local_gather": ("src_buffer", "index"),
    "nc_n_gather": ("data",),
    "nc_matmul_mx": ("stationary_scale", "moving_scale"),  # four partitions of each 32
    "nc_stream_shuffle": ("src",),
    "nonzero_with_count": ("src", "data"),
    "quantize_mx": ("dst_scale",),
}
_NEITHER = ("core_barrier",)
# Element for element, an operand of one column counting for its row. Others of the engines keep to partitions.
_POINTWISE = frozenset({
    "tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "tensor_copy", "tensor_copy_predicated", "activation",
    "activation_reduce", "activate2", "reciprocal", "select_reduce", "range_select", "affine_select", "dropout",
    "exponential", "tensor_scalar_reduce", "dma_copy", "dma_compute",
    "sendrecv",  # what arrives is taken to be undefined where what is sent is: both cores run one program
})  # fmt: skip
_ACROSS = frozenset(
    {"nc_transpose", "nc_stream_shuffle", "tensor_partition_reduce", "local_gather", "topk", "quantize_mx"}
)


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
        if instr.name in _POINTWISE and not (instr.is_dma and _has(instr, mask, "index")):
            kinds[number] |= POINTWISE
        if not on_pe and not instr.is_dma and instr.name not in _ACROSS:
            kinds[number] |= ROWWISE
        kinds[number] |= _OTHERS.get(instr.name, 0)
        names = {spec.name for role, spec in enumerate(instr.operands) if mask >> role & 1}
        for role, spec in enumerate(instr.operands[:width]):
            table[number, role] = _bits(instr, spec, attrs, names)
    return table[which[owner], roles], kinds[which]


_OTHERS = {"nc_transpose": TURNS, "quantize_mx": OCTETS, "nc_matmul": MULTIPLIES, "nc_matmul_mx": MULTIPLIES}


def _has(instr: Instruction, mask: int, name: str) -> bool:
    """Whether an operand is among those given."""
    return any(spec.name == name and mask >> role & 1 for role, spec in enumerate(instr.operands))


def _bits(instr: Instruction, spec: OperandSpec, attrs: Mapping[str, Any], present: set[str]) -> int:
    if spec.state or instr.name in _NEITHER:
        return 0
    some = SOME if spec.name in _picked(instr, attrs, present) else 0
    if spec.role == "src":
        return READ | some | (MUST if _is_observed(instr, spec) else 0)
    if spec.rw and instr.name in _ADDING and instr.reads_destination(attrs):
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
    picked = {*_PICKED.get(instr.name, ()), *(name[:-6] for name in present if name.endswith("_index"))}
    if "index" in present and instr.is_dma:
        picked |= {"src", "src0"} if attrs.get("indirect", "src") == "src" else {"dst"}
        if attrs.get("oob_mode") == "skip":
            picked.add("dst")
    return picked
