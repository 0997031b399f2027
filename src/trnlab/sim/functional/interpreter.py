# SPDX-License-Identifier: Apache-2.0
"""The loop over instructions: one compiled function that runs a routine's plan on absolute addresses.

It returns to Python for an instruction that has no kernel, and to report an error; everything else happens between
two rows of a switch, without the interpreter lock.
"""

from __future__ import annotations

import numpy as np

from trnlab.sim.functional.copying import convert_view, copy_view, may_overlap, transpose_view
from trnlab.sim.functional.finite import EVERYTHING, WRITTEN_AFTER_INFINITY, makes_not_finite, reads_infinity
from trnlab.sim.functional.formats import stream_key
from trnlab.sim.functional.kernels import (
    AFFINE_SELECT,
    COPY,
    COPY_PREDICATED,
    DROPOUT,
    DST,
    FILL,
    FLAG,
    GATHER,
    IOTA,
    MATMUL,
    MEANING,
    MOVE_ROWS,
    NUMBERED_BITS,
    OP0,
    REDUCE,
    SLOTS,
    TRANSPOSE,
    TRANSPOSING_MATMUL,
    A,
    B,
    affine_select,
    copy_predicated,
    dropout,
    fill,
    iota,
    numbered_bits,
    reduce_rows,
    row_index,
    stream,
)
from trnlab.sim.functional.linking import entry, jit
from trnlab.sim.functional.matmul import can_multiply, forget_overlap, matmul, transposing_matmul
from trnlab.sim.functional.native import clock, give_way, load_acquire, store_release
from trnlab.sim.functional.views import ADDR, CODE, NEAREST, PITCH, P, make_view

# What `run` reports: DONE, an instruction for Python, or an error (with numbers in report[1:]).
DONE, TO_PYTHON, BAD_ROW, NOT_FINITE = range(4)
_PATIENCE = 500  # looks at the other thread's progress before the core is offered to somebody else


@jit
def gather(views, walks, scratch, block, key, report):
    """dst[p] = src[index[p]]; False when a row does not exist. The views are left as they were."""
    dst, src, index = views[DST], views[A], views[B]
    rows, table, start, target = dst[P], src[P], src[ADDR], dst[ADDR]
    done = 0
    dst[P] = src[P] = 1
    while done < rows:
        row = row_index(index, done)
        if not 0 <= row < table:
            report[1], report[2], report[3] = done, row, table
            break
        src[ADDR], dst[ADDR] = start + row * src[PITCH], target + done * dst[PITCH]
        move(dst, src, walks, scratch, block, key)
        done += 1
    dst[P], src[P], src[ADDR], dst[ADDR] = rows, table, start, target
    return done == rows


@jit
def move_rows(views, ints, walks, report):
    """dst[p] = src[index[p]], or dst[index[p]] = src[p], bit for bit; rows that do not exist may be left out.

    False, and nothing written, where they may not. The views are left as they were.
    """
    scatters = ints[OP0] != 0
    table, tile = views[DST if scatters else A], views[A if scatters else DST]
    index, rows, count = views[B], tile[P], table[P]
    for p in range(rows if ints[FLAG] == 0 else 0):
        row = row_index(index, p)
        if not 0 <= row < count:
            report[1], report[2], report[3] = p, row, count
            return False
    start, first = table[ADDR], tile[ADDR]
    table[P] = tile[P] = 1
    for p in range(rows):
        row = row_index(index, p)
        if 0 <= row < count:
            table[ADDR], tile[ADDR] = start + row * table[PITCH], first + p * tile[PITCH]
            copy_view(views[DST], views[A], walks)
    table[P], tile[P], table[ADDR], tile[ADDR] = count, rows, start, first
    return True


@jit
def move(dst, src, walks, scratch, block, key):
    """Copy bits within one format, else convert."""
    if dst[CODE] == src[CODE]:
        copy_view(dst, src, walks)
    else:
        convert_view(dst, src, walks, scratch, block, key)


