# SPDX-License-Identifier: Apache-2.0
"""Indices along a dimension that are the same in all later ones, as `index.unsqueeze(-1).expand(-1, -1, width)` makes
them: what they name are rows, which are picked and added to as a table's are."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from trnlab.frontends.torch.lowerings.registry import LoweringSite
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import int32

WIDTH = 32  # elements of a row, from which on it is one


def row_ids(site: LoweringSite, index: Value, dim: int, count: int) -> Value | None:
    """For each index, without the later dimensions that it is the same in, the number of its row among all `count`
    rows of each place before: [rows]. None where it differs in them, or rows are short."""
    b, before = site.b, index.shape[:dim]
    if prod(index.shape[dim + 1 :]) < WIDTH or prod(before) * count >= 2**31:
        return None
    strides = _strides(index)
    if strides is None or any(strides[d] and index.shape[d] > 1 for d in range(dim + 1, len(strides))):
        return None
    ends = (*index.shape[: dim + 1], *(1 for _ in index.shape[dim + 1 :]))
    narrow = b.reshape(b.slice(index, [0] * len(ends), ends), index.shape[: dim + 1])
    first = b.reshape(b.multiply(b.iota((prod(before), 1), int32), count), (*before, 1))
    ids = b.add(b.convert(narrow, int32), b.broadcast_to(first, narrow.shape))
    return b.reshape(ids, (ids.type.size,))


def rows_of(site: LoweringSite, x: Value, shape: Sequence[int], dim: int) -> Value:
    """x, cut to the shape of the index in all dimensions but `dim`, as rows of what is behind it."""
    limits = [*shape[:dim], x.shape[dim], *shape[dim + 1 :]]
    x = x if list(x.shape) == limits else site.b.slice(x, [0] * len(limits), limits)
    return site.b.reshape(x, (prod(limits[: dim + 1]), prod(limits[dim + 1 :])))


def _strides(x: Value) -> tuple[int, ...] | None:
    """How far the elements of a value lie from each other in what it is a view of, zero where they are the same; None
    where it is not known. NumPy's views of memory that nobody touches say it."""
    found = _view(x)
    return None if found is None else found.strides


def _view(x: Value) -> np.ndarray[Any, np.dtype[np.int8]] | None:
    name = x.op.name if x.op is not None else ""
    if x.op is None or name not in ("convert", "reshape", "transpose", "broadcast_in_dim"):
        return np.empty(x.shape, np.int8)
    seen = _view(x.op.operands[0])
    if seen is None or name == "convert":
        return seen
    if name == "transpose":
        return seen.transpose(x.op.attrs["permutation"])
    if name == "broadcast_in_dim":
        dims = dict(zip(x.op.attrs["broadcast_dimensions"], seen.shape))
        return np.broadcast_to(seen.reshape([dims.get(d, 1) for d in range(len(x.shape))]), x.shape)
    shaped = seen.reshape(x.shape)
    return shaped if np.may_share_memory(shaped, seen) else None  # a copy says nothing
