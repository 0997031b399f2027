# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of strided views: merging, splitting and counting dimensions without moving data."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from trnlab.program.access import MAX_FREE_DIMS, Dims


@lru_cache(maxsize=65536)
def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense array."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def merged(dims: Dims) -> Dims:
    """The same walk in as few dimensions as possible; dimensions of one element vanish."""
    out: list[tuple[int, int]] = []
    for step, count in dims:
        if count == 1:
            continue
        if out and out[-1][0] == step * count:
            out[-1] = (step, out[-1][1] * count)
        else:
            out.append((step, count))
    return tuple(out) or ((1, 1),)


@lru_cache(maxsize=65536)
def free_dims(strides: tuple[int, ...], shape: tuple[int, ...], keep: bool = False) -> Dims:
    """All dimensions but the first, in as few as possible unless `keep` and the hardware has as many."""
    free = tuple(zip(strides[1:], shape[1:]))
    return free if keep and len(free) <= MAX_FREE_DIMS else merged(free)


def restride(shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the view reshaped to `wanted` (same number of elements), or None when data would have to move."""
    runs = list(merged(tuple(zip(strides, shape))))
    out: list[int] = []
    step, left = runs.pop()
    for size in reversed(wanted):
        if size == 1:
            out.append(step * left)
            continue
        if left == 1 and runs:
            step, left = runs.pop()
        if left % size:
            return None
        out.append(step)
        step, left = step * size, left // size
    return tuple(reversed(out))


def inferred(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """A shape with its one -1 replaced so that it holds `size` elements."""
    if -1 not in shape:
        return shape
    known = prod(s for s in shape if s != -1)
    return tuple(size // known if s == -1 and known else s for s in shape)
