# SPDX-License-Identifier: Apache-2.0
"""Slots: the pieces of memory that dependencies between instructions are tracked on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnlab.chips.spec import Psum
from trnlab.isa.base import Memory
from trnlab.program.access import Buffer
from trnlab.program.routine import COL


def assign_slots(
    buffers: Sequence[Buffer], operands: np.ndarray[Any, np.dtype[np.int64]], psum: Psum
) -> tuple[int, tuple[int, ...]]:
    """Turn the byte ranges of `operands` (columns first, last) into slot ranges, in place.

    Returns the number of slots and, per buffer, its first HBM slot (-1 on chip).
    """
    cuts = sbuf_cuts(buffers)
    top = psum.num_banks + len(cuts)
    hbm_slot = []
    for buffer in buffers:
        hbm_slot.append(top if buffer.memory is Memory.HBM else -1)
        top += -(-buffer.nbytes // buffer.slot_bytes) if buffer.memory is Memory.HBM else 0
    if len(operands):
        memory = np.array([b.memory for b in buffers])
        address = np.array([b.address for b in buffers], np.int64)
        slot_bytes = np.array([b.slot_bytes for b in buffers], np.int64)
        base = np.array(hbm_slot, np.int64)
        owner = operands[:, COL["buffer"]]
        for column in (COL["first"], COL["last"]):
            byte = operands[:, column]
            absolute = byte + address[owner]
            slot = np.where(memory[owner] == Memory.HBM, base[owner] + byte // slot_bytes[owner], 0)
            slot = np.where(memory[owner] == Memory.PSUM, absolute // psum.bank_bytes_per_partition, slot)
            in_sbuf = memory[owner] == Memory.SBUF
            if in_sbuf.any():
                interval = np.searchsorted(cuts, absolute, side="right") - 1 + psum.num_banks
                slot = np.where(in_sbuf, interval, slot)
            operands[:, column] = slot
    return top, tuple(hbm_slot)


def sbuf_cuts(buffers: Sequence[Buffer]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Byte addresses at which some SBUF tile, or a tracked piece of one, begins or ends."""
    cuts = {0}
    for b in buffers:
        if b.memory is Memory.SBUF:
            cuts.update(range(b.address, b.address + b.nbytes, b.slot_bytes))
            cuts.add(b.address + b.nbytes)
    return np.array(sorted(cuts), np.int64)
