# SPDX-License-Identifier: Apache-2.0
"""nl.zeros in PSUM: nothing is written as long as matmuls start there, for the first of them overwrites.

What no matmul has written by the time that something else reads the tile is zeroed then.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from trnlab.isa.base import Memory
from trnlab.lang import instructions as ins
from trnlab.lang.recorder import current
from trnlab.lang.storage import Storage
from trnlab.lang.tensor import Tensor
from trnlab.nki.neuronxcc.defined import boxes
from trnlab.program.strided import row_major

_ZERO = "zero when first read"
_PSUM = Memory.PSUM  # to look a member up takes 200 ns in Python 3.11


def promise_zero(tile: Tensor) -> None:
    """The tile is zero; what a matmul adds to first is overwritten instead."""
    current().once(_ZERO, set).add(tile.storage)


def settle(tensor: Tensor) -> None:
    """Keep the promise, if there is one, before something reads the tensor."""
    storage = tensor.storage
    if storage.region.memory is not _PSUM:
        return
    pending = current().once(_ZERO, set)
    if storage in pending:
        pending.discard(storage)
        _fill_gaps(storage)


def _fill_gaps(storage: Storage) -> None:
    """Zero what no instruction has written of what is defined, runs of elements of rows that are alike at a time."""
    rows, row = storage.shape[0], storage.row
    if any(
        offset == 0 and shape == storage.shape and strides == row_major(shape)
        for offset, shape, strides in storage.wrote
    ):
        return
    gap = np.zeros(storage.shape, bool)
    box = boxes().get(storage, {})
    gap[tuple(slice(*box.get(axis, (0, n))) for axis, n in enumerate(storage.shape))] = True
    gap = gap.reshape(rows, row)
    for region in storage.wrote:
        gap.reshape(-1)[_elements(region)] = False
    edges = [0, *(np.flatnonzero((gap[1:] != gap[:-1]).any(axis=1)) + 1).tolist(), rows]
    for first, last in pairwise(edges):
        for start, stop in _runs(gap[first]):
            piece = storage.recorder.tensor_type(storage, (last - first, stop - start), (row, 1), first * row + start)
            ins.emit("memset", dst=piece, value=0.0)


def _elements(region: tuple[int, tuple[int, ...], tuple[int, ...]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Numbers of the elements of a region: offset, shape, strides."""
    offset, shape, strides = region
    at = np.full((1,) * len(shape), offset)
    for axis, (count, step) in enumerate(zip(shape, strides)):
        at = at + (np.arange(count) * step).reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return at.ravel()


def adds(target: Tensor) -> None:
    """A product is to be added to this part of a tile in PSUM: let the matmul do so where something has been written.

    Where nothing has, it starts the sum. Where some of it has, the rest is zeroed first, if that was promised.
    """
    storage = target.storage
    region = (target.offset, target.shape, target.strides)
    if region in storage.sums or not storage.wrote:
        return
    wrote = np.zeros(storage.row * storage.shape[0], np.bool_)
    for known in storage.wrote:
        wrote[_elements(known)] = True
    if wrote[_elements(region)].any():
        settle(target)
        storage.sums.add(region)


def _runs(flags: np.ndarray) -> list[tuple[int, int]]:  # type: ignore[type-arg]
    """First and one-past-last index of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))
