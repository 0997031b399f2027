# SPDX-License-Identifier: Apache-2.0
"""A finished routine as a recording again, so that passes can change it: the way back from `Builder.build`.

b = lifted(routine, chip)           # the same instructions, checked anew; tiles where they were
draft = Draft(b, on_chip(b))        # every tile may be placed anew
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine, Memory
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.program.passes.draft import LEFT_OPEN, Draft
from trnlab.program.routine import OPEN_ENGINE, OPEN_ORDER, OPEN_PLACE, Routine
from trnlab.program.text import operands_of


def lifted(routine: Routine, chip: Chip) -> Builder:
    """A builder that has recorded what the routine executes. Raises ValueError for one that prints, which no pass
    may change, and ConstraintError for an instruction that the chip refuses."""
    if routine.prints:
        raise ValueError(f"{routine.name} prints")
    b = Builder(routine.name, chip)
    for buffer in routine.buffers:
        b.place(replace(buffer, grid=None))
    b.leaves_places = bool(len(routine.left_open) and (routine.left_open & OPEN_PLACE).all())
    for i in range(len(routine)):
        instr = isa.BY_OPCODE[int(routine.opcode[i])]
        b.location = routine.locs[int(routine.loc[i])]
        queue = int(routine.queue[i])
        b.append(instr, Engine(int(routine.engine[i])), None if queue < 0 else queue, _arguments(routine, i, instr))
    for earlier, later in routine.after:
        b.after(earlier, later)
    if len(routine.left_open):
        draft = Draft(b, ())
        draft.rows[:, LEFT_OPEN] = routine.left_open & (OPEN_ENGINE | OPEN_ORDER)
        draft.commit()
    return b


def on_chip(b: Builder) -> frozenset[int]:
    """The buffers of a builder that are tiles."""
    return frozenset(x.id for x in b.buffers if x.memory is not Memory.HBM)


def _arguments(routine: Routine, i: int, instr: isa.Instruction) -> dict[str, Any]:
    """What instruction i was given. Where an index picks from an operand it may reach to the end of its buffer: how
    far it does is not written down."""
    found: dict[str, Any] = dict(routine.attr_table[int(routine.attr[i])])
    given = operands_of(routine, i)
    picked = {instr.operands[role].index_of for role, _ in given} - {""}
    for role, ap in given:
        name = instr.operands[role].name
        found[name] = replace(ap, reach=_rest(ap)) if name in picked else ap
    return found


def _rest(ap: AP) -> int:
    """Elements from the offset to the end of the buffer."""
    return max((ap.buffer.nbytes - ap.offset) // ap.dtype.itemsize, 0)


def same_instructions(one: Routine, other: Routine) -> bool:
    """Whether two routines execute the same, wherever their tiles lie."""
    columns = ("opcode", "engine", "queue", "first_operand")
    return len(one) == len(other) and all(np.array_equal(getattr(one, c), getattr(other, c)) for c in columns)
