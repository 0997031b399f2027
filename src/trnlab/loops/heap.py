# SPDX-License-Identifier: Apache-2.0
"""A binary heap in an array, for compiled loops: the first of what is in it comes out first."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.loops import compiled

Ints = np.ndarray[Any, np.dtype[np.int64]]


@compiled
def _before(a: int, b: int, due: Ints) -> bool:
    """The order of a heap of numbers: by when they are due, where that is given, then by themselves."""
    if due.shape[0] > 0 and due[a] != due[b]:
        return bool(due[a] < due[b])
    return a < b


@compiled
def push(heap: Ints, size: int, i: int, due: Ints) -> int:
    """Add a number to a heap of `size`; returns how many it has then. due: fixed times by number, or empty."""
    k = size
    heap[k] = i
    while k > 0 and _before(heap[k], heap[(k - 1) >> 1], due):
        heap[k], heap[(k - 1) >> 1] = heap[(k - 1) >> 1], heap[k]
        k = (k - 1) >> 1
    return size + 1


@compiled
def pop(heap: Ints, size: int, due: Ints) -> Any:
    """Take the first number of a heap of `size`; returns it, and how many are left."""
    first = heap[0]
    size -= 1
    heap[0] = heap[size]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= size:
            break
        if child + 1 < size and _before(heap[child + 1], heap[child], due):
            child += 1
        if not _before(heap[child], heap[k], due):
            break
        heap[k], heap[child] = heap[child], heap[k]
        k = child
    return first, size
