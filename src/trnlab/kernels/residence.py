# SPDX-License-Identifier: Apache-2.0
"""Tensors that stay in SBUF from the call that makes them to the calls that read them.

Such a tensor has a home: a tile [128, blocks, columns] whose partition p of block i is row 128 i + p, the layout in
which loads bring rows into SBUF anyway. Kernels know a tensor by views of HBM; of one that stays on chip the view is
of a stand-in, a buffer that no instruction can name, and `ResidentTensor.blocks` says where in the tile its elements
lie. A kernel that has no use for the tile as it is names the stand-in after all, and is refused when its routine is
built.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import DType
from trnlab.program.access import AP, Buffer, whole
from trnlab.program.builder import Builder
from trnlab.program.strided import Strided, row_major

P = 128  # partitions, and rows of a block
SLOT = 256  # columns on which dependencies are tracked separately, where they divide a row


class HomeMatrix(NamedTuple):
    """Rows [row, +rows) and columns [col, +cols) of a home, all of its rows and columns counted through."""

    row: int
    rows: int
    col: int
    cols: int


@dataclass(frozen=True)
class Home:
    """Where a tensor of some shape lies: its dimensions `row_dims` make the rows, in their order, the others the
    columns. address: byte of each partition where it begins."""

    shape: tuple[int, ...]
    row_dims: tuple[int, ...]
    dtype: DType
    address: int = 0

    @property
    def rows(self) -> int:
        """R."""
        return prod(self.shape[d] for d in self.row_dims)

    @property
    def cols(self) -> int:
        """C."""
        return prod(self.shape) // max(self.rows, 1)

    @property
    def nbytes(self) -> int:
        """Bytes of each partition."""
        return -(-self.rows // P) * self.cols * self.dtype.itemsize

    def matrix(self, seen: Strided[Any], row_dims: int) -> HomeMatrix | None:
        """Where the elements of a view of the tensor lie, its first `row_dims` dimensions being rows, the others
        columns; None where they are no block of adjacent rows and columns in that order."""
        starts, steps = self._start(seen.offset), list[tuple[bool, int, int]]()
        reach = list(starts)
        for count, stride in zip(seen.shape, seen.strides):
            if count == 1:
                continue
            found = self._axis(stride)
            if found is None:
                return None
            axis, times = found
            reach[axis] += times * (count - 1)
            steps.append((axis in self.row_dims, times * self._weight(axis), count))
        if any(last >= extent for last, extent in zip(reach, self.shape)):
            return None
        head = sum(count > 1 for count in seen.shape[:row_dims])
        sizes = _adjacent(steps[:head], True), _adjacent(steps[head:], False)
        if sizes[0] is None or sizes[1] is None:
            return None
        row = sum(starts[d] * self._weight(d) for d in self.row_dims)
        col = sum(s * self._weight(d) for d, s in enumerate(starts) if d not in self.row_dims)
        return HomeMatrix(row, sizes[0], col, sizes[1])

    def _start(self, offset: int) -> list[int]:
        """The indices of the element at an offset in memory."""
        found = []
        for extent in reversed(self.shape):
            offset, index = divmod(offset, extent)
            found.append(index)
        return found[::-1]

    def _axis(self, stride: int) -> tuple[int, int] | None:
        """The dimension along which a stride in memory leads, and by how many elements of it."""
        for axis, step in enumerate(row_major(self.shape)):
            if self.shape[axis] > 1 and 0 < step <= stride:
                return (axis, stride // step) if stride % step == 0 else None
        return None

    def _weight(self, axis: int) -> int:
        """Rows, or columns, from one element of a dimension to the next."""
        others = (
            self.row_dims if axis in self.row_dims else [d for d in range(len(self.shape)) if d not in self.row_dims]
        )
        return prod(self.shape[d] for d in others if d > axis)


def _adjacent(steps: list[tuple[bool, int, int]], rows: bool) -> int | None:
    """How many rows (or columns) dimensions of (is a row, step, count) run through one by one; None for others."""
    total = 1
    for is_row, step, count in reversed(steps):
        if is_row is not rows or step != total:
            return None
        total *= count
    return total


@dataclass(frozen=True)
class ResidentTensor:
    """A tensor at home in a routine: `tile` is [128, blocks, columns], of fewer partitions where rows are fewer."""

    home: Home
    tile: AP

    def blocks(self, seen: Strided[Any], row_dims: int) -> AP | None:
        """A view as [128, blocks, columns] of the tile, which begins with a whole block; None for other views."""
        found = self.home.matrix(seen, row_dims)
        if found is None or found.row % P:
            return None
        first, count = found.row // P, -(-found.rows // P)
        return self.tile[:, first : first + count, found.col : found.col + found.cols]


def keep(b: Builder, name: str, home: Home) -> AP:
    """The stand-in of a tensor at home in SBUF, whose tile `of` finds."""
    slots = -(-home.rows // P) * (home.cols // SLOT if home.cols % SLOT == 0 else 1)
    shape = (min(P, home.rows), -(-home.rows // P), home.cols)
    tile = b.resident(shape, home.dtype, home.address, name=name, slots=slots)
    nbytes = prod(home.shape) * home.dtype.itemsize
    stand_in = Buffer(-1 - len(b.residents), name, Memory.HBM, home.shape, home.dtype, nbytes, kind="resident")
    b.residents[stand_in.id] = ResidentTensor(home, tile)
    return whole(stand_in)


def of(b: Builder, buffer: Buffer) -> ResidentTensor | None:
    """The tensor at home that a buffer stands in for, if it does."""
    found: ResidentTensor | None = b.residents.get(buffer.id)
    return found
