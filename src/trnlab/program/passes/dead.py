# SPDX-License-Identifier: Apache-2.0
"""Dead writes: what is overwritten before anybody reads it is not computed.

    out = nl.zeros((128, 512), dtype=x.dtype, buffer=nl.sbuf)     # deleted: the loop fills all of it
    for i in nl.affine_range(8):
        out[:, nl.ds(64 * i, 64)] = nl.exp(x[:, nl.ds(64 * i, 64)])

Kernels fill tiles with zeros out of caution. What is never overwritten stays, though nobody may read it: a kernel
that computes for its own sake is timed as it stands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.isa.base import Memory
from trnlab.loops import compiled
from trnlab.program.access import forms
from trnlab.program.passes.draft import PATTERN, START, WRITES, Bools, Draft, Ints, is_packed
from trnlab.program.passes.merge_plan import fixed_instructions, memory_pieces, merging
from trnlab.program.routine import COL


def delete_overwritten(draft: Draft) -> None:
    """Delete instructions all of whose results are overwritten unread."""
    if draft.b.prints or draft.b.dependencies or not len(draft.references):
        return
    low, high, pieces = memory_pieces(draft)
    alive = draft.order[~draft.deleted[draft.order]]
    removable = merging(draft) & ~fixed_instructions(draft)
    covers = _covers_rows(draft)
    _sweep(alive[::-1].copy(), draft.first, draft.access, low, high, covers, pieces, removable, draft.deleted)


def _covers_rows(draft: Draft) -> Bools:
    """Which operands write every byte between their first and their last, in all partitions of a tile."""
    table, row = forms(draft.references[:, PATTERN])
    packed = np.array([is_packed(tuple(d)) for d in table[:, COL["step0"] : COL["count3"] + 1].tolist()], np.bool_)
    buffers = draft.columns()
    on_chip = (buffers.memory != Memory.HBM) & (buffers.movable != 0)
    rows = table[:, COL["partitions"]][row] == buffers.partitions[draft.owner]
    all_rows = (draft.references[:, START] == 0) & rows
    found: Bools = packed[row] & all_rows & on_chip[draft.owner] & (draft.access & WRITES != 0)
    return found


@compiled
def _sweep(
    backwards: Ints,
    begins: Ints,
    access: Ints,
    low: Ints,
    high: Ints,
    covers: Any,
    pieces: int,
    removable: Any,
    deleted: Any,
) -> None:  # pragma: no cover
    """From the last instruction to the first: delete those that write only pieces of memory that are overwritten."""
    overwritten = np.zeros(pieces, np.bool_)
    for i in backwards:
        dead = removable[i]
        for k in range(begins[i], begins[i + 1]):
            if access[k] & 2 and dead:
                dead = overwritten[low[k] : high[k] + 1].all()
        if dead:
            deleted[i] = True
            continue
        for k in range(begins[i], begins[i + 1]):
            if covers[k]:
                overwritten[low[k] : high[k] + 1] = True
        for k in range(begins[i], begins[i + 1]):
            if access[k] & 1:
                overwritten[low[k] : high[k] + 1] = False
