# SPDX-License-Identifier: Apache-2.0
"""nc_matmul: operands are packed as float32 panels, then multiplied tile by register tile, straight into PSUM.

Shape letters: K contraction, M stationary free, N moving free. The packed stationary operand is [M / TILE_M, K,
TILE_M], the moving one [N / TILE_N, K, TILE_N]; columns beyond the last are computed and dropped. A product of two
bf16 or fp8 values is exact in float32, so low precision costs nothing but the packing; an operand used again by the
next matmul stays packed.
"""

from __future__ import annotations

import numpy as np

from trnlab.loops.kinds import i64, void
from trnlab.sim.functional.copying import has_tiles, transpose_tiles
from trnlab.sim.functional.formats import BF16
from trnlab.sim.functional.linking import exported, jit
from trnlab.sim.functional.native import (
    TILE_M,
    TILE_N,
    copy_bytes,
    load_f32,
    load_u32,
    multiply_tile,
    read_u16,
    read_u32,
    store_f32,
    write_u16,
    write_u32,
)
from trnlab.sim.functional.views import (
    ADDR,
    CODE,
    FIRST_ROW,
    HIGH,
    LOW,
    ONE_ROW,
    PITCH,
    VIEW,
    F,
    P,
    is_dense,
    load_block,
    store_block,
)

