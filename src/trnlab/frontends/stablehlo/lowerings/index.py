# SPDX-License-Identifier: Apache-2.0
"""Elements by computed index: slices, gather and scatter with all of StableHLO's dimension numbers.

The chip takes whole rows of a table by number. So the dimensions that are indexed come in front and make one number;
windows that begin at a computed place become rows of their own. What is added goes to rows by number; what is
assigned, or combined otherwise, is looked up: each row asks which update was its last one, or compares with all.

Letters: V rows of a table, C columns, M updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue, known
from trnlab.frontends.stablehlo.lowerings.products import transposed
from trnlab.frontends.stablehlo.mlir import UINT64
from trnlab.frontends.stablehlo.registry import OpSite, lowers
from trnlab.graph.ir import TensorType
from trnlab.numerics.dtypes import int32, uint32

# -- slices ---------------------------------------------------------------------------------------------------------


@lowers("stablehlo.dynamic_slice")
def dynamic_slice(site: OpSite) -> TracedValue:
    """A slice where the places are known; else rows by number."""
    x, *starts = site.operands
    sizes = mlir.ints(site.raw, "slice_sizes")
    window = site.t.window(x, starts, sizes)
    if window is not None:
        return window
    begins = [_clamped(site, s, n - size) for s, n, size in zip(starts, x.shape, sizes)]
    x = _cut(site, x, begins, sizes)
    for dim, (begin, size) in enumerate(zip(begins, sizes)):
        if begin.known is None:
            x = _take(site, x, dim, _counted(site, begin, size))
    return x


def _cut(site: OpSite, x: TracedValue, begins: Sequence[TracedValue], sizes: Sequence[int]) -> TracedValue:
    """x sliced in the dimensions where it is known from where."""
    low = tuple(int(b.known) if b.known is not None else 0 for b in begins)
    high = tuple(a + s if b.known is not None else n for a, s, b, n in zip(low, sizes, begins, x.shape))
    if all(a == 0 for a in low) and high == x.shape:
        return x
    return site.op("slice", x, start_indices=low, limit_indices=high, strides=(1,) * len(low))


def _clamped(site: OpSite, start: TracedValue, most: int) -> TracedValue:
    """A scalar index within 0 and `most`, int32."""
    if most == 0:
        return site.t.number(0, int32)
    return _as_int32(site, site.op("clamp", *(site.t.number(0, start.type.dtype), start), _like(site, most, start)))


def _like(site: OpSite, value: int, entry: TracedValue) -> TracedValue:
    return site.t.number(min(value, int(entry.type.dtype.limits[1])), entry.type.dtype, entry.shape)


def _as_int32(site: OpSite, ids: TracedValue) -> TracedValue:
    return ids if ids.type.dtype is int32 else site.op("convert", ids, dtype=int32)


def _counted(site: OpSite, begin: TracedValue, size: int) -> TracedValue:
    """begin, begin + 1, ...: `size` of them."""
    line = known(np.arange(size, dtype=np.int32), TensorType((size,), int32))
    return site.op("add", site.t.broadcast(begin, (size,)), line)


def _take(site: OpSite, x: TracedValue, dim: int, ids: TracedValue) -> TracedValue:
    """The elements along one dimension that have these numbers [J]."""
    order = (dim, *(d for d in range(len(x.shape)) if d != dim))
    moved = transposed(site, x, order)
    table = site.op("reshape", moved, shape=(moved.shape[0], prod(moved.shape[1:])))
    rows = site.op("reshape", take_rows(site, table, ids), shape=(*ids.shape, *moved.shape[1:]))
    return transposed(site, rows, tuple(np.argsort(order).tolist()))


def take_rows(site: OpSite, table: TracedValue, ids: TracedValue) -> TracedValue:
    """table [V, C] at ids [...], known to be within: [..., C]."""
    rank, first = len(ids.shape), _first_of_run(ids)
    if first is not None:
        limits = first + ids.type.size, table.shape[1]
        rows = site.op("slice", table, start_indices=(first, 0), limit_indices=limits, strides=(1, 1))
        return site.op("reshape", rows, shape=(*ids.shape, table.shape[1])) if rank != 1 else rows
    return site.op(
        "gather",
        table,
        ids,
        offset_dims=(rank,),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        index_vector_dim=rank,
        slice_sizes=(1, table.shape[1]),
    )


def _first_of_run(ids: TracedValue) -> int | None:
    """The first of numbers that are known and follow each other; None for others."""
    if ids.known is None or ids.type.size == 0:
        return None
    line = np.asarray(ids.known, np.int64).reshape(-1)
    return int(line[0]) if (np.diff(line) == 1).all() else None


@lowers("stablehlo.dynamic_update_slice")
def dynamic_update_slice(site: OpSite) -> TracedValue:
    """Each element of x asks which element of the update lies over it, if any."""
    x, update, *starts = site.operands
    updated = site.t.updated(x, update, starts)
    if updated is not None:
        return updated
    begins = [_clamped(site, s, n - size) for s, n, size in zip(starts, x.shape, update.shape)]
    if all(b.known is not None for b in begins):
        return _placed(site, x, update, [int(b.known) for b in begins if b.known is not None])
    covered: TracedValue | None = None
    for dim, (begin, size, whole) in enumerate(zip(begins, update.shape, x.shape)):
        if size == whole:
            continue
        line = known(np.arange(whole, dtype=np.int32), TensorType((whole,), int32))
        place = site.op("subtract", line, site.t.broadcast(begin, (whole,)))
        inside = site.op(
            "and",
            *(
                site.op("compare", place, site.t.number(n, int32, (whole,)), comparison_direction=d)
                for n, d in ((0, "GE"), (size, "LT"))
            ),
        )
        update = _grown(site, update, dim, place, size, whole)
        inside = site.op("broadcast_in_dim", inside, shape=x.shape, broadcast_dimensions=(dim,))
        covered = inside if covered is None else site.op("and", covered, inside)
    return update if covered is None else site.op("select", covered, update, x)


def _grown(site: OpSite, update: TracedValue, dim: int, place: TracedValue, size: int, whole: int) -> TracedValue:
    """The update with `whole` elements along a dimension: of each place the element that lies over it."""
    if size == 1:
        shape = tuple(whole if d == dim else n for d, n in enumerate(update.shape))
        return site.op("broadcast_in_dim", update, shape=shape, broadcast_dimensions=tuple(range(len(shape))))
    low, high = (site.t.number(n, int32) for n in (0, size - 1))
    return _take(site, update, dim, site.op("clamp", low, place, high))


def _placed(site: OpSite, x: TracedValue, update: TracedValue, begins: Sequence[int]) -> TracedValue:
    """The update at a known place: pieces of x around it along one dimension, then around that along the next."""
    for dim in reversed(range(len(begins))):
        low, high = begins[dim], begins[dim] + update.shape[dim]
        if (low, high) == (0, x.shape[dim]):
            continue
        around = []
        for a, b in ((0, low), (high, x.shape[dim])):
            start = [*begins[:dim], a, *([0] * (len(begins) - dim - 1))]
            limit = [*(s + n for s, n in zip(begins[:dim], update.shape[:dim])), b, *x.shape[dim + 1 :]]
            around.append(
                site.op(
                    "slice", x, start_indices=tuple(start), limit_indices=tuple(limit), strides=(1,) * len(begins)
                )
            )
        parts = [p for p in (around[0], update, around[1]) if p.shape[dim]]
        update = site.op("concatenate", *parts, dimension=dim) if len(parts) > 1 else parts[0]
    return update


# -- windows by index -----------------------------------------------------------------------------------------------


@dataclass
class _Rows:
    """Windows of a tensor as rows of a table."""

    front: list[int]  # the dimensions that come in front
    rest: list[int]
    # the numbers of rows, [batch..., size of each window dimension in front that is no single element...]
    ids: TracedValue
    inside: TracedValue | None  # where a window lies within the tensor, of the same shape; None where all do
    sizes: tuple[int, ...]

    def count(self, shape: Sequence[int]) -> int:
        """Rows of the table."""
        return prod(shape[d] for d in self.front)


def _rows(
    site: OpSite,
    shape: Sequence[int],
    sizes: Sequence[int],
    indices: TracedValue,
    vector_dim: int,
    index_map: Sequence[int],
    batching: Sequence[int],
    indices_batching: Sequence[int],
    clamp: bool,
) -> _Rows:
    """Where windows of `sizes` lie in a tensor of `shape`. clamp: whether those that leave it are moved inside."""
    vectors = _vectors(site, indices, vector_dim)
    batch = vectors[0].shape if vectors else tuple(n for a, n in enumerate(indices.shape) if a != vector_dim)
    front, number, inside = [], None, None
    windows = [d for d in range(len(shape)) if d not in batching and sizes[d] != shape[d] and sizes[d] > 1]
    begins = dict(zip(index_map, vectors))
    space = (*batch, *(sizes[d] for d in windows))
    for dim in range(len(shape)):
        if dim in batching:
            source = indices_batching[list(batching).index(dim)]
            place = source - (source > vector_dim)
            begin = site.op("iota", shape=batch, dtype=int32, iota_dimension=place)
        elif dim in begins:
            begin, ok = _begin(site, begins[dim], shape[dim] - sizes[dim], clamp)
            inside = ok if inside is None or ok is None else site.op("and", inside, ok)
            inside = inside if ok is None or inside is not None else ok
            if sizes[dim] == shape[dim]:
                continue
        elif sizes[dim] == shape[dim]:
            continue
        else:
            begin = site.t.number(0, int32, batch)
        front.append(dim)
        here = site.op("broadcast_in_dim", begin, shape=space, broadcast_dimensions=tuple(range(len(batch))))
        if dim in windows:
            axis = len(batch) + windows.index(dim)
            here = site.op("add", here, site.op("iota", shape=space, dtype=int32, iota_dimension=axis))
        number = here if number is None else _flat(site, number, shape[dim], here)
    number = site.t.number(0, int32, space) if number is None else number
    if inside is not None:
        inside = site.op("broadcast_in_dim", inside, shape=space, broadcast_dimensions=tuple(range(len(batch))))
    return _Rows(front, [d for d in range(len(shape)) if d not in front], number, inside, tuple(sizes))


def _flat(site: OpSite, number: TracedValue, size: int, here: TracedValue) -> TracedValue:
    return site.op("add", site.op("multiply", number, site.t.number(size, int32, number.shape)), here)


def _vectors(site: OpSite, indices: TracedValue, vector_dim: int) -> list[TracedValue]:
    """The index of each dimension that is indexed, [batch...]."""
    if vector_dim == len(indices.shape):
        return [indices]
    found = []
    shape = tuple(n for a, n in enumerate(indices.shape) if a != vector_dim)
    for i in range(indices.shape[vector_dim]):
        low = tuple(i if a == vector_dim else 0 for a in range(len(indices.shape)))
        high = tuple(i + 1 if a == vector_dim else n for a, n in enumerate(indices.shape))
        one = site.op("slice", indices, start_indices=low, limit_indices=high, strides=(1,) * len(low))
        found.append(site.op("reshape", one, shape=shape))
    return found


def _begin(site: OpSite, index: TracedValue, most: int, clamp: bool) -> tuple[TracedValue, TracedValue | None]:
    """Where windows begin, int32, within 0 and `most`; if not clamped, also whether they do of themselves."""
    kind = index.type.dtype
    low, high = site.t.number(0, kind), site.t.number(min(most, int(kind.limits[1])), kind)
    begin = _as_int32(site, site.op("clamp", low, index, high)) if most else site.t.number(0, int32, index.shape)
    if clamp:
        return begin, None
    inside = site.op("compare", index, _like(site, most, index), comparison_direction="LE")
    if kind not in (uint32, UINT64):
        above = site.op("compare", index, _like(site, 0, index), comparison_direction="GE")
        inside = site.op("and", inside, above)
    return begin, inside


@lowers("stablehlo.gather", "stablehlo.dynamic_gather")
def gather(site: OpSite) -> TracedValue:
    """Rows of the dimensions that are indexed; one element of each row stays a gather of its own."""
    x, indices = site.operands[:2]
    numbers = mlir.gather_numbers(site.raw)
    sizes = mlir.ints(site.raw, "slice_sizes") or tuple(int(n) for n in np.asarray(site.operands[2].known))
    if _is_along(x.shape, indices.shape, numbers, sizes):
        ids = _as_int32(site, site.op("clamp", *_ends(site, indices, x.shape[-1])))
        ids = ids if ids.shape == site.type.shape else site.op("reshape", ids, shape=site.type.shape)
        numbers["index_vector_dim"] = len(ids.shape)
        return site.op("gather", x, ids, **numbers, slice_sizes=sizes)
    rows = _rows(
        site,
        x.shape,
        sizes,
        indices,
        numbers["index_vector_dim"],
        numbers["start_index_map"],
        numbers["operand_batching_dims"],
        numbers["start_indices_batching_dims"],
        clamp=True,
    )
    if not rows.front or 0 in site.type.shape:
        return _without_rows(site, x, rows)
    moved = transposed(site, x, (*rows.front, *rows.rest))
    table = site.op("reshape", moved, shape=(rows.count(x.shape), prod(x.shape[d] for d in rows.rest)))
    taken = take_rows(site, table, rows.ids)
    return _in_order(site, taken, x, rows, numbers)


def _ends(site: OpSite, indices: TracedValue, size: int) -> tuple[TracedValue, TracedValue, TracedValue]:
    kind = indices.type.dtype
    return site.t.number(0, kind), indices, site.t.number(min(size - 1, int(kind.limits[1])), kind)


def _is_along(shape: Sequence[int], indices: Sequence[int], numbers: dict[str, Any], sizes: Sequence[int]) -> bool:
    """Whether it takes one element of each row, in order, or several."""
    last, vector = len(shape) - 1, numbers["index_vector_dim"]
    lead = tuple(range(last))
    return (
        last > 0
        and numbers["operand_batching_dims"] == lead
        and numbers["start_indices_batching_dims"] == lead
        and numbers["collapsed_slice_dims"] == (last,)
        and numbers["offset_dims"] == ()
        and vector in (last, last + 1)
        and prod(indices[vector:]) == 1
        and prod(sizes) == 1
    )


def _without_rows(site: OpSite, x: TracedValue, rows: _Rows) -> TracedValue:
    """Windows that are all of x, as often as there are indices; or nothing at all."""
    shape = site.type.shape
    if 0 in shape:
        return site.t.number(0, x.type.dtype, shape)
    numbers = mlir.gather_numbers(site.raw)
    kept = [d for d in range(len(x.shape)) if d not in numbers["collapsed_slice_dims"]]
    flat = site.op("reshape", x, shape=tuple(x.shape[d] for d in kept))
    return site.op("broadcast_in_dim", flat, shape=shape, broadcast_dimensions=numbers["offset_dims"])


def _in_order(site: OpSite, taken: TracedValue, x: TracedValue, rows: _Rows, numbers: dict[str, Any]) -> TracedValue:
    """Rows [batch..., windows..., C] with dimensions in the order of the result."""
    shape, offset = site.type.shape, numbers["offset_dims"]
    dropped = (*numbers["collapsed_slice_dims"], *numbers["operand_batching_dims"])
    batch = len(shape) - len(offset)
    windows = [d for d in rows.front if d not in dropped and rows.sizes[d] != 1]
    axes = {d: batch + i for i, d in enumerate([*windows, *rows.rest])}
    split = site.op("reshape", taken, shape=(*rows.ids.shape, *(x.shape[d] for d in rows.rest)))
    kept = iter([d for d in range(len(x.shape)) if d not in dropped])
    line = iter(range(batch))
    wanted = [axes.get(next(kept)) if a in offset else next(line) for a in range(len(shape))]
    order = tuple(a for a in wanted if a is not None)
    missing = [a for a in range(len(split.shape)) if a not in order]  # dimensions of one element, collapsed
    found = transposed(site, split, (*order, *missing))
    return found if found.shape == shape else site.op("reshape", found, shape=shape)


# -- scatter --------------------------------------------------------------------------------------------------------
