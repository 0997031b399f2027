# SPDX-License-Identifier: Apache-2.0
"""Strided views of HBM tensors as the access patterns of transfers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from trnlab.numerics.dtypes import DType
from trnlab.program.access import AP, MAX_FREE_DIMS, Buffer, hbm_view
from trnlab.program.strided import ONE_ELEMENT, Dims, Strided, row_major


class HbmView(Strided[Buffer]):
    """Elements of an HBM buffer seen as an array."""

    __slots__ = ()

    @property
    def dtype(self) -> DType:
        """Format of the elements."""
        return self.base.dtype

    def ap(self, rows: int = 1) -> AP:
        """As an access pattern: the first `rows` dimensions must merge into one stride and become the partition.

        The rest become free dimensions, merged where possible. Raises AssertionError when it takes more than the four
        free dimensions that an access pattern has, and for a view of no elements.
        """
        head, free = self.collapsed(0, rows) or ((0, 1),), self.collapsed(rows) or ONE_ELEMENT
        assert self.size, self.shape
        assert len(head) == 1, (self.shape, self.strides, rows)
        assert len(free) <= MAX_FREE_DIMS, (self.shape, self.strides, rows)
        return hbm_view(self.base, self.offset, (head[0], *free))


@dataclass(frozen=True, slots=True)
class TilePart:
    """Part of a tile: partitions [partition, +partitions) and columns [col, +cols) are the elements of `ap`."""

    partition: int
    partitions: int
    col: int
    cols: int
    ap: AP


def rectangle(view: HbmView, rows: int, row: int, num_rows: int, col: int, num_cols: int) -> list[TilePart]:
    """Rows [row, +num_rows) and columns [col, +num_cols) of a view, as few access patterns as it takes.

    The first `rows` dimensions of the view, flattened, are its rows (partitions of the tile); the others, flattened,
    its columns. A range that is not affine (it crosses the edge of an outer dimension) is cut there.
    """
    row_runs = _runs(view.collapsed(0, rows), row, num_rows)
    col_runs = _runs(view.collapsed(rows), col, num_cols)
    pieces = []
    for r0, r_offset, r_dims in row_runs:
        for c0, c_offset, c_dims in col_runs:
            height, width = prod(c for _, c in r_dims), prod(c for _, c in c_dims)
            ap = hbm_view(view.base, view.offset + r_offset + c_offset, (*r_dims, *c_dims))
            pieces.append(TilePart(r0, height, c0, width, ap))
    return pieces


_Run = tuple[int, int, Dims]  # position in the range, element offset, (stride, count)...


def _runs(dims: Dims, start: int, count: int) -> list[_Run]:
    """Cut the flat range [start, +count) of collapsed dimensions into affine runs of at most two."""
    if not dims:
        return [(0, 0, ((0, 1),))]
    if len(dims) == 1:
        return [(0, start * dims[0][0], ((dims[0][0], count),))]
    outer, (step, width) = dims[:-1], dims[-1]
    runs: list[_Run] = []
    done = 0
    while done < count:
        index, within = divmod(start + done, width)
        offset, span = _unflatten(outer, index)
        whole_rows = min((count - done) // width, span) if within == 0 else 0
        if whole_rows > 1:
            runs.append((done, offset, ((outer[-1][0], whole_rows), (step, width))))
            done += whole_rows * width
        else:
            length = min(width - within, count - done)
            runs.append((done, offset + within * step, ((step, length),)))
            done += length
    return runs


def _unflatten(dims: Dims, index: int) -> tuple[int, int]:
    """Element offset of flat position `index`, and how many positions remain in the innermost dimension."""
    span = dims[-1][1] - index % dims[-1][1]
    offset = 0
    for stride, count in reversed(dims):
        index, i = divmod(index, count)
        offset += i * stride
    return offset, span


def together(parts: Sequence[Sequence[TilePart]], rows: int) -> Iterator[TilePart]:
    """The pieces of each part of some rows; those of all parts in one access pattern where they are a step apart."""
    if len(parts) == 1:
        yield from parts[0]
        return
    for pieces in zip(*parts, strict=True) if len({len(p) for p in parts}) == 1 else ():
        first, step = pieces[0].ap, pieces[1].ap.offset - pieces[0].ap.offset if len(pieces) > 1 else 0
        alike = all(replace(p.ap, offset=first.offset) == first for p in pieces)
        even = all(p.ap.offset == first.offset + i * step for i, p in enumerate(pieces))
        if len(pieces) > 1 and alike and even and pieces[0].partitions == rows and len(first.dims) < MAX_FREE_DIMS:
            dims = ((first.partition_step // first.dtype.itemsize, first.partitions), *first.dims)
            ap = AP(first.buffer, first.dtype, 0, len(pieces), step, first.offset, dims)
            yield replace(pieces[0], partitions=rows * len(pieces), ap=ap)
        else:
            yield from (replace(p, partition=i * rows + p.partition) for i, p in enumerate(pieces))
    if len({len(p) for p in parts}) > 1:
        yield from (replace(p, partition=i * rows + p.partition) for i, part in enumerate(parts) for p in part)


def view_of(ap: AP, seen: Strided[Any]) -> HbmView:
    """A view of other memory as the same view of an HBM buffer."""
    return HbmView(ap.buffer, seen.offset, seen.shape, seen.strides)


def full(ap: AP, shape: tuple[int, ...] | None = None) -> HbmView:
    """The whole of an HBM buffer, row-major, in its own shape or in another one of the same size."""
    shape = ap.buffer.shape if shape is None else shape
    return HbmView(ap.buffer, 0, shape, row_major(shape))


def merged(*views: HbmView) -> tuple[HbmView, ...]:
    """Views of one shape in as few dimensions as possible, one at least: neighbours become one where all of them step
    over them evenly."""
    dims: list[tuple[int, ...]] = []  # count, and the stride of each view
    for count, *strides in zip(views[0].shape, *(view.strides for view in views)):
        if count == 1:
            continue
        if dims and all(outer == inner * count for outer, inner in zip(dims[-1][1:], strides)):
            dims[-1] = dims[-1][0] * count, *strides
        else:
            dims.append((count, *strides))
    shape, *found = zip(*dims or [(1,) * (len(views) + 1)])
    return tuple(view.like(view.offset, shape, strides) for view, strides in zip(views, found))


def merged_rows(*views: HbmView) -> list[HbmView]:
    """Views of as many rows each, their last dimensions, with the others in as few dimensions as possible."""
    rows = merged(*(view[(*(slice(None) for _ in view.shape[1:]), 0)] for view in views))
    return [
        view.like(view.offset, (*lead.shape, view.shape[-1]), (*lead.strides, view.strides[-1]))
        for view, lead in zip(views, rows)
    ]
