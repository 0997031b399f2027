# SPDX-License-Identifier: Apache-2.0
"""What the time of a step went to: the longest chain of dependencies, cut into pieces.

Each instruction of the chain answers for the time from when it was let go (or its bytes were) until the next one was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnlab.profile.data import Ints, Step
from trnlab.timeline import CAUSES, ENGINES, Timeline

DMA, LATENCY = len(ENGINES), len(ENGINES) + 1
KINDS = (*ENGINES, "dma", "latency")
Piece = tuple[int, int, int, int]  # instruction, since, until, kind
_ISSUE = CAUSES.index("issue")


@dataclass(frozen=True)
class Pieces:
    """The chain in order of time, without gaps. kind: an index of KINDS; latency is what neither an engine nor a DMA
    engine worked at: semaphores, and the way of a transfer from its trigger to the first byte and after the last.
    """

    instruction: Ints
    since: Ints
    until: Ints
    kind: Ints


def pieces(step: Step) -> Pieces:
    """The chain of a step, cut where its time changes kind."""
    t, path = step.timeline, step.critical.tolist()
    is_dma = np.array([op.lanes > 0 for op in t.ops], bool)
    found: list[Piece] = []
    by_issue, until = False, int(t.done[path[-1]]) if path else 0
    for at in range(len(path) - 1, -1, -1):
        i = path[at]
        before = path[at - 1] if at else -1
        of_transfer = not by_issue and before >= 0 and int(t.held[i]) == before
        since = int(t.begin[i] if of_transfer else t.start[i])
        found.extend(reversed(_cut(t, i, since, until, by_issue, bool(is_dma[t.op[i]]))))
        by_issue, until = not of_transfer and int(t.cause[i]) == _ISSUE, since
    columns = np.array(found[::-1], np.int64).reshape(-1, 4)
    return Pieces(*(columns[:, i] for i in range(4)))


def _cut(t: Timeline, i: int, since: int, until: int, by_issue: bool, is_dma: bool) -> list[Piece]:
    """The time of one instruction: waiting for the first byte, work, and what follows until the next one starts."""
    if is_dma and not by_issue:
        starts, worked, kind = int(t.begin[i]), min(until, int(t.done[i]) - t.completion), DMA
    else:
        starts, worked, kind = since, min(until, int(t.end[i] if by_issue else t.done[i])), int(t.engine[i])
    cuts = ((since, starts, LATENCY), (starts, worked, kind), (worked, until, LATENCY))
    return [(i, a, b, k) for a, b, k in cuts if b != a]


def by_kind(step: Step, found: Pieces) -> dict[str, int]:
    """Picoseconds by kind, and of the start and end of the program; they add up to the step."""
    spent = np.bincount(found.kind, found.until - found.since, len(KINDS)).astype(np.int64).tolist()
    return {**dict(zip(KINDS, spent)), "start and end": step.timeline.total - sum(spent)}


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
