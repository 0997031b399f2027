# SPDX-License-Identifier: Apache-2.0
"""Loops over the operands of a routine: one pass over rows of `routine.OPERAND_COLUMNS` each."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.loops import compiled

Ints = np.ndarray[Any, np.dtype[np.int64]]
HBM, PSUM = 0, 1  # how a buffer's bytes are cut into slots, see `slots_of_bytes`; neither: by where SBUF is cut


@compiled
def fill_records(references: Ints, table: Ints, row: Ints, records: Ints) -> None:
    """Records of operands [N, 18] from references [N, 5]: role, pattern, buffer, start_partition, offset.

    table: a record for each pattern, as if at offset 0; row: which one, by the pattern's number.
    """
    for i in range(len(references)):
        form = row[references[i, 1]]
        for column in range(records.shape[1]):
            records[i, column] = table[form, column]
        records[i, 0], records[i, 1] = references[i, 0], references[i, 2]
        records[i, 3], records[i, 6] = references[i, 3], references[i, 4]
        records[i, 15] += references[i, 4]
        records[i, 16] += references[i, 4]


@compiled
def slots_of_bytes(operands: Ints, buffers: Ints, cuts: Ints, bank_bytes: int, banks: int, first: int) -> None:
    """Turn the bytes in columns `first` and the next one of each record into slots, in place.

    buffers: for each the kind of its memory (HBM, PSUM, another number for SBUF), its address, the bytes of its slots
    and, in HBM, its first slot. cuts: bytes of SBUF at which slots begin, in order; they come after those of PSUM.
    """
    for i in range(len(operands)):
        owner = operands[i, 1]
        kind, address = buffers[owner, 0], buffers[owner, 1]
        for column in range(first, first + 2):
            byte = operands[i, column]
            if kind == HBM:
                operands[i, column] = buffers[owner, 3] + byte // buffers[owner, 2]
            elif kind == PSUM:
                operands[i, column] = (address + byte) // bank_bytes
            else:
                low, high = 0, len(cuts)
                while low < high:  # the number of cuts up to there
                    middle = (low + high) // 2
                    if cuts[middle] <= address + byte:
                        low = middle + 1
                    else:
                        high = middle
                operands[i, column] = low - 1 + banks
