# SPDX-License-Identifier: Apache-2.0
"""Slots: the pieces of memory that dependencies between instructions are tracked on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from trnlab.chips.spec import Psum
from trnlab.isa.base import Memory
from trnlab.program.access import Buffer
from trnlab.program.grids import boxes_of, slots_of
from trnlab.program.operand_loops import HBM, PSUM, slots_of_bytes
from trnlab.program.routine import COL

Ints = np.ndarray[Any, np.dtype[np.int64]]
AS_ACCESSED = 0  # `Buffer.slot_bytes` of a tile that is cut where its accesses begin and end
_MOST_PIECES = 16  # of a tile that an access touches on average; tiles of which it would be more are cut less often
_FIRST, _LAST = COL["first"], COL["last"]
_KINDS = {Memory.HBM: HBM, Memory.PSUM: PSUM}


class Slots(NamedTuple):
    """How many slots a routine has; per buffer its first HBM slot (-1 on chip); where the SBUF slots begin, in bytes
    of a partition, and where the last one ends.
    """

    total: int
    hbm: tuple[int, ...]
    sbuf_cuts: Ints


def distinct(values: Ints) -> Ints:
    """The values in ascending order, each once: `np.unique`, which is slow where hardly any value occurs twice."""
    ordered = np.sort(values)
    found: Ints = ordered[np.concatenate([np.ones(min(len(ordered), 1), np.bool_), ordered[1:] != ordered[:-1]])]
    return found


def assign_slots(buffers: Sequence[Buffer], operands: Ints, psum: Psum) -> Slots:
    """Turn the byte ranges of `operands` (columns first, last) into slot ranges, in place."""
    slots = slots_with(buffers, _sbuf_cuts(buffers, operands), psum)
    put_in_slots(buffers, operands, psum, slots)
    return slots


def slots_with(buffers: Sequence[Buffer], cuts: Ints, psum: Psum) -> Slots:
    """The slots of a routine whose SBUF is cut at `cuts`."""
    top = psum.num_banks + len(cuts)
    hbm_slot = []
    for buffer in buffers:
        hbm_slot.append(top if buffer.memory is Memory.HBM else -1)
        top += buffer.hbm_slots if buffer.memory is Memory.HBM else 0
    return Slots(top, tuple(hbm_slot), cuts)


def put_in_slots(buffers: Sequence[Buffer], operands: Ints, psum: Psum, slots: Slots) -> None:
    """Turn the byte ranges of `operands` (columns first, last) into ranges of these slots, in place."""
    if not len(operands):
        return
    in_grid = _in_grids(buffers, operands, slots.hbm)
    lie = [(_KINDS.get(b.memory, -1), b.address, max(b.slot_bytes, 1), base) for b, base in zip(buffers, slots.hbm)]
    bank, table = int(psum.bank_bytes_per_partition), np.array(lie, np.int64)
    slots_of_bytes(operands, table, np.array(slots.sbuf_cuts, np.int64), bank, int(psum.num_banks), _FIRST)
    for chosen, first, last in in_grid:
        operands[chosen, _FIRST], operands[chosen, _LAST] = first, last


def _in_grids(buffers: Sequence[Buffer], operands: Ints, hbm_slot: Sequence[int]) -> list[tuple[Ints, Ints, Ints]]:
    """Operands in memory that is cut into a grid, with their first and last slot."""
    found, owner = [], operands[:, COL["buffer"]]
    for buffer in buffers:
        if buffer.grid is not None:
            chosen = np.flatnonzero(owner == buffer.id)
            first, last = slots_of(buffer.grid, boxes_of(operands[chosen], buffer.grid.pitch))
            found.append((chosen, first + hbm_slot[buffer.id], last + hbm_slot[buffer.id]))
    return found


def _sbuf_cuts(buffers: Sequence[Buffer], operands: Ints) -> Ints:
    """Byte addresses at which some SBUF tile, or a tracked piece of one, begins or ends."""
    cuts = {0}
    for b in buffers:
        if b.memory is Memory.SBUF:
            cuts.update(range(b.address, b.address + b.nbytes, b.slot_bytes or b.nbytes))
            cuts.add(b.address + b.nbytes)
    return distinct(np.concatenate([np.array(sorted(cuts), np.int64), _access_cuts(buffers, operands)]))


def _access_cuts(buffers: Sequence[Buffer], operands: Ints) -> Ints:
    """Byte addresses at which accesses to tiles that are cut `AS_ACCESSED` begin or end.

    A tile that is written in many pieces and often read as a whole keeps every second, fourth... of its cuts only, so
    that there are never more than a few slots for each operand.
    """
    wanted = np.array([b.memory is Memory.SBUF and b.slot_bytes == AS_ACCESSED for b in buffers], np.bool_)
    owner = operands[:, COL["buffer"]]
    mine = wanted[owner] if len(operands) else np.zeros(0, np.bool_)
    if not mine.any():
        return np.empty(0, np.int64)
    owner, count = owner[mine], len(buffers)
    room = int(max(b.nbytes for b in buffers)) + 1
    low, high = owner * room + operands[mine, _FIRST], owner * room + operands[mine, _LAST] + 1
    cuts = distinct(np.concatenate([low, high]))
    of = cuts // room
    uses = np.bincount(owner, minlength=count)
    touched = np.bincount(owner, np.searchsorted(cuts, high) - np.searchsorted(cuts, low), count)
    excess = touched / np.maximum(uses, 1) / _MOST_PIECES
    thinning = np.exp2(np.ceil(np.log2(np.maximum(excess, 1)))).astype(np.int64)
    within = np.arange(len(cuts)) - np.searchsorted(of, of)  # number of a cut in its tile
    kept = cuts[within % thinning[of] == 0]
    address = np.array([b.address for b in buffers], np.int64)
    found: Ints = address[kept // room] + kept % room
    return found
