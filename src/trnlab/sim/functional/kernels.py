# SPDX-License-Identifier: Apache-2.0
"""The instructions that stream rows: each fetches blocks of rows into scratch, works on them there, and stores them.

A kernel takes the views of its operands by slot, the numbers of its form (see `plan`), scratch memory, and the key
of its random stream for stochastic rounding (0: round to nearest even).
"""

from __future__ import annotations

import numpy as np

from trnlab.loops.kinds import i64, void
from trnlab.numerics.philox import KEY_STEPS, MULTIPLIERS
from trnlab.numerics.philox import ROUNDS as PHILOX_ROUNDS
from trnlab.numerics.threefry import PARITY, ROTATIONS
from trnlab.sim.functional.elementwise import (
    ADD,
    MAX,
    NO_FUNCTION,
    activate,
    combine,
    combine_scalar,
    fold,
    scale_and_shift,
    select,
)
from trnlab.sim.functional.formats import F32, I32, element_noise, load_run, stream_key, u32, u64
from trnlab.sim.functional.linking import exported, inline, jit
from trnlab.sim.functional.native import load_f32, load_i32, load_u32, store_f32, write_u32
from trnlab.sim.functional.views import (
    ADDR,
    CODE,
    DIMS,
    FIRST_ROW,
    NEAREST,
    ONE_ROW,
    PITCH,
    F,
    P,
    fetch,
    load_block,
    may_write_directly,
    store_block,
)

# What to run for an instruction. MEANING: the instruction's own definition, through Python. Those from GATHER on are
# occasional: each is compiled by itself.
(
    MEANING,
    COPY,
    TRANSPOSE,
    MATMUL,
    FILL,
    TENSOR_TENSOR,
    TENSOR_SCALAR,
    SCALAR_TENSOR_TENSOR,
    ACTIVATION,
    REDUCE,
    SELECT_REDUCE,
    COPY_PREDICATED,
    GATHER,
    MOVE_ROWS,
    IOTA,
    AFFINE_SELECT,
    DROPOUT,
    NUMBERED_BITS,
    TRANSPOSING_MATMUL,
) = range(19)

# Slots of operands: the destination, the row results, one or two tiles, one or two values per partition.
DST, RES, A, B, S0, S1 = range(6)
SLOTS = 6

# Columns of a form's integers and floats. Operators and flags; a ramp is offset, multiplier, four times (step, num).
OP0, OP1, FLAG, AXES, RAMP, HAS_SCALE = 0, 1, 2, 3, 4, 14
INTS, FLOATS = 16, 4
IMM0, IMM1, VALUE = range(3)  # in place of S0 and S1; on_false of affine_select, the value of memset

# Areas of scratch, in units of one block of float32: four tiles, then values per partition (128 each).
FIRST, SECOND, RESULT, TEMPORARY, VALUES = range(5)
BLOCK = 2048  # elements of a block of short rows
_LONG_ROW = 256  # from here on rows are taken one by one, in place where that is possible
_EVEN, _ODD = ROTATIONS
_FRACTION, _ZERO = np.float32(2.0**-24), np.float32(0)


@jit
def rows_at_once(free):
    """How many rows of `free` elements make a block."""
    return 1 if free >= _LONG_ROW else BLOCK // free


@jit
def values_per_partition(views, slot, present, immediate, out):
    """One float32 per partition, from a [P, 1] operand or a number."""
    rows = views[DST, P]
    if present[slot] >= 0:
        load_block(views[slot], FIRST_ROW, rows, out)
    else:
        for p in range(rows):
            store_f32(out, p, immediate)


@jit
def stream(kind, views, present, ints, floats, scratch, block, key):
    """Elementwise kernels of one or two tiles."""
    dst, a, b = views[DST], views[A], views[B]
    free, count = dst[F], dst[P]
    first, second, result = scratch, scratch + 4 * block, scratch + 8 * block
    s0 = scratch + 16 * block
    s1, sums = s0 + 512, s0 + 1024
    direct = may_write_directly(dst, a) and (present[B] < 0 or may_write_directly(dst, b))
    step = rows_at_once(free)
    values_per_partition(views, S0, present, floats[IMM0], s0)
    values_per_partition(views, S1, present, floats[IMM1], s1)
    for row in range(0, count, step):
        rows = min(step, count - row)
        out = dst[ADDR] + row * dst[PITCH] if direct and rows == 1 else result
        x = fetch(a, row, rows, first)
        y = fetch(b, row, rows, second) if present[B] >= 0 else second
        if kind == TENSOR_TENSOR:
            combine(ints[OP0], x, y, out, rows * free)
        elif kind == SELECT_REDUCE:
            for r in range(rows):
                at = 4 * r * free
                select(y + at, x + at, s0 + 4 * (row + r), 0, ints[FLAG], out + at, free)
        else:
            stream_rows(kind, ints, x, y, s0 + 4 * row, s1 + 4 * row, rows, free, scratch + 12 * block, out)
        if present[RES] >= 0:
            operator = ADD if kind == ACTIVATION else MAX
            for r in range(rows):
                store_f32(sums, row + r, fold(operator, out + 4 * r * free, free, scratch + 12 * block))
        if out == result:
            store_block(dst, row, rows, result, key)
    if present[RES] >= 0:
        store_block(views[RES], FIRST_ROW, count, sums, key)


