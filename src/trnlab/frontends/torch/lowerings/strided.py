# SPDX-License-Identifier: Apache-2.0
"""Elements anywhere in memory: strided views, windows, places by number."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.frontends.torch.lowerings.index import _added, _assigned, _constant_ids, _wrapped, elements
from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, dim_of, lowers
from trnlab.frontends.torch.steps_in_memory import shown
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import bool_

_OUTSIDE = "a strided view goes beyond the memory of its tensor"


def _storage_places(like: Any, size: Any, stride: Any, offset: int | None) -> np.ndarray[Any, Any]:
    """Row-major numbers of the elements of tensor `like` that a strided view of its storage shows; -1 for none."""
    offset = like.storage_offset() if offset is None else offset
    own = _addresses(like.shape, like.stride(), like.storage_offset())
    wanted = _addresses(size, stride, offset)
    table = np.full(max(own.max(initial=-1), wanted.max(initial=-1)) + 1, -1)
    table[own.reshape(-1)] = np.arange(own.size)
    return np.asarray(table[wanted])


def _addresses(size: Any, stride: Any, offset: int) -> np.ndarray[Any, Any]:
    found = np.full((), int(offset))
    for count, step in zip(size, stride):
        found = found[..., None] + np.arange(int(count)) * int(step)
    return found


@lowers("as_strided.default", "as_strided_copy.default")
def as_strided(site, x, size, stride, storage_offset=None):
    """A view of memory in any order: slices, or elements by number. What lies outside of the tensor is not there to
    be read."""
    places = _storage_places(site.node.args[0].meta["val"], size, stride, storage_offset)
    if (places < 0).any():
        raise UnsupportedOperatorForm(_OUTSIDE, "take the view of the tensor that holds the memory")
    return _elements_at(site, x, places)


@lowers("as_strided_scatter.default")
def as_strided_scatter(site, x, source, size, stride, storage_offset=None):
    places = _storage_places(site.node.args[0].meta["val"], size, stride, storage_offset)
    if (places < 0).any():
        raise UnsupportedOperatorForm(_OUTSIDE, "take the view of the tensor that holds the memory")
    winner = np.full(x.type.size, -1)
    winner[places.reshape(-1)] = np.arange(places.size)
    winner = winner.reshape(x.shape)
    taken = elements(site, site.b.broadcast_to(source, tuple(size)), _constant_ids(site, np.maximum(winner, 0)))
    return site.b.select(site.b.constant(winner >= 0, bool_, winner.shape), taken, x)


@lowers("unfold.default", "unfold_copy.default")
def unfold(site, x, dim, size, step):
    """Windows of `size` along `dim`, every `step`; the elements of a window come last."""
    if not x.shape:
        return site.b.broadcast_to(site.b.reshape(x, (1,)), site.shape)
    if site.type.size == 0:
        return site.b.constant(0, site.dtype, site.shape)
    numbers = np.arange(x.type.size).reshape(x.shape)
    dim = dim_of(dim, len(x.shape))
    windows = np.lib.stride_tricks.sliding_window_view(numbers, size, dim)
    return _elements_at(site, x, windows[(slice(None),) * dim + (slice(None, None, step),)])


def _elements_at(site: LoweringSite, x: Value, places: np.ndarray[Any, Any]) -> Value:
    """Elements by their row-major numbers."""
    found = shown(site.b, x, places)
    return elements(site, x, _constant_ids(site, places)) if found is None else found


@lowers("take.default")
def take(site, x, index):
    site.watch.index(index, -x.type.size, x.type.size)
    return elements(site, x, _wrapped(site, index, x.type.size))


@lowers("put.default")
def put(site, x, index, source, accumulate=False):
    b, count = site.b, x.type.size
    site.watch.index(index, -count, count)
    ids = b.reshape(_wrapped(site, index, count), (index.type.size,))
    table, values = b.reshape(x, (count, 1)), b.reshape(source, (source.type.size, 1))
    return site.shaped(_added(site, table, ids, values) if accumulate else _assigned(site, table, ids, values))
