# SPDX-License-Identifier: Apache-2.0
"""How undefined values propagate, element by element, from what an instruction reads to what it writes.

A kernel may read memory that nothing wrote where it does not matter: old kernels compute on whole tiles of which a
mask left out a part, and store the rest. So a cell remembers the operand that first read something undefined on the
way to its contents ("taint", 0 for none), and an error is only what is left of it in a result at the end: what is
written over later does not matter either. Slow, and used only where it happens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.loops import compiled
from trnlab.program.routine import COL

Array = np.ndarray[Any, Any]

NEVER = 0

# How what is written depends on what is read: all of it on everything; each partition on its own; element on element;
# as the transpose; column of one operand by column of the other; words of four elements, eight partitions together.
ALL, BY_ROW, BY_ELEMENT, TURNED, PRODUCT, BY_GROUP = range(6)
_DTYPE, _BUFFER, _START, _PARTS, _PSTEP, _OFFSET, _HBM, _STEP = (
    COL[name]
    for name in ("dtype", "buffer", "start_partition", "partitions", "partition_step", "offset", "is_hbm", "step0")
)

# Columns of the table of buffers that the compiled functions take.
BYTE, PARTITION, CELL_BYTES, CELL_PARTITIONS, ROW, FIRST, OBSERVED = range(7)


@compiled
def elements(record: Array) -> int:
    """Elements per partition."""
    count = 1
    for d in range(4):
        count *= record[_STEP + 2 * d + 1]
    return count


@compiled
def cell_of(record: Array, item: int, table: Array, partition: int, element: int) -> int:
    """The first cell of an element."""
    row = table[record[_BUFFER]]
    byte = record[_OFFSET] + row[BYTE]
    for d in range(3, -1, -1):
        count = record[_STEP + 2 * d + 1]
        byte += element % count * record[_STEP + 2 * d] * item
        element //= count
    if record[_HBM]:
        return int(row[FIRST] + (byte + partition * record[_PSTEP]) // row[CELL_BYTES])
    at = (record[_START] + row[PARTITION] + partition) // row[CELL_PARTITIONS]
    return int(row[FIRST] + at * row[ROW] + byte // row[CELL_BYTES])


@compiled
def gather(
    k: int,
    record: Array,
    item: int,
    table: Array,
    writer: Array,
    taint: Array,
    marks: Array,
    rows: Array,
    columns: Array,
) -> int:
    """Note the taints of what operand k reads; returns one of them, or 0.

    marks: per element (row-major), of operands as large as it is. rows: per partition. columns: per partition, of
    smaller operands only, which count for all elements of their row.
    """
    span = max(item // table[record[_BUFFER], CELL_BYTES], 1)
    free, some = elements(record), 0
    full = free * record[_PARTS] == marks.shape[0]
    for p in range(record[_PARTS]):
        for e in range(free):
            mark = taint_of(k, cell_of(record, item, table, p, e), span, writer, taint)
            if mark:
                some = mark
                rows[p] = mark
                if full:
                    marks[p * free + e] = mark
                else:
                    columns[p] = mark
    return some


@compiled
def gather_columns(
    k: int, record: Array, item: int, table: Array, writer: Array, taint: Array, columns: Array
) -> None:
    """Note the taints of the columns of a matmul's operand: element e of each row belongs to column e % columns."""
    span = max(item // table[record[_BUFFER], CELL_BYTES], 1)
    for p in range(record[_PARTS]):
        for e in range(elements(record)):
            mark = taint_of(k, cell_of(record, item, table, p, e), span, writer, taint)
            if mark:
                columns[e % columns.shape[0]] = mark


@compiled
def taint_of(k: int, first: int, span: int, writer: Array, taint: Array) -> int:
    """The taint of the cells of one element that operand k reads, or 0."""
    for cell in range(first, first + span):
        if writer[cell] == NEVER:
            return k + 1
        if taint[cell]:
            return int(taint[cell])
    return 0


@compiled
def propagate(
    record: Array,
    item: int,
    table: Array,
    taint: Array,
    how: int,
    whole: int,
    marks: Array,
    rows: Array,
    columns: Array,
) -> None:
    """Taint what an operand writes, with `whole` or as `how` says, see ALL and the others."""
    row = table[record[_BUFFER]]
    span = max(item // row[CELL_BYTES], 1)
    free = elements(record)
    for p in range(record[_PARTS]):
        for e in range(free):
            mark = whole
            if how == BY_ROW:
                mark = rows[p]
            elif how == BY_ELEMENT:
                mark = max(marks[p * free + e], columns[p])
            elif how == TURNED:
                mark = marks[e * record[_PARTS] + p]
            elif how == PRODUCT:
                mark = max(rows[p], columns[e])
            elif how == BY_GROUP:
                mark, first, wide = 0, p // 8 * 8, marks.shape[0] // record[_PARTS]
                for q in range(first, min(first + 8, record[_PARTS])):
                    for lane in range(4):
                        mark = max(mark, marks[q * wide + 4 * e + lane])
            if not mark:
                continue
            at = cell_of(record, item, table, p, e)
            for cell in range(at, at + span):
                taint[cell] = mark
