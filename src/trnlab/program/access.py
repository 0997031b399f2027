# SPDX-License-Identifier: Apache-2.0
"""Buffers and access patterns: where the operands of instructions are.

Shape letters: P partition, F free. On chip a buffer is a byte range in each of some partitions; in HBM it is one run
of bytes, and the first dimension of an access pattern plays the part of the partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import prod
from typing import Any, NoReturn

import numpy as np

from trnlab.errors import ConstraintError
from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import BY_CODE, DType, dtype
from trnlab.program.operand_loops import fill_records
from trnlab.program.strided import ONE_ELEMENT, Dims, collapsed, split

MAX_FREE_DIMS = 4
REFERENCE = 5  # ints that name an operand while a routine is recorded, see `operand_records`
_ALL = slice(None)
_HBM, _PSUM = Memory.HBM, Memory.PSUM  # to look a member up takes 200 ns in Python 3.11
# Pattern, buffer, start_partition, offset; and all that the rules of an instruction may depend on: operands for which
# that is equal are equally legal.
Recorded = tuple[tuple[int, int, int, int], tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Grid:
    """A tensor in HBM as rows of `pitch` bytes, cut for dependencies at rows `rows` and at bytes `columns` of each.

    Both begin with 0 and end behind the last. by_column: its slots are numbered down the columns, not along the rows.
    """

    pitch: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    by_column: bool

    def __len__(self) -> int:
        return (len(self.rows) - 1) * (len(self.columns) - 1)

    def extents(self) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
        """First byte of each slot, and the one behind its last; others may have bytes in between."""
        rows, columns = np.array(self.rows, np.int64) * self.pitch, np.array(self.columns, np.int64)
        low = rows[:-1, None] + columns[None, :-1]
        high = rows[1:, None] - self.pitch + columns[None, 1:]
        return (low.T.ravel(), high.T.ravel()) if self.by_column else (low.ravel(), high.ravel())


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take three times as long to make, and kernels make many
class Buffer:
    """Memory that instructions of one routine read and write. It never changes."""

    id: int
    name: str
    memory: Memory
    shape: tuple[int, ...]
    dtype: DType
    nbytes: int  # bytes per partition on chip, all bytes in HBM
    first_partition: int = 0
    partitions: int = 1
    # byte offset within the partition (on chip), or within the routine's scratch (HBM scratch); parameters get
    # theirs when the routine is called. Dependencies between instructions are tracked per slot, see
    # `routine.Routine`; `slot_bytes` is the piece of this buffer that makes one slot (0: a tile that is cut where
    # its accesses begin and end), `grid` another way to cut memory in HBM.
    address: int = 0
    slot_bytes: int = 1
    kind: str = "tile"  # "param", "scratch", "tile", or "resident": a tile that other calls fill or find
    grid: Grid | None = None

    @property
    def hbm_slots(self) -> int:
        """Into how many slots memory in HBM is cut."""
        return len(self.grid) if self.grid is not None else -(-self.nbytes // self.slot_bytes)

    def again(self, number: int, name: str) -> Buffer:
        """Another buffer that is like this one."""
        return Buffer(
            number,
            name,
            self.memory,
            self.shape,
            self.dtype,
            self.nbytes,
            self.first_partition,
            self.partitions,
            self.address,
            self.slot_bytes,
            self.kind,
            self.grid,
        )

    def at(self, address: int) -> Buffer:
        """The buffer at another address."""
        return Buffer(
            self.id,
            self.name,
            self.memory,
            self.shape,
            self.dtype,
            self.nbytes,
            self.first_partition,
            self.partitions,
            address,
            self.slot_bytes,
            self.kind,
            self.grid,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What access patterns of one form share, wherever they lie. There is one object per form, see `pattern_of`."""

    number: int
    # dtype, partitions, partition_step, then step and count of the four free dimensions, padded in front; as in
    # `routine.OPERAND_COLUMNS`
    columns: tuple[int, ...]
    # low, high: first and last byte touched, from the pattern's offset
    low: int
    high: int
    is_hbm: int

    @property
    def dtype(self) -> DType:
        """The format of the elements."""
        return BY_CODE[self.columns[0]]

    @property
    def partitions(self) -> int:
        """P."""
        return self.columns[1]

    @property
    def partition_step(self) -> int:
        """Bytes between rows in HBM."""
        return self.columns[2]

    @property
    def dims(self) -> Dims:
        """All four free dimensions."""
        return tuple(zip(self.columns[3::2], self.columns[4::2]))


