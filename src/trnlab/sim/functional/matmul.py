# SPDX-License-Identifier: Apache-2.0
"""nc_matmul: operands are packed as float32 panels, then multiplied tile by register tile, straight into PSUM.

Shape letters: K contraction, M stationary free, N moving free. The packed stationary operand is [M / TILE_M, K, TILE_M], the
moving one [N / TILE_N, K, TILE_N], both padded with zeros. A product of two bf16 or fp8 values is exact in float32, so low
precision costs nothing but the packing; an operand used again by the next matmul stays packed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trnlab.sim.functional.native import TILE_M, TILE_N, load_f32, multiply_tile, store_f32
from trnlab.sim.functional.views import ADDR, HIGH, LOW, PITCH, VIEW, F, P, fetch, is_dense

MAX_K, MAX_M, MAX_N = 128, 128, 512
PANELS = (MAX_M + TILE_M) * MAX_K + (MAX_N + TILE_N) * MAX_K + TILE_M * TILE_N  # floats of scratch
ZERO = np.float32(0)


@njit
def pack(view, width, panels, scratch):
    """[K, free] as panels [free / width, K, width] of float32."""
    depth, free = view[P], view[F]
    for k in range(depth):
        row = fetch(view, k, 1, scratch)
        full = free // width
        for j in range(full):
            out = panels + (j * depth + k) * width * 4
            for i in range(width):
                store_f32(out, i, load_f32(row, j * width + i))
        if full * width < free:
            out = panels + (full * depth + k) * width * 4
            for i in range(width):
                store_f32(out, i, load_f32(row, full * width + i) if full * width + i < free else ZERO)


@njit
def same_view(a, b):
    """Whether two views read the same elements in the same order."""
    for i in range(VIEW):
        if a[i] != b[i]:
            return False
    return True


@njit
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


@njit
def matmul(target, stationary, moving, packed, accumulate, panels, scratch):
    """PSUM target [M, N] (dense rows) = or += stationary [K, M].T @ moving [K, N]. packed [2, VIEW]: what panels hold."""
    depth, m, n = stationary[P], stationary[F], moving[F]
    left, right = panels, panels + (MAX_M + TILE_M) * MAX_K * 4
    corner = right + (MAX_N + TILE_N) * MAX_K * 4
    if not same_view(packed[0], stationary):
        pack(stationary, TILE_M, left, scratch)
        packed[0] = stationary
    if not same_view(packed[1], moving):
        pack(moving, TILE_N, right, scratch)
        packed[1] = moving
    fresh = 0 if accumulate else 1
    for j in range(0, n, TILE_N):
        b = right + j * depth * 4
        for i in range(0, m, TILE_M):
            a, c = left + i * depth * 4, target[ADDR] + i * target[PITCH] + j * 4
            if i + TILE_M <= m and j + TILE_N <= n:
                multiply_tile(a, b, c, target[PITCH], depth, fresh)
            else:
                multiply_edge(a, b, c, target[PITCH], depth, fresh, min(TILE_M, m - i), min(TILE_N, n - j), corner)


@njit
def multiply_edge(a, b, c, pitch, depth, fresh, rows, columns, corner):
    """A register tile of which only [rows, columns] exist."""
    for r in range(rows):
        for i in range(columns):
            store_f32(corner, r * TILE_N + i, load_f32(c + r * pitch, i))
    multiply_tile(a, b, corner, TILE_N * 4, depth, fresh)
    for r in range(rows):
        for i in range(columns):
            store_f32(c + r * pitch, i, load_f32(corner, r * TILE_N + i))


@njit
def can_multiply(target, stationary, moving):
    """Whether `matmul` covers these operands; else the instruction's meaning is used."""
    return is_dense(target) and target[F] == moving[F] and stationary[P] <= MAX_K and moving[F] <= MAX_N