@jit
def stream_rows(kind, ints, x, y, s0, s1, rows, free, temporary, out):
    """The kernels with values per partition, row by row."""
    for r in range(rows):
        at = 4 * r * free
        first, second = load_f32(s0, r), load_f32(s1, r)
        if kind == ACTIVATION:
            if ints[HAS_SCALE] and ints[OP0] == NO_FUNCTION:
                scale_and_shift(x + at, first, second, out + at, free)
            elif ints[HAS_SCALE]:
                scale_and_shift(x + at, first, second, temporary, free)
                activate(ints[OP0], temporary, out + at, free)
            else:
                activate(ints[OP0], x + at, out + at, free)
        elif kind == TENSOR_SCALAR:
            combine_scalar(ints[OP0], x + at, first, out + at, free)
            if ints[OP1] >= 0:
                combine_scalar(ints[OP1], out + at, second, out + at, free)
        else:
            combine_scalar(ints[OP0], x + at, first, temporary, free)
            if ints[FLAG]:
                combine(ints[OP1], y + at, temporary, out + at, free)
            else:
                combine(ints[OP1], temporary, y + at, out + at, free)


@jit
def reduce_rows(views, ints, scratch, block, key):
    """tensor_reduce: folds over the last ints[AXES] elements of each row."""
    dst, a = views[DST], views[A]
    folded, outer, count = ints[AXES], dst[F], dst[P]
    result, temporary = scratch + 8 * block, scratch + 12 * block
    step = rows_at_once(outer)
    for row in range(0, count, step):
        rows = min(step, count - row)
        for r in range(rows):
            x = fetch(a, row + r, ONE_ROW, scratch)
            for o in range(outer):
                value = fold(ints[OP0], x + 4 * o * folded, folded, temporary)
                store_f32(result, r * outer + o, -value if ints[FLAG] else value)
        store_block(dst, row, rows, result, key)


@jit
def fill(views, floats, scratch):
    """memset: one value everywhere."""
    dst = views[DST]
    step = rows_at_once(dst[F])
    for i in range(min(step, dst[P]) * dst[F]):
        store_f32(scratch, i, floats[VALUE])
    for row in range(0, dst[P], step):
        store_block(dst, row, min(step, dst[P] - row), scratch, NEAREST)


@exported(void(i64, i64, i64, i64))
def ramp_run(start, step, count, out):
    """int32 start, start + step, ..., wrapping."""
    for i in range(count):
        write_u32(out, i, np.uint32(np.uint32(start) + np.uint32(np.uint32(i) * np.uint32(step))))


@jit
def ramp(ints, p, out):
    """One row of int32 offset + p * multiplier + sum of index * step."""
    start = ints[RAMP] + p * ints[RAMP + 1]
    for i in range(ints[RAMP + 3]):
        for j in range(ints[RAMP + 5]):
            for k in range(ints[RAMP + 7]):
                value = start + i * ints[RAMP + 2] + j * ints[RAMP + 4] + k * ints[RAMP + 6]
                ramp_run(value, ints[RAMP + 8], ints[RAMP + 9], out)
                out += 4 * ints[RAMP + 9]


@jit
def iota(views, ints, scratch, block, key):
    """The ramp, cast to dst."""
    dst, other = views[DST], scratch + 4 * block
    exact = dst[CODE] == I32
    if exact:
        dst[CODE] = F32  # the bits are moved as they are
    for p in range(dst[P]):
        ramp(ints, p, scratch)
        if not exact:
            load_run(scratch, I32, 1, dst[F], other)
        store_block(dst, p, ONE_ROW, scratch if exact else other, key)


@jit
def affine_select(views, ints, floats, scratch, block, key):
    """on_true where the ramp compares with zero as asked, else a number."""
    dst, a = views[DST], views[A]
    free = dst[F]
    second, result, on_false = scratch + 4 * block, scratch + 8 * block, scratch + 16 * block
    store_f32(on_false, 0, floats[VALUE])
    for p in range(dst[P]):
        x = fetch(a, p, ONE_ROW, scratch)
        ramp(ints, p, result)
        load_run(result, I32, 1, free, second)
        combine_scalar(ints[OP0], second, _ZERO, second, free)
        select(second, x, on_false, 0, 0, result, free)
        store_block(dst, p, ONE_ROW, result, key)


@jit
def copy_predicated(views, present, ints, floats, scratch, block, key):
    """src, a tile or a number, where the predicate says so; dst elsewhere."""
    dst, a, b = views[DST], views[A], views[B]
    free = dst[F]
    second, result, held = scratch + 4 * block, scratch + 8 * block, scratch + 12 * block
    if present[A] < 0:
        for i in range(free):
            store_f32(scratch, i, floats[VALUE])
    for p in range(dst[P]):
        x = fetch(a, p, ONE_ROW, scratch) if present[A] >= 0 else scratch
        select(fetch(b, p, ONE_ROW, second), x, fetch(dst, p, ONE_ROW, held), 1, ints[FLAG], result, free)
        store_block(dst, p, ONE_ROW, result, key)