@jit
def execute(kind, views, present, ints, floats, packed, walks, scratch, block, panels, key, report):
    """One instruction; DONE, or why not."""
    if kind == MATMUL:
        if not can_multiply(views[DST], views[A], views[B]):
            return TO_PYTHON
        matmul(views[DST], views[A], views[B], packed, ints[OP0], panels, scratch)
    elif kind == COPY:
        move(views[DST], views[A], walks, scratch, 4 * block, key)
    elif kind == GATHER:
        if not gather(views, walks, scratch, 4 * block, key, report):
            return BAD_ROW
    elif kind == MOVE_ROWS:
        if may_overlap(views[DST], views[A]):
            return TO_PYTHON
        if not move_rows(views, ints, walks, report):
            return BAD_ROW
    elif kind == TRANSPOSING_MATMUL:
        if not transposing_matmul(views[DST], views[A], views[B], packed, panels, scratch, 4 * block, key):
            return TO_PYTHON
    elif kind == TRANSPOSE:
        transpose_view(views[DST], views[A])
    elif kind == FILL:
        fill(views, floats, scratch)
    elif kind == REDUCE:
        reduce_rows(views, ints, scratch, block, key)
    elif kind == IOTA:
        iota(views, ints, scratch, block, key)
    elif kind == AFFINE_SELECT:
        affine_select(views, ints, floats, scratch, block, key)
    elif kind == COPY_PREDICATED:
        copy_predicated(views, present, ints, floats, scratch, block, key)
    elif kind == DROPOUT:
        dropout(views, present, ints, floats, scratch, block, key)
    elif kind == NUMBERED_BITS:
        numbered_bits(views, ints, scratch)
    elif kind != MEANING:
        stream(kind, views, present, ints, floats, scratch, block, key)
    else:
        return TO_PYTHON
    return DONE


@jit
def wait_for(instruction, progress, abort):
    """Until the other thread has done `instruction`; False when it never will."""
    spins = 0
    while load_acquire(progress) < instruction:
        if load_acquire(abort) != 0:
            return False
        spins += 1
        if spins > _PATIENCE:
            give_way()
    return True


@jit
def forget_rewritten(packed, known, writer):
    """Mark packed operands as stale that the other thread has written since."""
    for side in range(2):
        if known[side] != writer[side]:
            packed[side][P] = 0
            known[side] = writer[side]


@entry
def run(
    begin, end, order, kind, form, slots, ints, floats, operands, base, pitch, views, packed, walks, scratch, block,
    panels, seed, check, report, need, writer, mine, other, abort, cycles,
):  # fmt: skip
    """Execute instructions order[begin:end]; returns where it stopped, report[0] says why.

    seed: -1 rounds to nearest even, else instruction i rounds with stream `seed + i`. check: see `finite`; when it
    is left to Python to execute an instruction, report[1] says whether it reads an infinity.
    need, writer: of a `Pace`, when two threads share the work; mine, other, abort: addresses of the threads' progress
    and of the flag that one of them has given up. cycles: of the host, that each instruction took; or empty.
    """
    known = np.full(2, -1, np.int64)
    for at in range(begin, end):
        i = order[at]
        if need.size:
            if not wait_for(need[i], other, abort):
                return end
            forget_rewritten(packed, known, writer[i])
        started = clock() if cycles.size else np.int64(0)
        present, f = slots[i], form[i]
        for slot in range(SLOTS):
            if present[slot] >= 0:
                make_view(views[slot], operands[present[slot]], base, pitch)
        key = np.int64(stream_key(np.uint64(seed + i))) if seed >= 0 else NEAREST
        infinity_read = check == WRITTEN_AFTER_INFINITY
        if check == EVERYTHING:
            infinity_read = reads_infinity(kind[i], views, present, ints[f], floats[f], scratch, report)
            report[1] = infinity_read
        if check <= EVERYTHING:
            report[0] = execute(
                kind[i], views, present, ints[f], floats[f], packed, walks, scratch, block, panels, key, report
            )
        if kind[i] != MATMUL and present[DST] >= 0:
            forget_overlap(packed[0], views[DST])
            forget_overlap(packed[1], views[DST])
        if check and report[0] == DONE and makes_not_finite(kind[i], views, present, infinity_read, scratch, report):
            report[0] = NOT_FINITE
        if report[0] != DONE:
            return at
        if cycles.size:
            cycles[i] = clock() - started
        if need.size:
            store_release(mine, i)
    return end
