# SPDX-License-Identifier: Apache-2.0
"""A routine for another program: the same instructions, with resident tiles elsewhere in SBUF and slots of their own,
or with other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.routine import COL, Routine
from trnlab.program.slots import assign_slots

_STEPS = [COL[f"step{d}"] for d in range(4)]
_COUNTS = [COL[f"count{d}"] for d in range(4)]
Records = np.ndarray[Any, np.dtype[np.int64]]


def moved(routine: Routine, addresses: Mapping[int, int], chip: Chip) -> Routine:
    """The routine with some buffers (by number) at other bytes of their partitions."""
    buffers = tuple(b.at(addresses.get(b.id, b.address)) for b in routine.buffers)
    operands = bytes_of(routine.operands)
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


def bytes_of(operands: Records) -> Records:
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
