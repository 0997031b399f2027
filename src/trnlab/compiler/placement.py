# SPDX-License-Identifier: Apache-2.0
"""Where temporary tensors lie in HBM: best fit over their lifetimes, longest-lived and largest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.compiler.communication import spans
from trnlab.loops import compiled
from trnlab.program import Call, ProgramTensor, Routine

Ints = np.ndarray[Any, np.dtype[np.int64]]
ALIGN = 512  # bytes; DMA rows start on even addresses


@dataclass(frozen=True)
class Lifetime:
    """A tensor that is written by call `first` and last read by call `last`."""

    id: int
    nbytes: int
    first: int
    last: int


def lifetimes_of(tensors: Iterable[ProgramTensor], calls: Sequence[Call], code: Sequence[Routine]) -> list[Lifetime]:
    """From which call to which each tensor keeps its place: calls beside each other need all of theirs at once, and a
    collective keeps its own until it is done."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    begins = [i for i, call in enumerate(calls) if not call.concurrent]
    for start, end in zip(begins, [*begins[1:], len(calls)]):
        for id in (id for call in calls[start:end] for id in call.args):
            first.setdefault(id, start)
            last[id] = end - 1
    for start, done in spans(calls, code):
        for id in calls[start].args:
            last[id] = max(last[id], done)
    return [Lifetime(t.id, t.nbytes, first[t.id], last[t.id]) for t in tensors]


def place(lifetimes: Sequence[Lifetime]) -> tuple[dict[int, int], int]:
    """Byte offset of each tensor, and the size of the arena. Tensors alive at the same time never overlap."""
    ordered = sorted(lifetimes, key=lambda t: (-t.nbytes, t.first, t.id))
    sizes = [-(-t.nbytes // ALIGN) * ALIGN for t in ordered]
    wanted = np.array([(t.first, t.last, size) for t, size in zip(ordered, sizes)], np.int64).reshape(-1, 3)
    starts = np.empty(len(ordered), np.int64)
    _best_gaps(wanted, starts)
    offsets = {t.id: start for t, start in zip(ordered, starts.tolist())}
    return offsets, int((starts + wanted[:, 2]).max(initial=0))


def place_in_turn(lifetimes: Iterable[Lifetime], room: int) -> tuple[dict[int, int], int]:
    """The same within so many bytes, each where the first gap is that those before it leave, and in order of their
    first calls: layers that repeat have their tensors in the same places, and share routines that know these.

    Where there is no gap, what is read last of all that wait there has no place (as Belady's cache would have it).
    """
    offsets: dict[int, int] = {}
    ends: dict[int, int] = {}
    alive: list[tuple[int, int, Lifetime]] = []
    for item in sorted(lifetimes, key=lambda t: (t.first, t.id)):
        size = -(-item.nbytes // ALIGN) * ALIGN
        alive = sorted((entry for entry in alive if entry[2].last >= item.first), key=lambda entry: entry[:2])
        while (start := _first_gap(alive, size)) + size > room:
            out = max([*(t for _, _, t in alive), item], key=lambda t: (t.last, t.nbytes, t.id))
            if out is item:
                break
            alive = [entry for entry in alive if entry[2] is not out]
            del offsets[out.id]
        else:
            offsets[item.id] = start
            alive.append((start, start + size, item))
            ends[item.id] = start + size
    return offsets, max((ends[id] for id in offsets), default=0)


def _first_gap(taken: Iterable[tuple[int, int, Lifetime]], size: int) -> int:
    """The first byte behind which nobody has the next `size`, of places in their order."""
    start = 0
    for low, high, _ in taken:
        if low - start >= size:
            break
        start = max(start, high)
    return start


@compiled
def _best_gaps(wanted: Ints, starts: Ints) -> None:
    """Where each of these lies: in the smallest gap that those before it leave which are there when it is, the first
    of equal ones, or behind all of them. wanted: rows of first and last call, and bytes."""
    order = np.empty(len(wanted), np.int64)  # of those that have a place, by start and end
    for i in range(len(wanted)):
        first, last, size = wanted[i]
        end, best, least = 0, -1, 0
        for n in range(i):
            other = order[n]
            if wanted[other, 0] > last or first > wanted[other, 1]:
                continue
            room = starts[other] - end
            if room >= size and (best < 0 or room < least):
                best, least = end, room
            end = max(end, starts[other] + wanted[other, 2])
        starts[i] = best if best >= 0 else end
        n = i
        while n > 0 and (starts[order[n - 1]], wanted[order[n - 1], 2]) > (starts[i], size):
            order[n] = order[n - 1]
            n -= 1
        order[n] = i
