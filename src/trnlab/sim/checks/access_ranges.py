# SPDX-License-Identifier: Apache-2.0
"""The cells that operands touch, as nested ranges.

A cell is the largest piece of memory that no operand divides: some bytes of some partitions, both greatest common
divisors over all operands of a region. A region is a buffer, or several that overlap because the kernel placed them
so. A tile that is always used whole is one cell, so that exactness to the byte costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.isa.base import Memory
from trnlab.loops import compiled
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import Buffer
from trnlab.program.routine import COL, Routine
from trnlab.sim.checks.taint import BYTE, CELL_BYTES, CELL_PARTITIONS, FIRST, OBSERVED, PARTITION, ROW

Array = np.ndarray[Any, Any]

# Columns of a pattern: first cell, cells of one run, then (step in cells, count) of partitions and four free
# dimensions.
BASE, RUN, DIMS = 0, 1, 2
WALK = 12

_DTYPE, _BUFFER, _START, _PARTS, _PSTEP, _OFFSET, _HBM = (
    COL[name] for name in ("dtype", "buffer", "start_partition", "partitions", "partition_step", "offset", "is_hbm")
)
_STEP = COL["step0"]


ITEM_BYTES = np.ones(max(BY_CODE) + 1, np.int64)  # by the code of a format
for _code, _dtype in BY_CODE.items():
    ITEM_BYTES[_code] = _dtype.itemsize


@dataclass(frozen=True)
class Regions:
    """Where buffers lie in the cells. Per buffer: region, byte and partition it starts at within its region.

    Per region: bytes and partitions of a cell, cells of a row (one partition of cells), first cell. shared: per
    buffer that shares its region, where its own row of `scan`'s array `mine` begins, else -1.
    """

    of_buffer: Array
    byte: Array
    partition: Array
    cell_bytes: Array
    cell_partitions: Array
    row: Array
    first: Array
    shared: Array
    cells: int
    own: int
    psum: int  # cells of PSUM come first
    count: Array  # cells of each region

    def size(self, region: int) -> int:
        """Cells of a region."""
        return int(self.count[region])

    def cells_of(self, region: int) -> slice:
        """Where the cells of a region are."""
        first = int(self.first[region])
        return slice(first, first + self.size(region))

    def table(self, observed: set[int]) -> Array:
        """One row per buffer for `taint`; observed: buffers that the caller sees."""
        of = self.of_buffer
        rows = np.zeros((len(of), 7), np.int64)
        rows[:, BYTE], rows[:, PARTITION], rows[:, FIRST] = self.byte, self.partition, self.first[of]
        rows[:, CELL_BYTES], rows[:, CELL_PARTITIONS] = self.cell_bytes[of], self.cell_partitions[of]
        rows[:, ROW] = self.row[of]
        rows[[number for number in observed if number < len(of)], OBSERVED] = 1
        return rows


COARSE, ON_CHIP, EVERYWHERE = range(3)  # where no cell exceeds an element


def access_ranges(routine: Routine, explicit: frozenset[int], fine: int = COARSE) -> tuple[Array, Regions]:
    """One pattern per operand record, and the regions they lie in. fine: where no cell exceeds an element."""
    of_buffer, byte, partition, sizes = _place(routine.buffers, explicit)
    operands = routine.operands
    out = np.zeros((len(operands), WALK), np.int64)
    units = np.zeros((len(sizes), 2), np.int64)
    if fine != COARSE:
        some = operands if fine == EVERYWHERE else operands[operands[:, _HBM] == 0]
        region = of_buffer[some[:, _BUFFER]]
        units[of_buffer[operands[operands[:, _HBM] == 0, _BUFFER]], 1] = 1
        np.gcd.at(units[:, 0], region, ITEM_BYTES[some[:, _DTYPE]])
    _runs(operands, ITEM_BYTES, of_buffer, byte, partition, out, units)
    units = np.where(units == 0, np.maximum(sizes, 1), units)  # what nobody uses is one cell
    row = -(-sizes[:, 0] // units[:, 0])
    count = row * -(-sizes[:, 1] // units[:, 1])
    psum = np.zeros(len(sizes), bool)
    psum[of_buffer] = [b.memory is Memory.PSUM for b in routine.buffers]
    order = np.argsort(~psum, kind="stable")
    first = np.zeros(len(sizes), np.int64)
    first[order] = np.cumsum(count[order]) - count[order]
    _scale(operands, of_buffer, byte, partition, units, row, first, out)
    shared = np.full(len(routine.buffers), -1, np.int64)
    own = 0
    alone = np.bincount(of_buffer, minlength=len(sizes)) < 2
    for number in np.flatnonzero(~alone[of_buffer]):
        shared[number] = own
        own += int(count[of_buffer[number]])
    regions = Regions(
        of_buffer,
        byte,
        partition,
        units[:, 0],
        units[:, 1],
        row,
        first,
        shared,
        int(count.sum()),
        own,
        int(count[psum].sum()),
        count,
    )
    return out, regions


def _place(buffers: tuple[Buffer, ...], explicit: frozenset[int]) -> tuple[Array, Array, Array, Array]:
    """Region, byte and partition of each buffer; bytes and partitions of each region."""
    count = len(buffers)
    region, byte, partition = np.arange(count), np.zeros(count, np.int64), np.zeros(count, np.int64)
    extent = np.array([(b.nbytes, b.partitions) for b in buffers], np.int64).reshape(-1, 2)
    for group in _overlapping([b for b in buffers if b.id in explicit]):
        low = min(b.address for b in group), min(b.first_partition for b in group)
        for b in group:
            region[b.id] = group[0].id
            byte[b.id], partition[b.id] = b.address - low[0], b.first_partition - low[1]
    _, region = np.unique(region, return_inverse=True)
    sizes = np.zeros((int(region.max()) + 1 if count else 0, 2), np.int64)
    np.maximum.at(sizes, region, extent + np.stack([byte, partition], axis=1))
    return region, byte, partition, sizes


def _overlapping(buffers: list[Buffer]) -> list[list[Buffer]]:
    """Groups of two or more that share bytes of a partition, directly or through others."""
    groups: list[list[Buffer]] = []
    for memory in (Memory.SBUF, Memory.PSUM):
        end = -1
        for b in sorted((b for b in buffers if b.memory is memory), key=lambda b: (b.address, b.id)):
            if b.address < end:
                groups[-1].append(b)
            else:
                groups.append([b])
            end = max(end, b.address + b.nbytes)
    return [group for group in groups if len(group) > 1]


@compiled
def _gcd(a: int, b: int) -> int:
    a, b = abs(a), abs(b)
    while b:
        a, b = b, a % b
    return a


@compiled
def _runs(
    operands: Array, itemsize: Array, of_buffer: Array, byte: Array, partition: Array, out: Array, units: Array
) -> None:
    """Fill in runs and dimensions in bytes, and the units of each region."""
    for k in range(operands.shape[0]):
        record = operands[k]
        buffer = record[_BUFFER]
        region = of_buffer[buffer]
        item = itemsize[record[_DTYPE]]
        run, merging = item, True
        bytes_unit = _gcd(units[region, 0], record[_OFFSET] + byte[buffer])
        for d in range(4, -1, -1):
            if d == 0:
                if not record[_HBM]:
                    break
                step, count = record[_PSTEP], record[_PARTS]
            else:
                step, count = record[_STEP + 2 * (d - 1)] * item, record[_STEP + 2 * (d - 1) + 1]
            if count == 1 or step == 0:
                step, count = 0, 1
            elif merging and step == run:
                run *= count
                step, count = 0, 1
            else:
                merging = False
                bytes_unit = _gcd(bytes_unit, step)
            out[k, DIMS + 2 * d], out[k, DIMS + 2 * d + 1] = step, count
        units[region, 0] = _gcd(bytes_unit, run)
        out[k, RUN] = run
        if not record[_HBM]:
            at = record[_START] + partition[buffer]
            units[region, 1] = _gcd(_gcd(units[region, 1], at), record[_PARTS])


@compiled
def _scale(
    operands: Array,
    of_buffer: Array,
    byte: Array,
    partition: Array,
    units: Array,
    row: Array,
    first: Array,
    out: Array,
) -> None:
    """Bytes and partitions to cells."""
    for k in range(operands.shape[0]):
        record = operands[k]
        buffer = record[_BUFFER]
        region = of_buffer[buffer]
        unit = units[region, 0]
        out[k, RUN] //= unit
        for d in range(5):
            out[k, DIMS + 2 * d] //= unit
        out[k, BASE] = first[region] + (record[_OFFSET] + byte[buffer]) // unit
        if not record[_HBM]:
            out[k, BASE] += (record[_START] + partition[buffer]) // units[region, 1] * row[region]
            out[k, DIMS] = row[region]
            out[k, DIMS + 1] = record[_PARTS] // units[region, 1]
