# SPDX-License-Identifier: Apache-2.0
"""Renaming: a tile that is overwritten as a whole holds a new value, which need not lie where the old one did.

A kernel that declares its tiles before a loop and fills them again in every iteration has one place for each. The
hardware's compiler gives every value a place of its own, so that the next load does not wait for the last reader.
Here, too, a write that covers all of a tile, by an instruction that does not read it, starts a new version: another
buffer, placed by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.loops import compiled
from trnlab.program.builder import END
from trnlab.program.passes.draft import OWNER, Draft, Ints
from trnlab.program.routine import COL


def rename_overwritten(draft: Draft) -> None:
    """Give each version of the movable tiles a buffer of its own; the first keeps the tile's."""
    candidate = np.zeros(len(draft.buffers), np.bool_)
    candidate[list(draft.movable - {p.operand[COL["buffer"]] for p in draft.b.prints})] = True
    owner, origins = draft.owner.copy(), np.empty(len(draft.references), np.int64)
    count = _split(draft.rows[:, END], owner, draft.access, candidate, origins)
    for version, origin in enumerate(origins[:count].tolist()):
        draft.again(origin, str(version))
    draft.references[:, OWNER] = owner


@compiled
def _split(ends: Ints, owner: Ints, access: Ints, candidate: Any, origins: Ints) -> int:
    """Replace each buffer of `owner` by its version; new ones are numbered behind the buffers that there are.

    Returns how many were made, and in `origins` of what.
    """
    buffers = candidate.shape[0]
    version, used = np.arange(buffers), np.zeros(buffers, np.bool_)
    count, first = 0, 0
    for i in range(ends.shape[0]):
        for k in range(first, ends[i]):
            tile = owner[k]
            if access[k] & 4 and candidate[tile] and used[tile]:
                unread = True
                for other in range(first, ends[i]):
                    if owner[other] == tile and access[other] & 1:
                        unread = False
                if unread:
                    version[tile], origins[count] = buffers + count, tile
                    count += 1
        for k in range(first, ends[i]):
            used[owner[k]] = True
            owner[k] = version[owner[k]]
        first = ends[i]
    return count
