# SPDX-License-Identifier: Apache-2.0
"""The loops of a kernel, as columns: which instructions each iteration of each loop made, inner loops first.

Only loops whose iterations the kernel declares independent are known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from trnlab.loops import compiled
from trnlab.program.passes.draft import ATTR, ENGINE, OPCODE, PATTERN, ROLE, START, Draft, Ints
from trnlab.program.spans import Spans


class Nest(NamedTuple):
    """All loops of one depth."""

    iterations: Ints  # where the iterations of each loop begin in `begin` and `end`, and where the last end
    # begin, end: where the instructions of an iteration lie in `ids`, the numbers of all instructions in order
    begin: Ints
    end: Ints
    ids: Ints
    # how many instructions all iterations of a loop have in common, which are its positions; 0 where iterations
    # differ
    length: Ints
    # where the positions of each loop begin in `match`, which says where in `ids` the first iteration has each;
    # it may have others between them (what later iterations need not do again)
    positions: Ints
    match: Ints
    slot: Ints  # per instruction of `ids` 2 p + 1 at position p, 2 p for what lies before it


def nests(draft: Draft, spans: Spans, fixed: Any) -> Iterator[Nest]:
    """The loops of each depth, the innermost first. fixed: instructions whose loops stay as they are.

    Whoever changes the order of instructions keeps them within their loops.
    """
    columns = _columns(spans)
    for depth in sorted(set(columns[:, 1].tolist()), reverse=True):
        yield _nest(draft, columns[columns[:, 1] == depth], fixed)


def _columns(spans: Spans) -> Ints:
    """Rows of loop, depth, first and last instruction of each iteration of a loop that has several, by loop."""
    depths: list[int] = []
    for span in spans.spans:
        depths.append(depths[span.parent] + 1 if span.parent >= 0 else 0)
    rows = [(s.loop, depth, s.first, s.last) for s, depth in zip(spans.spans, depths)]
    columns = np.array(rows, np.int64).reshape(-1, 4)
    counts = np.bincount(columns[:, 0], minlength=len(spans.loops))
    several = np.array([loop.kind == "loop" for loop in spans.loops], np.bool_) & (counts > 1)
    columns = columns[several[columns[:, 0]]] if len(columns) else columns
    return columns[np.argsort(columns[:, 0], kind="stable")]


def _nest(draft: Draft, columns: Ints, fixed: Any) -> Nest:
    """The loops of these iterations as they are now."""
    alive = ~draft.deleted[draft.order]
    ids = draft.order[alive]
    count = np.concatenate([np.zeros(1, np.int64), np.cumsum(alive)])
    begin, end = count[columns[:, 2]], count[columns[:, 3]]
    starts = np.flatnonzero(np.diff(columns[:, 0], prepend=-1))
    iterations = np.append(starts, len(columns))
    length = np.zeros(len(starts), np.int64)
    match, slot = np.empty(len(ids), np.int64), np.zeros(len(ids), np.int64)
    alike, opcode = (np.where(fixed, -1, key)[ids] for key in (_forms(draft), draft.rows[:, OPCODE]))
    _align(iterations, begin, end, alike, opcode, length, match, slot)
    positions = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
    return Nest(iterations, begin, end, ids, length, positions, match, slot)


def _forms(draft: Draft) -> Ints:
    """A number per instruction that is the same for those that differ in nothing but where their operands lie."""
    mix = np.array([0x9E3779B97F4A7C1, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
    operands = draft.references[:, [ROLE, PATTERN, START]].astype(np.uint64) + np.uint64(1)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((operands * mix).prod(axis=1), dtype=np.uint64)])
    rows = draft.rows[:, [OPCODE, ENGINE, ATTR]].astype(np.uint64) + np.uint64(1)
    keys = (rows * mix).prod(axis=1) + sums[draft.first[1:]] - sums[draft.first[:-1]]
    found: Ints = (keys >> np.uint64(1)).astype(np.int64)
    return found


@compiled
def _align(
    iterations: Ints, begin: Ints, end: Ints, alike: Ints, opcode: Ints, length: Ints, match: Ints, slot: Ints
) -> None:  # pragma: no cover
    """Fill in length, match and slot, see `Nest`. Instructions at one position are alike, where that can be, else of
    one opcode; an opcode of -1 matches nothing.
    """
    top = 0
    for loop in range(iterations.shape[0] - 1):
        first, last = iterations[loop], iterations[loop + 1]
        size = end[first + 1] - begin[first + 1]
        if size == 0 or not _same_bodies(begin, end, first + 1, last, opcode):
            continue
        found = _match_first(begin, end, first, alike, match[top : top + size], slot)
        if not found and not _match_first(begin, end, first, opcode, match[top : top + size], slot):
            continue
        for i in range(first + 1, last):
            for p in range(size):
                slot[begin[i] + p] = 2 * p + 1
        length[loop] = size
        top += size


@compiled
def _same_bodies(begin: Ints, end: Ints, first: int, last: int, opcode: Ints) -> bool:  # pragma: no cover
    """Whether iterations first..last (excluded) have the same opcodes."""
    size = end[first] - begin[first]
    for i in range(first, last):
        if end[i] - begin[i] != size:
            return False
        for p in range(size):
            if opcode[begin[i] + p] < 0 or opcode[begin[i] + p] != opcode[begin[first] + p]:
                return False
    return True


@compiled
def _match_first(begin: Ints, end: Ints, first: int, key: Ints, match: Ints, slot: Ints) -> bool:  # pragma: no cover
    """Find the instructions of the second iteration among those of the first, in order; False where some are not."""
    size, p = match.shape[0], 0
    for at in range(begin[first], end[first]):
        if key[at] < 0:
            return False
        if p < size and key[at] == key[begin[first + 1] + p]:
            match[p], slot[at] = at, 2 * p + 1
            p += 1
        else:
            slot[at] = 2 * p
    return bool(p == size)
