# SPDX-License-Identifier: Apache-2.0
"""What gather and scatter mean, with all of StableHLO's dimension numbers.

Both come down to the same thing: for every index vector a window of the operand, and for every element of every
window its coordinates in the operand. Those are made here as one integer array per operand dimension, [batch...,
window...].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Attrs = Mapping[str, Any]


def gather(operand: Array, indices: Array, attrs: Attrs) -> Array:
    """The windows at `indices`; a start that would leave the operand is moved inside."""
    sizes, places = attrs["slice_sizes"], attrs["offset_dims"]
    batching = attrs["operand_batching_dims"], attrs["start_indices_batching_dims"]
    starts = _starts(operand.ndim, indices, attrs["index_vector_dim"], attrs["start_index_map"], *batching)
    starts = [np.clip(s, 0, n - size) for s, n, size in zip(starts, operand.shape, sizes)]
    dropped = attrs["collapsed_slice_dims"] + attrs["operand_batching_dims"]
    windows = operand[_coordinates(starts, sizes, dropped)]
    return np.asarray(np.moveaxis(windows, range(windows.ndim - len(places), windows.ndim), places))


def scatter(operand: Array, indices: Array, update: Array, attrs: Attrs) -> Array:
    """A copy with the update windows added or assigned in order; elements outside of the operand are dropped."""
    places, batching = attrs["update_window_dims"], attrs["input_batching_dims"]
    starts = _starts(
        operand.ndim,
        indices,
        attrs["index_vector_dim"],
        attrs["scatter_dims_to_operand_dims"],
        batching,
        attrs["scatter_indices_batching_dims"],
    )
    dropped = attrs["inserted_window_dims"] + batching
    window = iter([update.shape[a] for a in places])
    sizes = [1 if axis in dropped else next(window) for axis in range(operand.ndim)]
    update = np.moveaxis(update, places, range(update.ndim - len(places), update.ndim))
    where = np.broadcast_arrays(*_coordinates(starts, sizes, dropped))
    inside = np.logical_and.reduce([(w >= 0) & (w < n) for w, n in zip(where, operand.shape)])
    result, chosen = operand.copy(), tuple(w[inside] for w in where)
    if attrs["kind"] == "add":
        np.add.at(result, chosen, update[inside])
    else:
        result[chosen] = update[inside]
    return result


def _starts(
    rank: int,
    indices: Array,
    vector_dim: int,
    index_map: tuple[int, ...],
    batching: tuple[int, ...],
    indices_batching: tuple[int, ...],
) -> list[Array]:
    """Where each window starts in each operand dimension, arrays of the batch shape (or broadcasting to it)."""
    vectors = indices[..., None] if vector_dim == indices.ndim else np.moveaxis(indices, vector_dim, -1)
    batch = vectors.shape[:-1]
    starts = [np.zeros(batch, np.int64) for _ in range(rank)]
    for position, axis in enumerate(index_map):
        starts[axis] = vectors[..., position].astype(np.int64)
    for axis, source in zip(batching, indices_batching):
        place = source - (source > vector_dim)
        line = np.arange(batch[place]).reshape([-1 if a == place else 1 for a in range(len(batch))])
        starts[axis] = np.broadcast_to(line, batch)
    return starts


def _coordinates(starts: list[Array], sizes: Any, dropped: tuple[int, ...]) -> tuple[Array, ...]:
    """Per operand dimension the coordinate of every window element, broadcasting to [batch..., window...]."""
    kept = [axis for axis in range(len(starts)) if axis not in dropped]
    found = []
    for axis, start in enumerate(starts):
        coordinate = start.reshape(start.shape + (1,) * len(kept))
        if axis in kept:
            line = [1] * len(kept)
            line[kept.index(axis)] = -1
            coordinate = coordinate + np.arange(sizes[axis]).reshape(line)
        found.append(coordinate)
    return tuple(found)
