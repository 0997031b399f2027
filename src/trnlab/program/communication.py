# SPDX-License-Identifier: Apache-2.0
"""Calls that are collectives: routines that do nothing but trigger one, on the CC cores.

Such a routine has an instruction for each tensor, all with the same attributes: they are one collective, which starts
when all tensors are there. The trigger is its start; it is done where somebody reads or overwrites a tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab import isa
from trnlab.collectives import Collective
from trnlab.isa.base import Engine
from trnlab.isa.collectives.collective import CollectiveInstruction as Instruction
from trnlab.program.routine import COL, Program, Routine

_REDUCTIONS = {"add": "sum", "min": "min", "max": "max"}
REDUCTIONS = {reduction: op for op, reduction in _REDUCTIONS.items()}  # the instructions' names of reductions


def collective_of(routine: Routine) -> Collective | None:
    """What a routine asks of the ranks; None of one that computes."""
    if "collective" not in routine._memo:
        routine._memo["collective"] = _find(routine)
    found: Collective | None = routine._memo["collective"]
    return found


def buffers_of(routine: Routine) -> list[tuple[int, int]]:
    """Positions, among the parameters of a collective's routine, of what each instruction reads and writes."""
    position = {buffer: i for i, buffer in enumerate(routine.params)}
    found = []
    for i in range(len(routine)):
        rows = routine.operands[int(routine.first_operand[i]) : int(routine.first_operand[i + 1])]
        role = {int(row[COL["role"]]): position[int(row[COL["buffer"]])] for row in rows}
        found.append((role[1], role[0]))  # destinations come first
    return found


def buffer_bytes(routine: Routine) -> int:
    """Bytes of the larger of input and output, of all tensors together."""
    sides = np.array([[routine.buffers[routine.params[at]].nbytes for at in pair] for pair in buffers_of(routine)])
    return int(sides.sum(axis=0).max())


def collective_calls(program: Program) -> list[int]:
    """The numbers of the calls that are collectives."""
    return [i for i, (_, routine) in enumerate(program) if collective_of(routine) is not None]


def _find(routine: Routine) -> Collective | None:
    if not len(routine) or int(routine.engine[0]) != Engine.CC:
        return None
    instr = isa.BY_OPCODE[int(routine.opcode[0])]
    assert isinstance(instr, Instruction)
    attrs: dict[str, Any] = dict(routine.attr_table[int(routine.attr[0])])
    if "pairs" in attrs:
        return Collective(instr.name, pairs=tuple((int(a), int(b)) for a, b in attrs["pairs"]))
    groups = tuple(tuple(int(rank) for rank in group) for group in attrs["groups"])
    if attrs.get("gives"):
        gives, takes = (tuple(int(n) for n in attrs[name]) for name in ("gives", "takes"))
        return Collective(instr.name, groups, gives=gives, takes=takes, position=int(attrs["position"]))
    return Collective(instr.name, groups, _REDUCTIONS[attrs.get("op", "add")])
