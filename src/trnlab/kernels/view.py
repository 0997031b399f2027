# SPDX-License-Identifier: Apache-2.0
"""Strided views of HBM tensors: slices, permutations and broadcasts that cost nothing but a DMA pattern."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from trnlab.numerics.dtypes import DType
from trnlab.program.access import AP, MAX_FREE_DIMS, Buffer, hbm_view


@dataclass(frozen=True, slots=True)
class View:
    """Elements of an HBM buffer seen as an array: `offset` and `strides` in elements."""

    buffer: Buffer
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self) -> DType:
        """Format of the elements."""
        return self.buffer.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __getitem__(self, index: Any) -> View:
        """NumPy basic indexing with unit steps: an int drops its dimension."""
        index = index if isinstance(index, tuple) else (index,)
        offset, shape, strides = self.offset, [], []
        for axis, (count, stride) in enumerate(zip(self.shape, self.strides)):
            item = index[axis] if axis < len(index) else slice(None)
            if isinstance(item, int):
                assert 0 <= item < count
                offset += item * stride
                continue
            lo, hi = item.start or 0, count if item.stop is None else item.stop
            assert 0 <= lo < hi <= count, (self.shape, index)
            assert item.step in (None, 1), index
            offset += lo * stride
            shape.append(hi - lo)
            strides.append(stride)
        return View(self.buffer, offset, tuple(shape), tuple(strides))

    def permute(self, *order: int) -> View:
        """Dimensions in another order."""
        return View(
            self.buffer, self.offset, tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order)
        )

    def expand(self, axis: int, count: int) -> View:
        """A new dimension that repeats the same elements."""
        return View(
            self.buffer,
            self.offset,
            (*self.shape[:axis], count, *self.shape[axis:]),
            (*self.strides[:axis], 0, *self.strides[axis:]),
        )

    def collapsed(self) -> tuple[tuple[int, int], ...]:
        """(stride, count) with neighbours merged where they make one stride, ones dropped."""
        dims: list[tuple[int, int]] = []
        for stride, count in zip(self.strides, self.shape):
            if count == 1:
                continue
            if dims and dims[-1][0] == stride * count:
                dims[-1] = (stride, dims[-1][1] * count)
            else:
                dims.append((stride, count))
        return tuple(dims)

    def ap(self, rows: int = 1) -> AP:
        """As an access pattern: the first `rows` dimensions must merge into one stride and become the partition.

        The rest become free dimensions, merged where possible. Raises AssertionError when it takes more than the four
        free dimensions that an access pattern has.
        """
        head = View(self.buffer, 0, self.shape[:rows], self.strides[:rows]).collapsed() or ((0, 1),)
        free = View(self.buffer, 0, self.shape[rows:], self.strides[rows:]).collapsed() or ((1, 1),)
        assert len(head) == 1, (self.shape, self.strides, rows)
        assert len(free) <= MAX_FREE_DIMS, (self.shape, self.strides, rows)
        return hbm_view(self.buffer, self.offset, (head[0], *free))


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a tile: partitions [partition, +partitions) and columns [col, +cols) are the elements of `ap`."""

    partition: int
    partitions: int
    col: int
    cols: int
    ap: AP


def rectangle(view: View, rows: int, row: int, num_rows: int, col: int, num_cols: int) -> list[Piece]:
    """Rows [row, +num_rows) and columns [col, +num_cols) of a view, as few access patterns as it takes.

    The first `rows` dimensions of the view, flattened, are its rows (partitions of the tile); the others, flattened,
    its columns. A range that is not affine (it crosses the edge of an outer dimension) is cut there.
    """
    row_runs = _runs(view.shape[:rows], view.strides[:rows], row, num_rows)
    col_runs = _runs(view.shape[rows:], view.strides[rows:], col, num_cols)
    pieces = []
    for r0, r_offset, r_dims in row_runs:
        for c0, c_offset, c_dims in col_runs:
            height, width = prod(c for _, c in r_dims), prod(c for _, c in c_dims)
            ap = hbm_view(view.buffer, view.offset + r_offset + c_offset, (*r_dims, *c_dims))
            pieces.append(Piece(r0, height, c0, width, ap))
    return pieces


_Run = tuple[int, int, tuple[tuple[int, int], ...]]  # position in the range, element offset, (stride, count)...


def _runs(shape: tuple[int, ...], strides: tuple[int, ...], start: int, count: int) -> list[_Run]:
    """Cut the flat range [start, +count) of a strided box into affine runs of at most two dimensions."""
    dims = View(None, 0, shape, strides).collapsed()  # type: ignore[arg-type]
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


def _unflatten(dims: tuple[tuple[int, int], ...], index: int) -> tuple[int, int]:
    """Element offset of flat position `index`, and how many positions remain in the innermost dimension."""
    span = dims[-1][1] - index % dims[-1][1]
    offset = 0
    for stride, count in reversed(dims):
        index, i = divmod(index, count)
        offset += i * stride
    return offset, span


def full(ap: AP, shape: tuple[int, ...] | None = None) -> View:
    """The whole of an HBM buffer, row-major, in its own shape or in another one of the same size."""
    shape = ap.buffer.shape if shape is None else shape
    return View(ap.buffer, 0, shape, row_major(shape))


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous array, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
