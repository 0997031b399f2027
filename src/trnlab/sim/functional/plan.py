# SPDX-License-Identifier: Apache-2.0
"""From a routine's columns to what the interpreter switches on; made once per routine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.isa.base import Engine, Memory
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import MAX_FREE_DIMS, Buffer
from trnlab.program.routine import COL, Routine
from trnlab.sim.functional import kernels as k
from trnlab.sim.functional.forms import SLOTS, BoundKernel, OperandUsage, form_of

Array = np.ndarray[Any, Any]
NOWHERE, SBUF, PSUM, SCRATCH = range(4)  # where a buffer is
_MEMO, _HOMES = "sim.functional", "sim.functional.homes"
_COUNTS = [COL[f"count{d}"] for d in range(MAX_FREE_DIMS)]


@dataclass(frozen=True)
class DispatchTable:
    """One row per instruction: its kernel, its form (a row of `ints` and `floats`), operands' rows by slot, or -1."""

    kind: Array
    form: Array
    slots: Array  # [instructions, kernels.SLOTS]
    ints: Array
    floats: Array
    order: Array  # program order
    longest: int  # elements per partition of the longest operand


@dataclass(frozen=True)
class Homes:
    """Where the buffers of a routine are. home: NOWHERE (a parameter), SBUF, PSUM or SCRATCH."""

    home: Array
    lane: Array  # its first partition
    offset: Array  # its address there


def plan_of(routine: Routine) -> DispatchTable:
    """The routine's plan, made at its first call."""
    plan = routine._memo.get(_MEMO)
    if plan is None:
        plan = routine._memo[_MEMO] = _make(routine)
    assert isinstance(plan, DispatchTable)
    return plan


def _make(routine: Routine) -> DispatchTable:
    slots = _slots(routine)
    first, form = _distinct(_usages(routine, slots))
    forms = [_form(routine, slots, int(i)) for i in first]
    ints = np.zeros((len(forms), k.INTS), np.int64)
    floats = np.zeros((len(forms), k.FLOATS), np.float32)
    for row, one in enumerate(forms):
        ints[row, : len(one.ints)] = one.ints
        floats[row, : len(one.floats)] = one.floats
    lengths = routine.operands[:, _COUNTS].prod(axis=1)
    return DispatchTable(
        kind=np.array([one.kind for one in forms], np.int64)[form],
        form=form,
        slots=slots,
        ints=ints,
        floats=floats,
        order=np.arange(len(routine), dtype=np.int64),
        longest=int(lengths.max(initial=1)),
    )


def homes_of(routine: Routine) -> Homes:
    """Where the routine's buffers are, looked up at its first call."""
    homes = routine._memo.get(_HOMES)
    if homes is None:
        homes = routine._memo[_HOMES] = Homes(
            home=np.array([_home(b) for b in routine.buffers], np.int64),
            lane=np.array([b.first_partition for b in routine.buffers], np.int64),
            offset=np.array([b.address for b in routine.buffers], np.int64),
        )
    assert isinstance(homes, Homes)
    return homes


def _home(buffer: Buffer) -> int:
    if buffer.memory is Memory.HBM:
        return SCRATCH if buffer.kind == "scratch" else NOWHERE
    return SBUF if buffer.memory is Memory.SBUF else PSUM


def _slots(routine: Routine) -> Array:
    """Row of `routine.operands` for each instruction and slot."""
    slots = np.full((len(routine), k.SLOTS), -1, np.int64)
    if not len(routine.operands):
        return slots
    table = np.full((max(isa.BY_OPCODE) + 1, max(len(i.operands) for i in isa.BY_OPCODE.values())), -1, np.int64)
    for opcode, instr in isa.BY_OPCODE.items():
        known = {"dst": k.DST, **SLOTS.get(instr.name, {})}
        table[opcode, : len(instr.operands)] = [known.get(spec.name, -1) for spec in instr.operands]
    owner = np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))
    slot = table[routine.opcode[owner], routine.operands[:, COL["role"]]]
    placed = slot >= 0
    slots[owner[placed], slot[placed]] = np.flatnonzero(placed)
    return slots


def _usages(routine: Routine, slots: Array) -> Array:
    """Columns that together decide an instruction's form."""
    count = len(routine)
    formats = np.full((count, k.SLOTS), -1, np.int64)
    counts = np.zeros((count, MAX_FREE_DIMS), np.int64)
    if len(routine.operands):
        formats = np.where(slots >= 0, routine.operands[slots, COL["dtype"]], -1)
        reduces = (routine.opcode == isa.REGISTRY["tensor_reduce"].opcode) & (slots[:, k.A] >= 0)
        counts[reduces] = routine.operands[slots[reduces, k.A]][:, _COUNTS]
    unplaced = np.diff(routine.first_operand) - (slots >= 0).sum(axis=1)
    head = np.stack([routine.opcode, routine.attr, routine.engine, unplaced], axis=1).astype(np.int64)
    return np.concatenate([head, formats, counts], axis=1)


def _distinct(rows: Array) -> tuple[Array, Array]:
    """For each distinct row the index of its first occurrence, and for each row which of these it equals."""
    seen: dict[bytes, int] = {}
    first: list[int] = []
    which = np.zeros(len(rows), np.int64)
    for i, row in enumerate(rows):
        key = row.tobytes()
        at = seen.setdefault(key, len(seen))
        if at == len(first):
            first.append(i)
        which[i] = at
    return np.array(first, np.int64), which


def _form(routine: Routine, slots: Array, i: int) -> BoundKernel:
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    formats = {s: BY_CODE[int(routine.operands[row, COL["dtype"]])] for s, row in enumerate(slots[i]) if row >= 0}
    counts: tuple[int, ...] = ()
    if k.A in formats:
        counts = tuple(int(n) for n in routine.operands[slots[i, k.A], _COUNTS])
    complete = len(formats) == int(routine.first_operand[i + 1] - routine.first_operand[i])
    attrs, engine = dict(routine.attr_table[int(routine.attr[i])]), Engine(int(routine.engine[i]))
    usage = OperandUsage(attrs, formats, counts, engine, complete)
    return form_of(instr.name, usage)
