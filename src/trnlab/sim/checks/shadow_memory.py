# SPDX-License-Identifier: Apache-2.0
"""The pass over a routine that remembers who wrote each cell last. Compiled; it keeps what it finds in rows.

A cell is NEVER, INITIAL (contents from before the routine), or 2 + the instruction that wrote it last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.loops import compiled
from trnlab.program.routine import COL
from trnlab.sim.checks.access_ranges import BASE, DIMS, RUN
from trnlab.sim.checks.taint import (
    ALL,
    BY_ELEMENT,
    BY_GROUP,
    BY_ROW,
    OBSERVED,
    PRODUCT,
    TURNED,
    elements,
    gather,
    gather_columns,
    propagate,
)

Array = np.ndarray[Any, Any]

NEVER, INITIAL, WRITTEN = 0, 1, 2

# What an operand does with its cells, bits. ADDS: it adds to what is there (a matmul that accumulates). SOME: it uses
# only some of them, chosen at run time. MUST: undefined values there are an error at once, wherever they go.
READ, WRITE, ADDS, SOME, MUST = 1, 2, 4, 8, 16

# What an instruction is, bits. TOLD: the kernel itself said that it accumulates. FREE: it may carry values over
# iterations. POINTWISE: element for element; ROWWISE: each partition by itself; OCTETS: each eight of them; TURNS: a
# transpose; MULTIPLIES: a matmul, whose second and third operands are stationary and moving; ZEROES: it writes zeros.
MATMUL, TOLD, FREE, POINTWISE, ROWWISE, OCTETS, TURNS, MULTIPLIES, ZEROES = 1, 2, 4, 8, 16, 32, 64, 128, 256

# Kinds of finding, and what a row of findings holds: kind, operand, cells, the other instruction, loop.
MISSING, CLOBBERED, CARRIED, REWRITTEN, OVERTAKEN, FOREIGN, MIXED = range(7)
FINDING = 5
MOST = 256  # findings that are kept
SLOW = 4096  # instructions that undefined values are followed through; what comes later is not reported

_PARTS, _DTYPE, _ROLE = COL["partitions"], COL["dtype"], COL["role"]

# Columns of `Spans.columns`.
_LOOP, _ITERATION, _PARENT, _DEPTH, _BUFFERS, _GRID = range(6)
_MANY = -1


@compiled
def _carried(spans: Array, a: int, b: int, buffer: int, is_hbm: int) -> int:
    """The loop of which the spans a and b are in different iterations while the buffer is outside of it, or -1."""
    if a == b or a < 0 or b < 0:
        return -1
    while spans[a, _DEPTH] > spans[b, _DEPTH]:
        a = spans[a, _PARENT]
    while spans[b, _DEPTH] > spans[a, _DEPTH]:
        b = spans[b, _PARENT]
    while a != b and a >= 0 and b >= 0:
        if spans[a, _LOOP] == spans[b, _LOOP]:
            outside = is_hbm if spans[a, _GRID] else buffer < spans[a, _BUFFERS]
            return spans[a, _LOOP] if outside else -1
        a, b = spans[a, _PARENT], spans[b, _PARENT]
    return -1


@compiled
def _tell(found: Array, count: int, kind: int, operand: int, cells: int, other: int, loop: int) -> int:
    if count < found.shape[0]:
        row = found[count]
        row[0], row[1], row[2], row[3], row[4] = kind, operand, cells, other, loop
        return count + 1
    return count


@compiled
def _largest(values: Array, first: int, last: int) -> int:
    """The largest of those in [first, last); -1 where there is none above."""
    most = -1
    for i in range(first, last):
        most = max(most, values[i])
    return most


@compiled
def scan(
    first_operand: Array,
    ranges: Array,
    flags: Array,
    buffers: Array,
    hbm: Array,
    what: Array,
    span_of: Array,
    spans: Array,
    region_first: Array,
    shared: Array,
    writer: Array,
    owner: Array,
    mine: Array,
    group: Array,
    reader: Array,
    psum: int,
    found: Array,
    records: Array,
    itemsize: Array,
    table: Array,
    taint: Array,
) -> int:
    """Run over all instructions; returns the number of findings.

    owner: the buffer that wrote a cell last, where regions are shared (else empty). mine: cells that a buffer wrote.
    group: per PSUM cell 4 * (1 + the matmul that started its sum) + 2 (an unread sum was lost here) + 1 (unread).
    reader: per cell 1 + the program of a grid that read it, or _MANY (empty where there is no grid).
    taint: per cell 1 + the operand that read something undefined on the way to its contents, see `taint`. What of it
    is left at the end where the caller looks is for the caller of this function to find.
    """
    told = slow = 0
    marks, rows, columns = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    has_spans = _largest(span_of, 0, span_of.shape[0]) >= 0
    for i in range(first_operand.shape[0] - 1):
        kind = what[i]
        undefined, whole = False, 0
        for step in range(2):  # first everything is read, then written
            if step == 1 and undefined:
                slow += 1
                longest, tallest = 0, 0
                for k in range(first_operand[i], first_operand[i + 1]):
                    longest = max(longest, elements(records[k]) * records[k, _PARTS])
                    tallest = max(tallest, records[k, _PARTS])
                marks, rows, columns = (
                    np.zeros(longest, np.int64),
                    np.zeros(tallest, np.int64),
                    np.zeros(tallest, np.int64),
                )
                for k in range(first_operand[i], first_operand[i + 1]):
                    if flags[k] & READ and not flags[k] & SOME:
                        item = itemsize[records[k, _DTYPE]]
                        some = gather(k, records[k], item, table, writer, taint, marks, rows, columns)
                        whole = max(whole, some)
                if kind & OCTETS:
                    for p in range(0, tallest, 8):
                        rows[p : p + 8] = _largest(rows, p, min(p + 8, tallest))
                if kind & MULTIPLIES:
                    first = records[first_operand[i]]
                    rows, columns = np.zeros(first[_PARTS], np.int64), np.zeros(elements(first), np.int64)
                    for k in range(first_operand[i], first_operand[i + 1]):
                        item = itemsize[records[k, _DTYPE]]
                        if records[k, _ROLE] == 1:
                            gather_columns(k, records[k], item, table, writer, taint, rows)
                        elif records[k, _ROLE] == 2:
                            gather_columns(k, records[k], item, table, writer, taint, columns)
            for k in range(first_operand[i], first_operand[i + 1]):
                flag = flags[k]
                if step == 0 and not flag & READ:
                    continue
                if step == 1 and not flag & WRITE:
                    continue
                pattern = ranges[k]
                buffer = buffers[k]
                among = shared[buffer] >= 0
                own = shared[buffer] - region_first[buffer]
                missing = clobbered = carried = overtaken = foreign = 0
                clobberer = carrier = stranger = loop = -1
                group_low, group_high, lost, last, seen = 1 << 60, -1, False, NEVER, 0
                tainted = 0
                for p in range(pattern[DIMS + 1]):
                    for a in range(pattern[DIMS + 3]):
                        for b in range(pattern[DIMS + 5]):
                            for c in range(pattern[DIMS + 7]):
                                at = (
                                    pattern[BASE]
                                    + p * pattern[DIMS]
                                    + a * pattern[DIMS + 2]
                                    + b * pattern[DIMS + 4]
                                    + c * pattern[DIMS + 6]
                                )
                                for d in range(pattern[DIMS + 9]):
                                    start = at + d * pattern[DIMS + 8]
                                    for cell in range(start, start + pattern[RUN]):
                                        before = writer[cell]
                                        seen += 1
                                        if has_spans and before != last:
                                            last = before
                                            free = kind & FREE or flag & (ADDS | SOME)
                                            if before >= WRITTEN and not free:
                                                across = _carried(
                                                    spans, span_of[before - WRITTEN], span_of[i], buffer, hbm[k]
                                                )
                                                if across >= 0:
                                                    carried += 1
                                                    carrier, loop = before - WRITTEN, across
                                        if step == 0:
                                            tainted = max(tainted, taint[cell])
                                            if before == NEVER:
                                                missing += 1
                                            elif among and owner[cell] != buffer and mine[own + cell]:
                                                clobbered += 1
                                                clobberer = before - WRITTEN
                                                mine[own + cell] = 0
                                            if cell < psum:
                                                if flag & ADDS and kind & MATMUL:
                                                    g = group[cell] >> 2
                                                    if g:
                                                        group_low, group_high = min(group_low, g), max(group_high, g)
                                                    if group[cell] & 2:
                                                        lost = True
                                                    if before >= WRITTEN and not what[before - WRITTEN] & MATMUL:
                                                        foreign += 1
                                                        if stranger < 0 or not what[before - WRITTEN] & ZEROES:
                                                            stranger = before - WRITTEN  # zeros matter least
                                                else:
                                                    group[cell] &= ~3
                                            if reader.shape[0] and hbm[k] and not flag & SOME:
                                                mark = _program(spans, span_of[i]) + 1
                                                known = reader[cell]
                                                reader[cell] = mark if known == 0 or known == mark else _MANY
                                        else:
                                            known = reader[cell] if reader.shape[0] and not flag & SOME else 0
                                            if known and known != _program(spans, span_of[i]) + 1:
                                                overtaken += 1
                                            if not flag & SOME:
                                                writer[cell] = i + WRITTEN
                                                if not flag & ADDS:  # what was undefined in a sum stays so
                                                    taint[cell] = 0
                                            elif before == NEVER:
                                                writer[cell] = INITIAL
                                            if among:
                                                owner[cell] = buffer
                                                mine[own + cell] = 1
                                            if cell < psum:
                                                if not kind & MATMUL:
                                                    group[cell] = 0
                                                elif flag & ADDS:
                                                    group[cell] |= 1
                                                else:
                                                    group[cell] = ((i + 1) << 2) | ((group[cell] & 1) << 1) | 1
                if missing and flag & SOME and missing < seen:
                    missing = 0
                if step == 0 and flag & MUST and (missing or (tainted and not flag & ADDS)):
                    told = _tell(found, told, MISSING, k if missing else tainted - 1, missing, i, -1)
                elif step == 0 and (missing or tainted) and slow < SLOW:
                    undefined = True
                    whole = max(whole, k + 1 if missing else tainted)
                if step == 1 and undefined and (not flag & SOME or table[buffer, OBSERVED]):
                    size, tall = elements(records[k]) * records[k, _PARTS], records[k, _PARTS]
                    how = ALL
                    if flag & SOME:
                        pass
                    elif kind & MULTIPLIES:
                        how = PRODUCT if records[k, _ROLE] == 0 else ALL
                    elif kind & TURNS and size == marks.shape[0]:
                        how = TURNED
                    elif kind & POINTWISE and size == marks.shape[0] and tall <= columns.shape[0]:
                        how = BY_ELEMENT
                    elif kind & OCTETS and 4 * size == marks.shape[0]:
                        how = BY_GROUP
                    elif kind & (ROWWISE | OCTETS) and tall == rows.shape[0]:
                        how = BY_ROW
                    item = itemsize[records[k, _DTYPE]]
                    propagate(records[k], item, table, taint, how, whole, marks, rows, columns)
                if clobbered:
                    told = _tell(found, told, CLOBBERED, k, clobbered, clobberer, -1)
                if carried:
                    told = _tell(found, told, CARRIED if step == 0 else REWRITTEN, k, carried, carrier, loop)
                if overtaken:
                    told = _tell(found, told, OVERTAKEN, k, overtaken, -1, -1)
                if foreign and kind & TOLD:
                    told = _tell(found, told, FOREIGN, k, foreign, stranger, -1)
                if lost and group_high > group_low:
                    told = _tell(found, told, MIXED, k, 0, group_high - 1, -1)
    return told


@compiled
def _program(spans: Array, span: int) -> int:
    """The program of a grid that a span lies in, or -1."""
    while span >= 0:
        if spans[span, _GRID]:
            return int(spans[span, _ITERATION])
        span = spans[span, _PARENT]
    return -1
