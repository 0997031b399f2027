# SPDX-License-Identifier: Apache-2.0
"""Finds the instruction that makes a NaN or an infinity: `RunOptions.check_nan`.

A NaN is reported where it is first written, by whatever instruction. An infinity is reported where it is made from
finite numbers: masks hold infinities on purpose, and what reads one may write one.
"""

from __future__ import annotations

import numpy as np

from trnlab.loops.kinds import i64
from trnlab.sim.functional.arguments import address, columns, numbers, operands
from trnlab.sim.functional.kernels import (
    COPY_PREDICATED,
    DST,
    FILL,
    FLOATS,
    GATHER,
    MATMUL,
    MOVE_ROWS,
    OP0,
    RES,
    SLOTS,
    A,
)
from trnlab.sim.functional.linking import exported, jit
from trnlab.sim.functional.native import load_u32
from trnlab.sim.functional.views import CODE, ONE_ROW, F, P, load_block

# What `run` is asked to check. WRITTEN: only what the instruction at `begin`, which Python has executed, has written;
# WRITTEN_AFTER_INFINITY: the same, and it has read an infinity.
NOTHING, EVERYTHING, WRITTEN, WRITTEN_AFTER_INFINITY = range(4)
FINITE, INFINITE, NAN = range(3)
_EXPONENT, _FRACTION = np.uint32(0x7F800000), np.uint32(0x007FFFFF)


@jit
def worst_of(view, scratch, report):
    """FINITE, or whether the tile holds a NaN or else an infinity; report[1:3] tells the first place of that."""
    worst = FINITE
    for p in range(view[P]):
        load_block(view, p, ONE_ROW, scratch)
        for i in range(view[F]):
            bits = load_u32(scratch, i)
            if bits & _EXPONENT == _EXPONENT:
                found = NAN if bits & _FRACTION else INFINITE
                if found > worst:
                    worst, report[1], report[2] = found, p, i
                if found == NAN:
                    return worst
    return worst


@jit
def reads_infinity(kind, views, present, ints, floats, scratch, report):
    """Whether an instruction, not executed yet, takes an infinity from an operand or as a number of its own."""
    for i in range(FLOATS):
        if abs(floats[i]) == np.inf:
            return True
    if kind in (GATHER, MOVE_ROWS) and views[DST][CODE] == views[A][CODE]:
        return True  # it moves bits, out of a table that may be large
    keeps = kind == COPY_PREDICATED or (kind == MATMUL and ints[OP0] != 0)  # some of what is in the destination
    for slot in range(SLOTS):
        read = slot not in (DST, RES) or (slot == DST and keeps)
        if read and present[slot] >= 0 and worst_of(views[slot], scratch, report) == INFINITE:
            return True
    return False


@jit
def makes_not_finite(kind, views, present, infinity_read, scratch, report):
    """Whether an instruction wrote a NaN, or made an infinity; report[1:4] tells the first place, and which."""
    if kind == FILL:  # a memset writes what it was told to
        return False
    for slot in (DST, RES):
        if present[slot] >= 0:
            found = worst_of(views[slot], scratch, report)
            if found == NAN or (found == INFINITE and not infinity_read):
                report[3] = found
                return True
    return False


@exported(i64(i64, i64, i64, i64, i64, i64, i64))
def infinity_loop(kind, views, present, ints, floats, scratch, report):
    """As `reads_infinity`: compiled only where somebody asks for the check."""
    read = reads_infinity(
        kind, operands(views), columns(present), columns(ints), numbers(floats), scratch, columns(report)
    )
    return 1 if read else 0


@exported(i64(i64, i64, i64, i64, i64, i64))
def not_finite_loop(kind, views, present, infinity_read, scratch, report):
    """As `makes_not_finite`."""
    made = makes_not_finite(kind, operands(views), columns(present), infinity_read != 0, scratch, columns(report))
    return 1 if made else 0


@jit
def finds_infinity(kind, views, present, ints, floats, scratch, report):
    """`reads_infinity` through its symbol."""
    tiles, slots = address(views), address(present)
    return infinity_loop(kind, tiles, slots, address(ints), address(floats), scratch, address(report)) != 0


@jit
def finds_not_finite(kind, views, present, infinity_read, scratch, report):
    """`makes_not_finite` through its symbol."""
    tiles, slots, read = address(views), address(present), 1 if infinity_read else 0
    return not_finite_loop(kind, tiles, slots, read, scratch, address(report)) != 0
