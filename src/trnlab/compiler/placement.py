# SPDX-License-Identifier: Apache-2.0
"""Where temporary tensors lie in HBM: best fit over their lifetimes, longest-lived and largest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGN = 512  # bytes; DMA rows start on even addresses


@dataclass(frozen=True)
class Lifetime:
    """A tensor that is written by call `first` and last read by call `last`."""

    id: int
    nbytes: int
    first: int
    last: int


def place(lifetimes: Sequence[Lifetime]) -> tuple[dict[int, int], int]:
    """Byte offset of each tensor, and the size of the arena. Tensors alive at the same time never overlap."""
    placed: list[tuple[int, int, Lifetime]] = []  # start, end
    offsets: dict[int, int] = {}
    top = 0
    for item in sorted(lifetimes, key=lambda t: (-t.nbytes, t.first, t.id)):
        size = -(-item.nbytes // ALIGN) * ALIGN
        taken = sorted((s, e) for s, e, other in placed if other.first <= item.last and item.first <= other.last)
        start = _best_gap(taken, size)
        offsets[item.id] = start
        placed.append((start, start + size, item))
        top = max(top, start + size)
    return offsets, top


def _best_gap(taken: list[tuple[int, int]], size: int) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        room = start - end
        if room >= size and (best is None or room < best[0]):
            best = (room, end)
        end = max(end, stop)
    return end if best is None else best[1]
