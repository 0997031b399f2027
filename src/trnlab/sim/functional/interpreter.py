# SPDX-License-Identifier: Apache-2.0
"""The loop over instructions: one compiled function that runs a routine's plan on absolute addresses.

It returns to Python for an instruction that has no kernel, and to report an error; everything else happens between
two rows of a switch, without the interpreter lock.
"""

from __future__ import annotations

import numpy as np

from trnlab.sim.functional.copying import transpose_view
from trnlab.sim.functional.finite import EVERYTHING, WRITTEN_AFTER_INFINITY, finds_infinity, finds_not_finite
from trnlab.sim.functional.formats import stream_key
from trnlab.sim.functional.kernels import (
    COPY,
    COPY_PREDICATED,
    DST,
    FILL,
    GATHER,
    MATMUL,
    MEANING,
    OP0,
    REDUCE,
    SLOTS,
    TRANSPOSE,
    A,
    B,
    copy_predicated,
    fill,
    reduce_rows,
    stream,
)
from trnlab.sim.functional.linking import entry, jit
from trnlab.sim.functional.matmul import can_multiply, forget_overlap, matmul
from trnlab.sim.functional.native import clock, give_way, load_acquire, store_release
from trnlab.sim.functional.occasional import BAD_ROW, DONE, TO_PYTHON, move, occasional
from trnlab.sim.functional.views import NEAREST, P, make_view

__all__ = ["BAD_ROW", "DONE", "NOT_FINITE", "TO_PYTHON", "run"]

NOT_FINITE = 3  # reported beside how an instruction ended: what it wrote is not finite, and `run` was asked to check
_PATIENCE = 500  # looks at the other thread's progress before the core is offered to somebody else


@jit
def execute(kind, views, present, ints, floats, packed, walks, scratch, block, panels, key, report):
    """One instruction; DONE, or why not."""
    if kind == MATMUL:
        if not can_multiply(views[DST], views[A], views[B]):
            return TO_PYTHON
        matmul(views[DST], views[A], views[B], packed, ints[OP0], panels, scratch)
    elif kind == COPY:
        move(views[DST], views[A], walks, scratch, 4 * block, key)
    elif kind == TRANSPOSE:
        transpose_view(views[DST], views[A])
    elif kind == FILL:
        fill(views, floats, scratch)
    elif kind == REDUCE:
        reduce_rows(views, ints, scratch, block, key)
    elif kind == COPY_PREDICATED:
        copy_predicated(views, present, ints, floats, scratch, block, key)
    elif kind == MEANING:
        return TO_PYTHON
    elif kind >= GATHER:
        return occasional(kind, views, present, ints, floats, packed, walks, scratch, block, panels, key, report)
    else:
        stream(kind, views, present, ints, floats, scratch, block, key)
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
def forget_rewritten(kept, known, writer):
    """Mark a packed operand as stale if the other thread has written it since; returns who wrote it last."""
    if known != writer:
        kept[P] = 0
    return writer


@entry
def run(
    begin,
    end,
    order,
    kind,
    form,
    slots,
    ints,
    floats,
    operands,
    base,
    pitch,
    views,
    packed,
    walks,
    scratch,
    block,
    panels,
    seed,
    check,
    report,
    need,
    writer,
    mine,
    other,
    abort,
    cycles,
):
    """Execute instructions order[begin:end]; returns where it stopped, report[0] says why.

    seed: -1 rounds to nearest even, else instruction i rounds with stream `seed + i`. check: see `finite`; when it
    is left to Python to execute an instruction, report[1] says whether it reads an infinity.
    need, writer: of a `Pace`, when two threads share the work; mine, other, abort: addresses of the threads' progress
    and of the flag that one of them has given up. cycles: of the host, that each instruction took; or empty.
    """
    first = second = np.int64(-1)
    for at in range(begin, end):
        i = order[at]
        if need.size:
            if not wait_for(need[i], other, abort):
                return end
            first = forget_rewritten(packed[0], first, writer[i, 0])
            second = forget_rewritten(packed[1], second, writer[i, 1])
        started = clock() if cycles.size else np.int64(0)
        present, f = slots[i], form[i]
        for slot in range(SLOTS):
            if present[slot] >= 0:
                make_view(views[slot], operands[present[slot]], base, pitch)
        key = np.int64(stream_key(np.uint64(seed + i))) if seed >= 0 else NEAREST
        infinity_read = check == WRITTEN_AFTER_INFINITY
        if check == EVERYTHING:
            infinity_read = finds_infinity(kind[i], views, present, ints[f], floats[f], scratch, report)
            report[1] = infinity_read
        if check <= EVERYTHING:
            report[0] = execute(
                kind[i], views, present, ints[f], floats[f], packed, walks, scratch, block, panels, key, report
            )
        if kind[i] != MATMUL and present[DST] >= 0:
            forget_overlap(packed[0], views[DST])
            forget_overlap(packed[1], views[DST])
        if check and report[0] == DONE and finds_not_finite(kind[i], views, present, infinity_read, scratch, report):
            report[0] = NOT_FINITE
        if report[0] != DONE:
            return at
        if cycles.size:
            cycles[i] = clock() - started
        if need.size:
            store_release(mine, i)
    return end
