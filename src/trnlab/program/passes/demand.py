# SPDX-License-Identifier: Apache-2.0
"""Order by demand: everything is computed when somebody needs it, so that few tiles are alive at a time.

A kernel may first fill many more tiles than there is room for, and read them afterwards, because the hardware's
compiler moves what makes a tile to where the tile is used. Here instructions that write to HBM stay in their order,
and each is preceded by just what it depends on that has not been done yet. Dependencies are those of the recording
(read after write, write after read, write after write), so that no value changes.

It is applied only where a kernel does not fit into PSUM as it is written and then needs no memory in HBM, and to what
could not be spilled (ADR 123).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab import isa
from trnlab.isa.base import Memory
from trnlab.isa.collectives.meeting import Meeting
from trnlab.loops import compiled
from trnlab.program.access import operand_records
from trnlab.program.passes.draft import OPCODE, WRITES, Draft, Ints
from trnlab.program.routine import COL, OPEN_ORDER

LEFT_OPEN = 6  # column of `Draft.rows`


def order_by_demand(draft: Draft) -> bool:
    """Put the instructions into the order of demand; False where the kernel fixes its order."""
    if draft.b.prints or not _free(draft):
        return False
    memory = np.array([b.memory for b in draft.buffers])[draft.owner]
    stores = np.zeros(len(draft), np.bool_)
    stores[draft.of[(memory == Memory.HBM) & (draft.access & WRITES != 0)]] = True
    first, last, pieces = _pieces(draft)
    before = np.array([pair for pair in draft.b.dependencies if pair[0] != pair[1]], np.int64).reshape(-1, 2)
    draft.order = _demanded(draft.first, draft.access, first, last, pieces, stores, before)
    return True


def _free(draft: Draft) -> bool:
    """Whether every instruction may move: none in a no_reorder block, on registers or at a meeting of cores.

    The state of an engine, such as its accumulators, is an operand, which orders those who use it.
    """
    for code in np.unique(draft.rows[:, OPCODE]).tolist():
        instr = isa.BY_OPCODE[code]
        if isinstance(instr, Meeting) or any(kind.startswith("sequencer") for kind in instr.cost_kinds):
            return False
    return bool((draft.rows[:, LEFT_OPEN] & OPEN_ORDER != 0).all())


def _pieces(draft: Draft) -> tuple[Ints, Ints, int]:
    """Memory cut wherever an access begins or ends: first and last piece of each operand, and how many there are."""
    records = operand_records(draft.references)
    room = int(max((b.nbytes for b in draft.buffers), default=0)) + 1
    base = records[:, COL["buffer"]] * room
    low, high = base + records[:, COL["first"]], base + records[:, COL["last"]]
    cuts = np.unique(np.concatenate([low, high + 1]))
    return np.searchsorted(cuts, low), np.searchsorted(cuts, high, side="right") - 1, len(cuts)


@compiled
def _demanded(
    begins: Ints, access: Ints, first: Ints, last: Ints, pieces: int, stores: Any, before: Ints
) -> Ints:  # pragma: no cover
    """Instructions in the order of demand: stores in their order, each behind what it depends on."""
    n = begins.shape[0] - 1
    count = _edges(begins, access, first, last, pieces, np.empty((0, 2), np.int64))
    edges = np.empty((count, 2), np.int64)
    _edges(begins, access, first, last, pieces, edges)
    start = np.zeros(n + 1, np.int64)
    for e in range(count):
        start[edges[e, 1] + 1] += 1
    for e in range(before.shape[0]):
        start[before[e, 1] + 1] += 1
    for i in range(n):
        start[i + 1] += start[i]
    needs, fill = np.empty(count + before.shape[0], np.int64), start.copy()
    for e in range(count):
        needs[fill[edges[e, 1]]] = edges[e, 0]
        fill[edges[e, 1]] += 1
    for e in range(before.shape[0]):
        needs[fill[before[e, 1]]] = before[e, 0]
        fill[before[e, 1]] += 1
    order, done, stack = np.empty(n, np.int64), np.zeros(n, np.bool_), np.empty(n, np.int64)
    at, turn = start[:-1].copy(), 0
    for stage in range(2):  # what no store needs comes last
        for root in range(n):
            if done[root] or (stage == 0 and not stores[root]):
                continue
            top = 0
            stack[0] = root
            while top >= 0:
                i = stack[top]
                if done[i]:
                    top -= 1
                elif at[i] < start[i + 1]:
                    needed = needs[at[i]]
                    at[i] += 1
                    if not done[needed]:
                        top += 1
                        stack[top] = needed
                else:
                    done[i], order[turn] = True, i
                    turn += 1
                    top -= 1
    return order


@compiled
def _edges(begins: Ints, access: Ints, first: Ints, last: Ints, pieces: int, edges: Ints) -> int:  # pragma: no cover
    """Pairs (earlier, later) of instructions of which the later depends on the earlier, some of them several times.

    Counts them when there is no room, else fills them in.
    """
    n, count, fill = begins.shape[0] - 1, 0, edges.shape[0] > 0
    writer, reader = np.full(pieces, -1, np.int64), np.full(pieces, -1, np.int64)
    size = 0
    for k in range(first.shape[0]):
        size += last[k] - first[k] + 1
    node, following, top = np.empty(size, np.int64), np.empty(size, np.int64), 0
    for i in range(n):
        for k in range(begins[i], begins[i + 1]):
            previous = np.int64(-1)
            for s in range(first[k], last[k] + 1):
                w = writer[s]
                if w >= 0 and w != previous and w != i:
                    if fill:
                        edges[count, 0], edges[count, 1] = w, i
                    count += 1
                    previous = w
                r = reader[s] if access[k] & 2 else -1
                while r >= 0:
                    if node[r] != i:
                        if fill:
                            edges[count, 0], edges[count, 1] = node[r], i
                        count += 1
                    r = following[r]
        for k in range(begins[i], begins[i + 1]):
            for s in range(first[k], last[k] + 1):
                if access[k] & 2:
                    writer[s], reader[s] = i, -1
        for k in range(begins[i], begins[i + 1]):
            if access[k] & 1:
                for s in range(first[k], last[k] + 1):
                    if writer[s] != i or not access[k] & 2:
                        node[top], following[top] = i, reader[s]
                        reader[s] = top
                        top += 1
    return count
