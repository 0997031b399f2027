# SPDX-License-Identifier: Apache-2.0
"""Operands as the interpreter sees them: a row of int64 with the absolute address and the merged access pattern.

A view is a tile [P, F]. `load_block` brings `rows` of its rows into dense float32 scratch [rows, F]; `store_block`
is the reverse.
"""

from __future__ import annotations

import numpy as np

from trnlab.numerics import dtypes
from trnlab.program.routine import COL
from trnlab.sim.functional.formats import F32, load_run, store_run
from trnlab.sim.functional.linking import jit

# Columns of a view. PITCH: bytes between rows. NDIMS: free dimensions after merging; DIMS: (step, count) four
# times, in elements, outermost first. LOW, HIGH: bytes that a row touches, relative to its address.
ADDR, CODE, ITEM, PITCH, P, F, NDIMS, DIMS = range(8)
LOW, HIGH, ON_CHIP = 16, 17, 18
VIEW = 19

# Arguments that are often constant, typed: Numba would compile a function again for each literal.
FIRST_ROW, ONE_ROW, NEAREST = np.int64(0), np.int64(1), np.int64(0)

_BUFFER, _DTYPE, _START, _PARTITIONS = (COL[c] for c in ("buffer", "dtype", "start_partition", "partitions"))
_STEP, _OFFSET, _DIMS, _IS_HBM = (COL[c] for c in ("partition_step", "offset", "step0", "is_hbm"))
_ITEMSIZE = tuple(dtypes.BY_CODE[code].itemsize for code in range(len(dtypes.BY_CODE)))


@jit
def make_view(view, record, base, pitch):
    """Fill `view` from an operand record. base, pitch: absolute address and bytes between partitions, per buffer."""
    owner = record[_BUFFER]
    item = _ITEMSIZE[record[_DTYPE]]
    step = record[_STEP] if record[_IS_HBM] else pitch[owner]
    view[ADDR] = base[owner] + record[_START] * step + record[_OFFSET]
    view[CODE], view[ITEM], view[PITCH], view[P] = record[_DTYPE], item, step, record[_PARTITIONS]
    view[ON_CHIP] = 0 if record[_IS_HBM] else 1
    low = high = 0
    free, dims, slot = 1, 0, 3
    for d in range(3, -1, -1):
        stride, count = record[_DIMS + 2 * d], record[_DIMS + 2 * d + 1]
        if count == 1:
            continue
        free *= count
        low += min(stride * (count - 1), 0)
        high += max(stride * (count - 1), 0)
        if dims and stride == view[DIMS + 2 * slot] * view[DIMS + 2 * slot + 1]:
            view[DIMS + 2 * slot + 1] *= count
            continue
        slot = 3 - dims
        view[DIMS + 2 * slot], view[DIMS + 2 * slot + 1] = stride, count
        dims += 1
    for d in range(4 - max(dims, 1)):
        view[DIMS + 2 * d], view[DIMS + 2 * d + 1] = 0, 1
    if dims == 0:
        view[DIMS + 6], view[DIMS + 7] = 1, 1
    view[F], view[NDIMS] = free, max(dims, 1)
    view[LOW], view[HIGH] = low * item, (high + 1) * item


@jit
def is_dense(view):
    """Whether each row is one run of adjacent elements."""
    return view[NDIMS] == 1 and view[DIMS + 6] == 1


@jit
def load_block(view, row, rows, out):
    """Rows [row, row + rows) as float32 into dense scratch."""
    start, pitch, free = view[ADDR] + row * view[PITCH], view[PITCH], view[F]
    code, item, inner, step = view[CODE], view[ITEM], view[DIMS + 7], view[DIMS + 6]
    if free == 1:
        load_run(start, code, pitch // item, rows, out)
        return
    for r in range(rows):
        for i in range(view[DIMS + 1]):
            for j in range(view[DIMS + 3]):
                for k in range(view[DIMS + 5]):
                    skip = i * view[DIMS] + j * view[DIMS + 2] + k * view[DIMS + 4]
                    load_run(start + r * pitch + skip * item, code, step, inner, out)
                    out += inner * 4


@jit
def store_block(view, row, rows, source, key):
    """Dense float32 scratch into rows [row, row + rows), rounded to the view's format."""
    start, pitch, free = view[ADDR] + row * view[PITCH], view[PITCH], view[F]
    code, item, inner, step = view[CODE], view[ITEM], view[DIMS + 7], view[DIMS + 6]
    first = row * free
    if free == 1:
        store_run(start, code, pitch // item, rows, source, key, first)
        return
    for r in range(rows):
        for i in range(view[DIMS + 1]):
            for j in range(view[DIMS + 3]):
                for k in range(view[DIMS + 5]):
                    skip = i * view[DIMS] + j * view[DIMS + 2] + k * view[DIMS + 4]
                    store_run(start + r * pitch + skip * item, code, step, inner, source, key, first)
                    source += inner * 4
                    first += inner


@jit
def fetch(view, row, rows, scratch):
    """Address of the rows as dense float32: where they are, if they are that already, else in scratch."""
    if rows == 1 and view[CODE] == F32 and is_dense(view):
        return view[ADDR] + row * view[PITCH]
    load_block(view, row, rows, scratch)
    return scratch


@jit
def may_write_directly(target, source):
    """Whether results may go straight to memory: dense float32 rows that do not partly overlap the source's."""
    if target[CODE] != F32 or not is_dense(target):
        return False
    if target[ADDR] == source[ADDR] and is_dense(source) and source[ITEM] == 4:
        return True
    first, second = target[ADDR] + target[LOW], source[ADDR] + source[LOW]
    return first + target[HIGH] - target[LOW] <= second or second + source[HIGH] - source[LOW] <= first