MAX_K, MAX_M, MAX_N = 128, 128, 512
_PIECE = 16  # elements of a row of the stationary operand that are transposed at a time
_ZERO, _ONE = np.float32(0), np.float32(1)
_BF16_ONE, _BF16_SIGN, _BF16_MAGNITUDE = np.uint32(0x3F80), np.uint32(0x8000), np.uint32(0x7FFF)
_BOTH_MAGNITUDES = np.uint32(0x7FFF7FFF)
_BF16_INFINITY, _BF16_NAN, _U32_ZERO = np.uint32(0x7F80), np.uint32(0x7FC0), np.uint32(0)
_SIGN, _INFINITY, _NAN = np.uint32(1 << 31), np.uint32(0x7F800000), np.uint32(0x7FC00000)
GAP = 64  # bytes between panels, so that a row of them does not fall into one set of the host's cache
LEFT = (MAX_M // TILE_M) * (MAX_K * TILE_M * 4 + GAP)  # bytes of the packed stationary operand
RIGHT = (MAX_N // TILE_N) * (MAX_K * TILE_N * 4 + GAP)
PANELS = LEFT + RIGHT + TILE_M * TILE_N * 4  # bytes of scratch: both operands, and one incomplete register tile


@exported(void(i64, i64, i64, i64, i64))
def pack_stationary(row, free, depth, k, panels):
    """Row k of [depth, free] into its place in panels of TILE_M columns; behind the row scratch may be read."""
    for j in range(-(-free // TILE_M)):
        copy_bytes(panels + j * (depth * TILE_M * 4 + GAP) + k * TILE_M * 4, row + j * TILE_M * 4, TILE_M * 4)


@exported(void(i64, i64, i64, i64, i64))
def pack_moving(row, free, depth, k, panels):
    """Row k of [depth, free] into its place in panels of TILE_N columns; behind the row scratch may be read."""
    for j in range(-(-free // TILE_N)):
        copy_bytes(panels + j * (depth * TILE_N * 4 + GAP) + k * TILE_N * 4, row + j * TILE_N * 4, TILE_N * 4)


@exported(void(i64, i64, i64, i64, i64, i64, i64, i64))
def multiply_panels(left, right, c, pitch, depth, m, n, fresh):
    """c [m, n] = or += packed left.T @ packed right; scratch for an incomplete register tile lies behind `right`."""
    corner = right + RIGHT
    for j in range(0, n, TILE_N):
        b = right + j // TILE_N * (depth * TILE_N * 4 + GAP)
        for i in range(0, m, TILE_M):
            a, tile = left + i // TILE_M * (depth * TILE_M * 4 + GAP), c + i * pitch + j * 4
            rows, columns = min(TILE_M, m - i), min(TILE_N, n - j)
            if rows == TILE_M and columns == TILE_N:
                multiply_tile(a, b, tile, pitch, depth, fresh)
                continue
            for r in range(rows):
                for x in range(columns):
                    store_f32(corner, r * TILE_N + x, load_f32(tile + r * pitch, x))
            multiply_tile(a, b, corner, TILE_N * 4, depth, fresh)
            for r in range(rows):
                for x in range(columns):
                    store_f32(tile + r * pitch, x, load_f32(corner, r * TILE_N + x))


@jit
def pack(view, is_moving, panels, scratch):
    """[K, free] as float32 panels [free / width, K, width]; what lies in columns beyond `free` does not matter."""
    depth, free = view[P], view[F]
    for k in range(depth):
        load_block(view, k, ONE_ROW, scratch)
        if is_moving:
            pack_moving(scratch, free, depth, k, panels)
        else:
            pack_stationary(scratch, free, depth, k, panels)


@jit
def same_view(a, b):
    """Whether two views read the same elements in the same order."""
    same = True
    for i in range(VIEW):
        same = same and a[i] == b[i]
    return same


@jit
def keep_view(kept, view):
    """Remember a view."""
    for i in range(VIEW):
        kept[i] = view[i]


@jit
def forget_overlap(packed, target):
    """Mark a packed operand as stale when `target`, about to be written, shares bytes with it.

    Compares the byte ranges of the rows modulo the pitch: cheap, and never misses an overlap.
    """
    if packed[P] == 0 or target[PITCH] != packed[PITCH]:
        return
    pitch = packed[PITCH]
    shift = (target[ADDR] + target[LOW] - packed[ADDR] - packed[LOW]) % pitch
    if shift < packed[HIGH] - packed[LOW] or shift + target[HIGH] - target[LOW] > pitch:
        packed[P] = 0


@jit
def matmul(target, stationary, moving, packed, accumulate, panels, scratch):
    """PSUM target [M, N] = or += stationary [K, M].T @ moving [K, N]. packed [2, VIEW]: what the panels hold."""
    left, right = panels, panels + LEFT
    if not same_view(packed[0], stationary):
        pack(stationary, False, left, scratch)
        keep_view(packed[0], stationary)
    if not same_view(packed[1], moving):
        pack(moving, True, right, scratch)
        keep_view(packed[1], moving)
    depth, m, n = stationary[P], stationary[F], moving[F]
    multiply_panels(left, right, target[ADDR], target[PITCH], depth, m, n, 0 if accumulate else 1)


@exported(void(i64, i64, i64, i64))
def count_row(row, n, k, columns):
    """Row k of a matrix: for each column how many elements are not zero, how many are one, and the row of that."""
    for i in range(n):
        value = load_f32(row, i)
        one = value == _ONE
        store_f32(columns, i, load_f32(columns, i) + (_ONE if value != _ZERO else _ZERO))
        store_f32(columns, MAX_N + i, load_f32(columns, MAX_N + i) + (_ONE if one else _ZERO))
        store_f32(columns, 2 * MAX_N + i, load_f32(columns, 2 * MAX_N + i) + (np.float32(k) if one else _ZERO))


@exported(void(i64, i64, i64, i64, i64))
def pick_columns(rows, m, n, columns, out):
    """out [m, n]: column i is the row of `rows` [k, m] that `columns` says."""
    for first in range(0, m, _PIECE):
        last = min(first + _PIECE, m)
        for i in range(n):
            row = rows + 4 * m * np.int64(load_f32(columns, 2 * MAX_N + i))
            for j in range(first, last):
                store_f32(out, j * n + i, load_f32(row, j))


@exported(void(i64, i64))
def plain_nan(values, n):
    """Let every NaN be the one of its sign, as conversion to bfloat16 does in the definition."""
    for i in range(n):
        word = load_u32(values, i)
        write_u32(values, i, word & _SIGN | _NAN if word & ~_SIGN > _INFINITY else word)


@exported(i64(i64, i64, i64))
def is_identity(rows, pitch, n):
    """Whether [n, n] numbers in bfloat16 are one where row and column are the same, and zero elsewhere; n is even."""
    wrong = _U32_ZERO
    for k in range(n):
        row, place = rows + k * pitch, k >> 1
        one = _BF16_ONE if k & 1 == 0 else _BF16_ONE << np.uint32(16)
        wrong |= read_u16(row, k) ^ _BF16_ONE  # its sign, too
        for i in range(n >> 1):  # two at a time
            wrong |= read_u32(row, i) & _BOTH_MAGNITUDES ^ (one if i == place else _U32_ZERO)
    return 1 if wrong == 0 else 0


@exported(void(i64, i64, i64, i64, i64))
def plain_nan_bf16(values, pitch, rows, n, out):
    """As `plain_nan`, of rows of n in bfloat16, which become dense."""
    for k in range(rows):
        for i in range(n):
            bits = read_u16(values + k * pitch, i)
            nan = bits & _BF16_MAGNITUDE > _BF16_INFINITY
            write_u16(out + 2 * k * n, i, bits & _BF16_SIGN | _BF16_NAN if nan else bits)


@jit
def transposes(target, stationary, moving):
    """Whether three operands in bfloat16 lie as `transpose_tiles` takes them."""
    square = moving[F] == moving[P] and moving[P] == stationary[P]
    formats = target[CODE] == BF16 and stationary[CODE] == BF16 and moving[CODE] == BF16
    return square and formats and is_dense(moving) and has_tiles(target, stationary)


@jit
def transposing_matmul(target, stationary, moving, packed, panels, scratch, block, key):
    """target [M, N] = stationary [K, M].T, its columns in the order of the ones of moving [K, N].

    False where some column of moving holds anything but a single one. block: bytes of an area of scratch.
    """
    depth, m, n = moving[P], stationary[F], moving[F]
    if depth > MAX_K or m > MAX_M or n > MAX_N or target[F] != n:
        return False
    packed[0][P] = packed[1][P] = 0  # the panels are used for something else
    if transposes(target, stationary, moving) and is_identity(moving[ADDR], moving[PITCH], n):
        plain_nan_bf16(stationary[ADDR], stationary[PITCH], depth, m, panels)
        transpose_tiles(target[ADDR], target[PITCH], panels, 2 * m, depth, m, 2)
        return True
    columns, out = scratch + block, panels + LEFT
    for i in range(3 * MAX_N):
        store_f32(columns, i, _ZERO)
    for k in range(depth):
        load_block(moving, k, ONE_ROW, scratch)
        count_row(scratch, n, k, columns)
    for i in range(n):
        if load_f32(columns, i) != _ONE or load_f32(columns, MAX_N + i) != _ONE:
            return False
    load_block(stationary, FIRST_ROW, depth, panels)
    pick_columns(panels, m, n, columns, out)
    if target[CODE] == BF16:
        plain_nan(out, m * n)
    store_block(target, FIRST_ROW, m, out, key)
    return True


@jit
def can_multiply(target, stationary, moving):
    """Whether `matmul` covers these operands; else the instruction's meaning is used."""
    return is_dense(target) and target[F] == moving[F] and stationary[P] <= MAX_K and moving[F] <= MAX_N