@jit
def dropout(views, present, ints, floats, scratch, block, key):
    """Zero where the element's random fraction is below prob."""
    dst, a = views[DST], views[A]
    free, prob = dst[F], scratch + 16 * block
    values_per_partition(views, S0, present, floats[IMM0], prob)
    stream_of = stream_key(np.uint64(ints[OP0]))
    for p in range(dst[P]):
        x = fetch(a, p, ONE_ROW, scratch)
        if present[S1] >= 0:
            stream_of = stream_key(np.uint64(load_u32(views[S1, ADDR] + p * views[S1, PITCH], 0)))
        threshold = load_f32(prob, p)
        for i in range(free):
            fraction = np.float32(element_noise(stream_of, p * free + i) >> np.uint32(8)) * _FRACTION
            store_f32(scratch + 8 * block, i, _ZERO if fraction < threshold else load_f32(x, i))
        store_block(dst, p, ONE_ROW, scratch + 8 * block, key)


@inline
def rounds(low, high, distances):
    """Four rounds of Threefry on both words of a block."""
    for distance in distances:
        low = u32(low + high)
        high = u32(u32(high << u32(distance)) | u32(high >> u32(32 - distance))) ^ low
    return low, high


@exported(void(i64, i64, i64, i64, i64))
def threefry_run(key0, key1, first, count, out):
    """The first words of blocks first, first + 1, ...: `numerics.threefry.block`."""
    k0, k1 = u32(key0), u32(key1)
    k2 = u32(u32(PARITY) ^ u32(k0 ^ k1))
    for i in range(count):
        low, high = u32(u32(first + i) + k0), u32(u32((first + i) >> 32) + k1)
        low, high = rounds(low, high, _EVEN)
        low, high = rounds(u32(low + k1), u32(u32(high + k2) + u32(1)), _ODD)
        low, high = rounds(u32(low + k2), u32(u32(high + k0) + u32(2)), _EVEN)
        low, high = rounds(u32(low + k0), u32(u32(high + k1) + u32(3)), _ODD)
        low, high = rounds(u32(low + k1), u32(u32(high + k2) + u32(4)), _EVEN)
        write_u32(out, i, u32(low + k2))


@inline
def philox_word(key0, key1, low, high, lane):
    """One word of the block at a counter of two words of 64 bits: `numerics.philox.block`."""
    c0, c1, c2, c3 = u32(low), u32(low >> u64(32)), u32(high), u32(high >> u64(32))
    for _ in range(PHILOX_ROUNDS):
        first, second = u64(c0) * u64(MULTIPLIERS[0]), u64(c2) * u64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            u32(second >> u64(32)) ^ c1 ^ key0,
            u32(second),
            u32(first >> u64(32)) ^ c3 ^ key1,
            u32(first),
        )
        key0, key1 = u32(key0 + u32(KEY_STEPS[0])), u32(key1 + u32(KEY_STEPS[1]))
    return c0 if lane == 0 else c1 if lane == 1 else c2 if lane == 2 else c3


@exported(void(i64, i64, i64, i64, i64))
def philox_run(state, step, first, count, out):
    """Words first, first + 1, ... of the key and counter at `state`, words `step` bytes apart."""
    low = u64(load_u32(state, 2 * step)) | u64(load_u32(state, 3 * step)) << u64(32)
    high = u64(load_u32(state, 4 * step)) | u64(load_u32(state, 5 * step)) << u64(32)
    for i in range(count):
        moved = low + u64((first + i) >> 2)
        carried = high + u64(1) if moved < low else high
        word = philox_word(load_u32(state, 0), load_u32(state, step), moved, carried, (first + i) & 3)
        write_u32(out, i, word)


@jit
def numbered_bits(views, ints, scratch):
    """rng with a key: each row a run of the key's sequence."""
    dst, key = views[DST], views[B]
    dst[CODE] = F32  # the bits are moved as they are
    for p in range(dst[P]):
        at = key[ADDR] + p * key[PITCH]
        if key[F] > 2:
            philox_run(at, key[DIMS + 6], ints[RAMP] + p * ints[RAMP + 1], dst[F], scratch)
            store_block(dst, p, ONE_ROW, scratch, NEAREST)
            continue
        threefry_run(
            np.int64(load_u32(at, 0)),
            np.int64(load_u32(at, key[DIMS + 6])),
            ints[RAMP] + p * ints[RAMP + 1],
            dst[F],
            scratch,
        )
        store_block(dst, p, ONE_ROW, scratch, NEAREST)


@jit
def row_index(view, p):
    """The p-th index of a gather."""
    address = view[ADDR] + p * view[PITCH]
    return np.int64(load_i32(address, 0)) if view[CODE] == I32 else np.int64(load_u32(address, 0))
