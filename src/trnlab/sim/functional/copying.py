# SPDX-License-Identifier: Apache-2.0
"""Movement of elements between two views, in row-major order of (partition, free dimensions); and transposes."""

from __future__ import annotations

from trnlab.loops.kinds import i64, void
from trnlab.sim.functional.formats import load_run, store_run
from trnlab.sim.functional.linking import exported, jit
from trnlab.sim.functional.native import (
    SIDE,
    copy_bytes,
    read_u8,
    read_u16,
    read_u32,
    transpose_u16,
    transpose_u32,
    write_u8,
    write_u16,
    write_u32,
)
from trnlab.sim.functional.views import ADDR, CODE, DIMS, HIGH, ITEM, LOW, PITCH, F, P, is_dense

DIMENSIONS = 5  # a view's partition and its four free dimensions
COUNT, STEP, TURN = range(3)  # columns of a walk: elements, bytes between them, current index
WALK = 3


@jit
def start_walk(view, walk):
    """Fill walk [5, 3], innermost dimension first, merged where elements follow each other; all at index 0."""
    used = 0
    for d in range(4, -1, -1):
        count = view[P] if d == 0 else view[DIMS + 2 * d - 1]
        step = view[PITCH] if d == 0 else view[DIMS + 2 * d - 2] * view[ITEM]
        if count == 1:
            continue
        if used and step == walk[used - 1, STEP] * walk[used - 1, COUNT]:
            walk[used - 1, COUNT] *= count
            continue
        walk[used, COUNT], walk[used, STEP], walk[used, TURN] = count, step, 0
        used += 1
    for d in range(used, DIMENSIONS):
        walk[d, COUNT], walk[d, STEP], walk[d, TURN] = 1, view[ITEM], 0


@jit
def is_one_run(view, walk):
    """Whether the elements of a view follow each other; walk: scratch [5, 3]."""
    start_walk(view, walk)
    return walk[0, COUNT] == view[P] * view[F] and walk[0, STEP] == view[ITEM]


@jit
def advance(walk, address, n):
    """The address `n` elements further on; n divides the innermost count."""
    walk[0, TURN] += n
    address += n * walk[0, STEP]
    d = 0
    while walk[d, TURN] == walk[d, COUNT] and d < DIMENSIONS - 1:
        walk[d, TURN] = 0
        address -= walk[d, COUNT] * walk[d, STEP]
        d += 1
        walk[d, TURN] += 1
        address += walk[d, STEP]
    return address


@jit
def common_divisor(a, b):
    """Greatest common divisor."""
    while b:
        a, b = b, a % b
    return a


@exported(void(i64, i64, i64, i64, i64, i64))
def copy_run(target, target_step, source, source_step, n, item):
    """n elements of `item` bytes, bit for bit; steps in bytes."""
    if target_step == item and source_step == item:
        copy_bytes(target, source, n * item)
    elif item == 4:
        a, b = target_step >> 2, source_step >> 2
        for i in range(n):
            write_u32(target, i * a, read_u32(source, i * b))
    elif item == 2:
        a, b = target_step >> 1, source_step >> 1
        for i in range(n):
            write_u16(target, i * a, read_u16(source, i * b))
    else:
        for i in range(n):
            write_u8(target, i * target_step, read_u8(source, i * source_step))


@jit
def copy_view(target, source, walks):
    """All elements of source into target, of one format; walks: scratch [2, 5, 3]."""
    to, fro = walks[0], walks[1]
    start_walk(target, to)
    start_walk(source, fro)
    run = common_divisor(to[0, COUNT], fro[0, COUNT])
    a, b, item = target[ADDR], source[ADDR], target[ITEM]
    for _ in range(target[P] * target[F] // run):
        copy_run(a, to[0, STEP], b, fro[0, STEP], run, item)
        a, b = advance(to, a, run), advance(fro, b, run)


@jit
def may_overlap(a, b):
    """Whether two views may share bytes; views on chip only have to lie in the same partitions or columns."""
    first, second = a[ADDR] + a[LOW], b[ADDR] + b[LOW]
    long, other = (a[P] - 1) * abs(a[PITCH]) + a[HIGH] - a[LOW], (b[P] - 1) * abs(b[PITCH]) + b[HIGH] - b[LOW]
    return first < second + other and second < first + long


@jit
def convert_view(target, source, walks, scratch, limit, key):
    """All elements of source into target, through float32; at most `limit` elements fit in scratch."""
    to, fro = walks[0], walks[1]
    start_walk(target, to)
    start_walk(source, fro)
    run = common_divisor(to[0, COUNT], fro[0, COUNT])
    a, b = target[ADDR], source[ADDR]
    for i in range(target[P] * target[F] // run):
        for done in range(0, run, limit):
            piece = min(limit, run - done)
            load_run(b + done * fro[0, STEP], source[CODE], fro[0, STEP] // source[ITEM], piece, scratch)
            where = a + done * to[0, STEP]
            store_run(where, target[CODE], to[0, STEP] // target[ITEM], piece, scratch, key, i * run + done)
        a, b = advance(to, a, run), advance(fro, b, run)


@exported(void(i64, i64, i64, i64, i64, i64, i64))
def transpose_tiles(target, other, source, pitch, rows, columns, item):
    """[rows, columns] elements of 2 or 4 bytes, in multiples of SIDE, to [columns, rows]. pitch, other: bytes between
    rows of the source and of the target."""
    for r in range(0, rows, SIDE):
        for c in range(0, columns, SIDE):
            to, fro = target + c * other + r * item, source + r * pitch + c * item
            if item == 2:
                transpose_u16(to, other, fro, pitch)
            else:
                transpose_u32(to, other, fro, pitch)


@jit
def has_tiles(target, source):
    """Whether `transpose_tiles` serves these views."""
    whole = source[P] % SIDE == 0 and source[F] % SIDE == 0 and target[F] == source[P]
    return whole and is_dense(target) and is_dense(source) and (target[ITEM] == 2 or target[ITEM] == 4)


@jit
def transpose_view(target, source):
    """target[f, p] = source[p, f], bit for bit."""
    if has_tiles(target, source) and not may_overlap(target, source):
        transpose_tiles(target[ADDR], target[PITCH], source[ADDR], source[PITCH], source[P], source[F], target[ITEM])
        return
    f = 0
    for i in range(source[DIMS + 1]):
        for j in range(source[DIMS + 3]):
            for k in range(source[DIMS + 5]):
                skip = i * source[DIMS] + j * source[DIMS + 2] + k * source[DIMS + 4]
                for n in range(source[DIMS + 7]):
                    column = source[ADDR] + (skip + n * source[DIMS + 6]) * source[ITEM]
                    row = target[ADDR] + f * target[PITCH]
                    transpose_column(target, row, column, source[PITCH])
                    f += 1


@jit
def transpose_column(target, row, column, pitch):
    """One row of target from one column of the source."""
    item, inner = target[ITEM], target[DIMS + 7]
    for i in range(target[DIMS + 1]):
        for j in range(target[DIMS + 3]):
            for k in range(target[DIMS + 5]):
                skip = i * target[DIMS] + j * target[DIMS + 2] + k * target[DIMS + 4]
                copy_run(row + skip * item, target[DIMS + 6] * item, column, pitch, inner, item)
                column += inner * pitch