_patterns: list[Pattern] = []


@cache
def pattern_of(memory: int, code: int, partitions: int, partition_step: int, dims: Dims, reach: int = 0) -> Pattern:
    """The one pattern of this form. `dims` are (step in elements, count), `partition_step` is in bytes.

    Memory and format are given as numbers, which are quicker to look up than the objects.
    """
    itemsize = BY_CODE[code].itemsize
    low = high = 0
    for step, count in dims:
        span = step * (count - 1)
        low, high = low + min(span, 0), high + max(span, 0)
    high = max(high, reach - 1)
    low, high = low * itemsize, (high + 1) * itemsize - 1
    if memory == _HBM:
        high += partition_step * (partitions - 1)
    padded = ((0, 1),) * (MAX_FREE_DIMS - len(dims)) + dims
    columns = (code, partitions, partition_step, *(n for dim in padded for n in dim))
    _patterns.append(Pattern(len(_patterns), columns, low, high, int(memory == _HBM)))
    return _patterns[-1]


def pattern(number: int) -> Pattern:
    """The form of this number."""
    return _patterns[number]


def operand_records(references: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of `routine.OPERAND_COLUMNS` from rows of role, pattern, buffer, start_partition, offset.

    The columns first and last are the first and the last byte touched within the buffer.
    """
    references = np.require(references, np.int64, ("C", "W"))
    table, row = _tables(references[:, 1])
    records = np.empty((len(references), table.shape[1]), np.int64)
    fill_records(references, table, row, records)
    return records


def forms(
    numbers: np.ndarray[Any, np.dtype[np.int64]],
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """A row of `routine.OPERAND_COLUMNS` for each pattern that occurs, as if at offset 0, and the row of each number.

    For whoever needs a few columns only: there are far fewer patterns than operands.
    """
    table, row = _tables(numbers)
    return table, row[numbers]


def _tables(
    numbers: np.ndarray[Any, np.dtype[np.int64]],
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """The same, with the row of each pattern by its number."""
    used = np.flatnonzero(np.bincount(numbers))
    row = np.zeros(len(_patterns), np.int64)
    row[used] = np.arange(len(used))
    table = np.zeros((len(used), 18), np.int64)
    for at, number in enumerate(used.tolist()):
        p = _patterns[number]
        table[at, [2, 4, 5, *range(7, 18)]] = (*p.columns, p.low, p.high, p.is_hbm)
    return table, row


class Reference:
    """What an instruction is given as an operand: an access pattern, or a view that stands for one."""

    __slots__ = ("_recorded",)

    _recorded: Recorded | None

    def recorded(self) -> Recorded:
        """What is written down of it. Raises ConstraintError for what lies outside of its buffer."""
        raise NotImplementedError

    def access(self) -> AP:
        """The access pattern."""
        raise NotImplementedError


@dataclass(slots=True, unsafe_hash=True)
class AP(Reference):
    """An access pattern: which elements of a buffer an instruction touches, in which order. It never changes.

    On chip: partitions [start_partition, +partitions) of the buffer, and in each the same free pattern.
    In HBM: `partition_step` bytes lie between the rows (0 repeats one row).
    `dims` are (step in elements, count), outermost first, at most four; no dims means one element.
    `offset` is in bytes, from the buffer's first byte (of the partition, on chip).
    `reach`: elements of a partition from the offset on that an index may pick from, see `isa.indirection`.
    """

    buffer: Buffer
    dtype: DType
    start_partition: int
    partitions: int
    partition_step: int
    offset: int
    dims: Dims
    reach: int = 0
    _recorded: Recorded | None = field(default=None, init=False, compare=False, repr=False)

    # -- what the instruction asks ------------------------------------------------------------------------------
    @property
    def memory(self) -> Memory:
        """Where the buffer lies."""
        return self.buffer.memory

    @property
    def first_partition(self) -> int:
        """Absolute partition of the first row (on chip)."""
        return self.buffer.first_partition + self.start_partition

    @property
    def free(self) -> int:
        """Elements per partition, F."""
        free = 1
        for _, count in self.dims:
            free *= count
        return free

    @property
    def shape(self) -> tuple[int, ...]:
        """[P, F...]."""
        return (self.partitions, *(count for _, count in self.dims))

    @property
    def contiguous_bytes(self) -> int:
        """Bytes of the longest adjacent run."""
        run = 1
        for step, count in reversed(self.dims):
            if count == 1:
                continue
            if step != run:
                return run * self.dtype.itemsize
            run *= count
        size = run * self.dtype.itemsize
        if self.memory is _HBM and self.partition_step == size:
            size *= self.partitions
        return size

    # -- views --------------------------------------------------------------------------------------------------
    def __getitem__(self, index: Any) -> AP:
        """Slice as NumPy would, unit steps only; the partition dimension always stays, an int drops a free one."""
        index = index if isinstance(index, tuple) else (index,)
        buffer, start, offset, dims = self.buffer, self.start_partition, self.offset, self.dims
        lo, hi = _bounds(index[0], self.partitions, self, 0)
        if buffer.memory is _HBM:
            offset += lo * self.partition_step
        else:
            start += lo
        if len(index) > 1:
            free, itemsize = [], self.dtype.itemsize
            for axis, dim in enumerate(dims, 1):
                one = index[axis] if axis < len(index) else _ALL
                if one.__class__ is slice and one.start is None and one.stop is None and one.step is None:
                    free.append(dim)
                    continue
                step, count = dim
                first, last = _bounds(one, count, self, axis)
                offset += first * step * itemsize
                if not isinstance(one, int):
                    free.append((step, last - first))
            dims = tuple(free)
        return AP(buffer, self.dtype, start, hi - lo, self.partition_step, offset, dims)

    def with_dims(self, *dims: tuple[int, int], skip: int = 0) -> AP:
        """The same partitions with another free pattern, `skip` elements further on."""
        return AP(
            self.buffer,
            self.dtype,
            self.start_partition,
            self.partitions,
            self.partition_step,
            self.offset + skip * self.dtype.itemsize,
            tuple(dims),
        )

    def split(self, axis: int, *counts: int) -> AP:
        """Split free dimension `axis` (0 is the first free one) into several."""
        step, count = self.dims[axis]
        assert prod(counts) == count, f"cannot split {count} into {counts}"
        return self.with_dims(*self.dims[:axis], *split(step, counts), *self.dims[axis + 1 :])

    def permute(self, *order: int) -> AP:
        """Reorder the free dimensions."""
        return self.with_dims(*(self.dims[i] for i in order))

    def repeat(self, axis: int, count: int) -> AP:
        """Insert a free dimension at `axis` that reads the same elements `count` times."""
        return self.with_dims(*self.dims[:axis], (0, count), *self.dims[axis:])

    def cast(self, to: DType | str) -> AP:
        """The same bytes read as another format of the same width."""
        to = dtype(to)
        assert to.itemsize == self.dtype.itemsize
        return AP(self.buffer, to, self.start_partition, self.partitions, self.partition_step, self.offset, self.dims)

    def joined_pairs(self, to: DType | str) -> AP:
        """The same bytes read as half as many elements, each of two neighbours; all else starts at even ones."""
        to, (*outer, (step, count)) = dtype(to), self.dims
        assert to.itemsize == 2 * self.dtype.itemsize
        assert step == 1
        assert not any(n % 2 for n in (count, self.offset, self.partition_step, *(s for s, _ in outer)))
        dims = (*((s // 2, n) for s, n in outer), (1, count // 2))
        return AP(self.buffer, to, self.start_partition, self.partitions, self.partition_step, self.offset, dims)

    def split_pairs(self, to: DType | str) -> AP:
        """[P, F] read as the two halves of each element, first those that come first: [P, 2, F] of half the width."""
        to, ((step, count),) = dtype(to), self.dims
        assert 2 * to.itemsize == self.dtype.itemsize
        dims = ((1, 2), (2 * step, count))
        return AP(self.buffer, to, self.start_partition, self.partitions, self.partition_step, self.offset, dims)

    # -- what is recorded ---------------------------------------------------------------------------------------
    def extent(self) -> tuple[int, int]:
        """First and last byte touched, relative to the buffer (within a partition, on chip)."""
        form = self._pattern()
        return self.offset + form.low, self.offset + form.high

    def access(self) -> AP:
        """Itself."""
        return self

    def recorded(self) -> Recorded:
        """What is written down of this operand. Raises ConstraintError for what lies outside of its buffer."""
        if self._recorded is None:
            buffer, form, offset, start = self.buffer, self._pattern(), self.offset, self.start_partition
            too_low = not form.is_hbm and start + self.partitions > buffer.partitions
            if too_low or offset + form.low < 0 or offset + form.high >= buffer.nbytes:
                self._outside()
            self._recorded = record_of(form.number, buffer, start, offset)
        return self._recorded

    def _pattern(self) -> Pattern:
        return pattern_of(
            int(self.buffer.memory), self.dtype.code, self.partitions, self.partition_step, self.dims, self.reach
        )

    def _outside(self) -> NoReturn:
        first, last = self.extent()
        raise ConstraintError(
            f"access outside of buffer {self.buffer.name!r}",
            code="TRN410",
            limit=f"{self.buffer.nbytes} bytes, {self.buffer.partitions} partitions",
            got=f"bytes {first}..{last}, partitions {self.start_partition}+{self.partitions}",
            remedy="slice the tile within its shape",
        )


def record_of(pattern: int, buffer: Buffer, start: int, offset: int) -> Recorded:
    """What is written down of an operand that starts in partition `start` of a buffer, at byte `offset`."""
    within = offset if buffer.memory is _PSUM else offset % 64  # where in its PSUM bank
    return (pattern, buffer.id, start, offset), (pattern, buffer.first_partition + start, within)


def whole(buffer: Buffer) -> AP:
    """All of a buffer: [P, F...] on chip, row-major with the first dimension as partition in HBM."""
    free = buffer.shape[1:]
    step = prod(free) * buffer.dtype.itemsize if buffer.memory is _HBM else 0
    return AP(buffer, buffer.dtype, 0, buffer.shape[0], step, 0, split(1, free))


def hbm_view(buffer: Buffer, offset: int, dims: tuple[tuple[int, int], ...]) -> AP:
    """Any strided view of an HBM buffer: offset and steps in elements, the first dimension is the partition."""
    item = buffer.dtype.itemsize
    (step, count), free = dims[0], dims[1:]
    return AP(buffer, buffer.dtype, 0, count, step * item, offset * item, tuple(free))


@lru_cache(maxsize=65536)
def free_dims(strides: tuple[int, ...], shape: tuple[int, ...], keep: bool = False) -> Dims:
    """The free dimensions of a view, all but its first, in as few as possible.

    `keep`: as they are, where the hardware has as many.
    """
    free = tuple(zip(strides[1:], shape[1:]))
    return free if keep and len(free) <= MAX_FREE_DIMS else collapsed(free) or ONE_ELEMENT


def _bounds(index: Any, count: int, ap: AP, axis: int) -> tuple[int, int]:
    if index.__class__ is slice:
        lo, hi, step = index.start, index.stop, index.step
        assert step is None or step == 1, "access patterns are sliced with unit steps"
        lo = 0 if lo is None else lo
        hi = count if hi is None else hi
    else:
        lo, hi = index, index + 1
    if not 0 <= lo < hi <= count:
        raise ConstraintError(
            f"slice outside of {ap.buffer.name!r}, dimension {axis}",
            code="TRN410",
            limit=f"0..{count}",
            got=f"{lo}..{hi}",
            remedy="slice the tile within its shape",
        )
    return lo, hi
