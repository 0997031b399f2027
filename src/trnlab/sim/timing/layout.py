# SPDX-License-Identifier: Apache-2.0
"""What the columns and rows of the timing simulator's arrays are, for whoever makes them and for its loops."""

from __future__ import annotations

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Array = np.ndarray[Any, Any]

ENGINES, LANES, RINGS = 6, 16, 5 * 16
GAPS = 16  # a power of two
HELD = 16  # intervals of a port that are remembered; a power of two
DMA, NOBODY = 5, 7
NEVER = -(1 << 60)
TENSOR, VECTOR, SCALAR, CC = 0, 1, 2, 5

# An operand in one number: its first slot, how many more there are, and what is done to them.
MORE_SHIFT, READ_SHIFT = 32, 60
MORE_MASK, SLOT_MASK = (1 << 28) - 1, (1 << 32) - 1
READ, WRITE, FILL = 1, 2, 4  # FILL: beside WRITE, of one that does not wait for others of the same call

# Columns of a cost row, see `plan`. RING to SPACING and WAKE to TURN are those of DMA. SLOW: BUSY
# while the PE array runs at half rate. WAKE: more than a semaphore after the operands. TURN: from the last
# byte of a transfer that went the other way to the first of this one, on a lane.
(
    ENGINE,
    BUSY,
    LATENCY,
    EXPOSED,
    TABLE,
    PORTS,
    PARTS,
    ISSUE_GAP,
    RING,
    SHARE,
    FIRST_LANE,
    NUM_LANES,
    STAGGER,
    SPACING,
    SLOW,
    WAKE,
    WAY,
    TURN,
) = range(18)
ROW = 18
LOAD, STORE = 1, 2  # of WAY: out of HBM, into HBM; 0: neither, or both
SBUF_PORT, PSUM_PORT, PSUM_BANK = 1, 2, 4  # bits of PORTS; PSUM_BANK: only with whoever uses the same bank
BANKS = 8
PORTS_COUNT = 2 + BANKS
PARTS_OF_ARRAY = 16  # 4 x 4 parts of 32 rows and 32 columns

# Parameters of a run, in picoseconds unless they say otherwise.
(
    SEMAPHORE,
    INTERVAL,
    COMPLETION,
    TABLE_LOAD,
    WINDOW,
    FULL_ABOVE,
    HALF_LATENCY,
    ARBITRATION,
    BEGAN,
    MOST_WAKE,
) = range(10)
PARAMETERS = 10
ENDS, HOLDER = np.uint64(1), np.uint64(2)  # of an interval of a port, behind its start
READY_FIRST, PROGRAM_ORDER, NO_CONTENTION = range(3)  # of ARBITRATION
TABLES, WEIGHTS = range(2)  # of `Clocks.unit`

WHOLE = 1 << 16  # of a lane, in rows of `cut`
FREE, LAST = range(2)  # of `Clocks.engine`
WENT = 2  # of `Clocks.lane`, beside FREE and LAST: the way of the last transfer
WINDOW_END, WORKED, HALF_RATE = range(3)  # of `Clocks.window`
# Of a slot: the last write, and the last reads by two different classes (engines and DMA), the later one first. Each
# is a time and who did it: eight times the index of the instruction plus the class.
WROTE, WRITER, READ_AT, READER, READ_BEFORE, READER_BEFORE = range(6)
SLOT = 8
# The same, and how long a row is, unsigned: as an index such a number is not asked whether it counts from the end.
SLOT_ROW, OF_WRITER, OF_READ, OF_READER = (np.uint64(n) for n in (SLOT, WRITER, READ_AT, READER))
OF_READ_BEFORE, OF_READER_BEFORE = np.uint64(READ_BEFORE), np.uint64(READER_BEFORE)

# Why an instruction did not start earlier.
START, ISSUE, RAW, WAR, WAW, PORT, PEER, PART = range(8)
