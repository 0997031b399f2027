# SPDX-License-Identifier: Apache-2.0
"""Routines made of others: with tiles elsewhere in SBUF, with other names, two as one, in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import BY_OPCODE
from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import Buffer
from trnlab.program.grids import with_grids, written
from trnlab.program.routine import COL, Routine
from trnlab.program.slots import assign_slots

_STEPS = [COL[f"step{d}"] for d in range(4)]
_COUNTS = [COL[f"count{d}"] for d in range(4)]
_COLUMNS = ("opcode", "engine", "queue", "work", "attr", "loc")
_TABLES = {"works": "work", "attr_table": "attr", "locs": "loc"}  # and the columns that count their rows
Array = np.ndarray[Any, Any]
Records = np.ndarray[Any, np.dtype[np.int64]]


def moved(routine: Routine, addresses: Mapping[int, int], chip: Chip) -> Routine:
    """The routine with some buffers (by number) at other bytes of their partitions."""
    buffers = tuple(b.at(addresses.get(b.id, b.address)) for b in routine.buffers)
    operands = _bytes_of(routine.operands)
    slots = assign_slots(buffers, operands, chip.psum)
    top = max((b.address + b.nbytes for b in buffers if b.memory is Memory.SBUF), default=0)
    return replace(
        routine,
        buffers=buffers,
        operands=operands,
        sbuf_bytes=top,
        num_slots=slots.total + len(routine.after),
        hbm_slot=slots.hbm,
        sbuf_cuts=slots.sbuf_cuts,
        _memo={},
    )


def renamed(routine: Routine, names: Sequence[str]) -> Routine:
    """The routine with parameters of these names, and with the same plans."""
    buffers = list(routine.buffers)
    for index, name in zip(routine.params, names, strict=True):
        buffers[index] = replace(buffers[index], name=name)
    return routine if tuple(buffers) == routine.buffers else replace(routine, buffers=tuple(buffers))


def own_bytes(routine: Routine) -> int:
    """Bytes of each partition that a routine's own tiles take, without what stays in SBUF between calls."""
    tiles = (b for b in routine.buffers if b.memory is Memory.SBUF and b.kind != "resident")
    return max((b.address + b.nbytes for b in tiles), default=0)


def joined(first: Routine, second: Routine, chip: Chip, base: int = 0, bank: int = 0) -> Routine:
    """The first routine and then the second, whose tiles lie from byte `base` of a partition and from PSUM's bank
    `bank` on; what stays in SBUF between calls, and has its address, lies where it is. Its parameters come last."""
    start, scratch = len(first.buffers), first.scratch_bytes
    places = {Memory.SBUF: base, Memory.PSUM: bank * int(chip.psum.bank_bytes_per_partition), Memory.HBM: scratch}
    buffers = (*first.buffers, *(_moved(b, start, places[b.memory]) for b in second.buffers))
    operands = np.concatenate([_bytes_of(first.operands), _bytes_of(second.operands)])
    operands[len(first.operands) :, COL["buffer"]] += start
    columns: dict[str, Any] = {n: np.concatenate([getattr(first, n), getattr(second, n)]) for n in _COLUMNS}
    for table, column in _TABLES.items():
        columns[column][len(first) :] += len(getattr(first, table))
        columns[table] = getattr(first, table) + getattr(second, table)
    ends = second.first_operand[1:] + first.first_operand[-1]
    columns |= {"first_operand": np.concatenate([first.first_operand, ends]), "operands": operands}
    buffers = tuple(with_grids([replace(b, grid=None) for b in buffers], operands, written(columns)))
    slots = assign_slots(buffers, operands, chip.psum)
    after = (*first.after, *((a + len(first), b + len(first)) for a, b in second.after))
    return replace(
        first,
        **columns,
        name=f"{first.name}; {second.name}",
        buffers=buffers,
        params=(*first.params, *(p + start for p in second.params)),
        sbuf_bytes=max(first.sbuf_bytes, base + second.sbuf_bytes),
        scratch_bytes=scratch + second.scratch_bytes,
        after=after,
        num_slots=slots.total + len(after),
        hbm_slot=slots.hbm,
        sbuf_cuts=slots.sbuf_cuts,
        _memo={},
    )


def _moved(b: Buffer, start: int, begin: int) -> Buffer:
    """A buffer of a second routine, behind `start` others and, in its memory, `begin` bytes."""
    return replace(b, id=b.id + start, address=b.address + (0 if b.kind in ("param", "resident") else begin))


def in_order(routine: Routine, order: Sequence[int] | Array) -> Routine:
    """The routine with its instructions in another order, `order` their numbers."""
    order = np.asarray(order, np.int64)
    counts = np.diff(routine.first_operand)[order].astype(np.int64)
    ends = np.cumsum(counts)
    begins = routine.first_operand[:-1][order].astype(np.int64)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return replace(
        routine,
        **{name: getattr(routine, name)[order] for name in _COLUMNS},
        first_operand=np.concatenate([[0], ends]).astype(np.int32),
        operands=routine.operands[np.arange(int(counts.sum())) + np.repeat(begins - (ends - counts), counts)],
        after=tuple((int(place[a]), int(place[b])) for a, b in routine.after),
        _memo={},
    )


def ends_in(routine: Routine) -> tuple[int, int]:
    """Bytes of a partition that the last instruction which names some reads or writes."""
    sbuf = np.array([b.memory is Memory.SBUF for b in routine.buffers], np.bool_)
    last = np.flatnonzero(sbuf[routine.operands[:, COL["buffer"]]])[-1]
    buffer = routine.buffers[int(routine.operands[last, COL["buffer"]])]
    return buffer.address, buffer.address + buffer.nbytes


def keeps_registers(routine: Routine) -> bool:
    """Whether an instruction leaves something in registers of its engine for later ones, which must not meet those of
    another routine."""
    opcode = np.repeat(routine.opcode, np.diff(routine.first_operand)).astype(np.int64)
    pairs = np.unique(opcode << 8 | routine.operands[:, COL["role"]])
    return any(BY_OPCODE[int(pair) >> 8].operands[int(pair) & 255].state for pair in pairs)


def _bytes_of(operands: Records) -> Records:
    """Operand records whose columns first and last are bytes of the buffer again, as they were recorded."""
    found = operands.copy()
    sizes = np.array([BY_CODE[code].itemsize if code in BY_CODE else 1 for code in range(max(BY_CODE) + 1)], np.int64)
    itemsize = sizes[operands[:, COL["dtype"]]]
    spans = operands[:, _STEPS] * (operands[:, _COUNTS] - 1)
    low, high = np.minimum(spans, 0).sum(axis=1), np.maximum(spans, 0).sum(axis=1)
    rows = operands[:, COL["partition_step"]] * (operands[:, COL["partitions"]] - 1) * operands[:, COL["is_hbm"]]
    found[:, COL["first"]] = operands[:, COL["offset"]] + low * itemsize
    found[:, COL["last"]] = operands[:, COL["offset"]] + (high + 1) * itemsize - 1 + rows
    return found
