# SPDX-License-Identifier: Apache-2.0
"""What the time of a step went to: the longest chain of dependencies, cut into pieces.

Each instruction of the chain answers for the time from when it was let go (or its bytes were) until the next one was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.loops import compiled
from trnlab.profile.data import Ints, Step
from trnlab.timeline import ENGINES, held_back_by

DMA, LATENCY = len(ENGINES), len(ENGINES) + 1
KINDS = (*ENGINES, "dma", "latency")
_CC = ENGINES.index("cc")


@dataclass(frozen=True)
class Pieces:
    """The chain in order of time, without gaps."""

    instruction: Ints
    since: Ints
    until: Ints
    # an index of KINDS; latency is what neither an engine nor a DMA engine worked at: semaphores, and the way of
    # a transfer from its trigger to the first byte and after the last
    kind: Ints
    place: Ints  # of the piece's instruction in the chain


def pieces(step: Step) -> Pieces:
    """The chain of a step, cut where its time changes kind."""
    t = step.timeline
    if not len(step.critical):
        return Pieces(*(np.empty(0, np.int64) for _ in range(5)))
    is_dma = np.array([op.lanes > 0 for op in t.ops], np.bool_)[t.op]
    found = np.empty((3 * len(step.critical), 5), np.int64)
    count = _cut_all(
        step.critical,
        t.start,
        t.end,
        t.begin,
        t.done,
        t.blocker,
        t.held,
        t.cause,
        t.engine,
        is_dma,
        t.completion,
        found,
    )
    columns = found[:count][::-1]
    return Pieces(*(np.ascontiguousarray(columns[:, i]) for i in range(5)))


@compiled
def _cut_all(
    path: Any,
    start: Any,
    end: Any,
    begin: Any,
    done: Any,
    blocker: Any,
    held: Any,
    cause: Any,
    engine: Any,
    is_dma: Any,
    completion: int,
    found: Any,
) -> int:
    """The pieces of all instructions, last to first; returns how many.

    The time of one instruction is waiting for the first byte, work, and what follows until the next one starts.
    """
    count, by_issue = 0, False
    until: Any = done[path[-1]]
    for at in range(len(path) - 1, -1, -1):
        i = path[at]
        before, next_by_issue, of_transfer = held_back_by(i, by_issue, blocker, cause, held, begin)
        of_transfer = of_transfer and at > 0 and before == path[at - 1]
        since = begin[i] if of_transfer else start[i]
        if is_dma[i] and not by_issue:
            starts, worked, kind = begin[i], min(until, done[i] - completion), DMA
        else:
            starts, worked, kind = since, min(until, end[i] if by_issue else done[i]), int(engine[i])
        for a, b, k in ((worked, until, LATENCY), (starts, worked, kind), (since, starts, LATENCY)):
            if a != b:
                piece = found[count]
                piece[0], piece[1], piece[2], piece[3], piece[4] = i, a, b, k, at
                count += 1
        by_issue, until = next_by_issue, since
        if at > 0 and not of_transfer and blocker[i] < 0:  # the first of its executable: the one before ran alone
            by_issue, until = False, done[path[at - 1]]
    return count


def by_kind(step: Step, found: Pieces) -> dict[str, int]:
    """Picoseconds by kind, and of the start and end of the program; they add up to the step."""
    spent = np.bincount(found.kind, found.until - found.since, len(KINDS)).astype(np.int64).tolist()
    by_name = dict(zip(KINDS, spent))
    if not (step.timeline.engine == _CC).any():
        del by_name["cc"]
    return {**by_name, "start and end": step.timeline.total - sum(spent)}


def by_label(step: Step, found: Pieces) -> dict[str, Ints]:
    """Picoseconds per kind by label of the calls, those with the most first."""
    t = step.timeline
    labels = list(dict.fromkeys(call.label for call in t.calls))
    of_call = np.array([labels.index(call.label) for call in t.calls], np.int64)
    cell = of_call[t.call[found.instruction]] * len(KINDS) + found.kind
    spent = np.bincount(cell, found.until - found.since, len(labels) * len(KINDS)).astype(np.int64)
    table = spent.reshape(len(labels), len(KINDS))
    order = np.argsort(-table.sum(1), kind="stable")
    return {labels[i]: table[i] for i in order.tolist() if table[i].any()}
