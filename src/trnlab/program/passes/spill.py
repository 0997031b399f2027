# SPDX-License-Identifier: Apache-2.0
"""Spilling: what does not fit leaves the memory between two of its uses.

A tile of PSUM that nobody writes any more is copied to SBUF, where all later readers find it. A tile of SBUF goes to
HBM and comes back before its next use, which costs two transfers: ordinary instructions of the routine, through
scratch memory named after the tile, which reports count as spills. Of the tiles that could leave, the one whose next
use is furthest away does (Belady's rule). Moving bits changes no value.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from trnlab import isa
from trnlab.isa.base import Engine, Memory
from trnlab.program.access import Buffer, whole
from trnlab.program.passes.draft import OWNER, WRITES, Draft

MOST_ROUNDS = 24
_FILLED = 0.97  # of SBUF: tiles of different sizes leave gaps


@dataclass
class _Tile:
    """When a tile is used: places in the order of the routine, and the last place that writes it."""

    buffer: Buffer
    places: list[int]
    last_write: int

    def around(self, now: int) -> tuple[int, int] | None:
        """The uses before and after `now`; None where there are none on both sides, or one at `now`."""
        at = bisect_right(self.places, now)
        if at == 0 or at == len(self.places) or self.places[at - 1] == now:
            return None
        return self.places[at - 1], self.places[at]


@dataclass(frozen=True)
class _Spill:
    """A tile leaves after place `after` and is needed again at place `before`."""

    tile: int
    after: int
    before: int


def spill(draft: Draft, memory: Memory, limit: int, unit: int) -> Draft | None:
    """Move tiles out of `memory` until those alive at once take at most `limit` bytes, in multiples of `unit`.

    Returns the draft with the instructions added, or None where nothing could leave.
    """
    room = limit if memory is Memory.PSUM else int(limit * _FILLED)
    moved = False
    for _ in range(MOST_ROUNDS):
        chosen = _chosen(draft, memory, room, unit)
        if not chosen:
            return draft if moved else None
        draft, moved = _apply(draft, chosen, memory), True
    return draft


def _chosen(draft: Draft, memory: Memory, room: int, unit: int) -> list[_Spill]:
    """One sweep over the routine: whenever a tile finds no room, another leaves."""
    tiles = _tiles(draft, memory)
    opens: dict[int, list[int]] = {}
    for number, tile in tiles.items():
        opens.setdefault(tile.places[0], []).append(number)
    alive: dict[int, int] = {}
    found: list[_Spill] = []
    for now in sorted(opens):
        for number in [n for n in alive if tiles[n].places[-1] < now]:
            del alive[number]
        for number in opens[now]:
            size = -(-tiles[number].buffer.nbytes // unit) * unit
            while sum(alive.values()) + size > room:
                victim = _furthest(tiles, alive, now, memory)
                if victim is None:
                    return found
                found.append(victim)
                del alive[victim.tile]
            alive[number] = size
    return found


def _tiles(draft: Draft, memory: Memory) -> dict[int, _Tile]:
    """The tiles of a memory by number, with their uses in the order of the routine."""
    place = np.empty(len(draft), np.int64)
    place[draft.order] = np.arange(len(draft))
    tiles: dict[int, _Tile] = {}
    inside = np.array([b.memory is memory for b in draft.buffers])[draft.owner]
    at, owner, access = place[draft.of[inside]], draft.owner[inside], draft.access[inside]
    for k in np.argsort(at, kind="stable").tolist():
        tile = tiles.setdefault(int(owner[k]), _Tile(draft.buffers[int(owner[k])], [], -1))
        if not tile.places or tile.places[-1] != at[k]:
            tile.places.append(int(at[k]))
        if access[k] & WRITES:
            tile.last_write = int(at[k])
    return tiles


def _furthest(tiles: dict[int, _Tile], alive: dict[int, int], now: int, memory: Memory) -> _Spill | None:
    """What can leave now and is needed last."""
    best: _Spill | None = None
    for number in alive:
        uses = tiles[number].around(now)
        if uses is None or (memory is Memory.PSUM and tiles[number].last_write > now):
            continue
        if best is None or uses[1] > best.before:
            best = _Spill(number, *uses)
    return best


def _apply(draft: Draft, spills: list[_Spill], memory: Memory) -> Draft:
    """The draft with copies out (and back), and later uses bound to where the tile is then."""
    b, order = draft.b, draft.order
    b.replace(draft.rows, draft.references, order)
    added: list[tuple[int, int]] = []  # (place behind which, instruction)
    rebound: list[tuple[int, int, int]] = []  # (tile, from place, buffer)
    for s in spills:
        old = b.buffers[s.tile]
        kept = b.unplaced(
            old.shape, old.dtype, Memory.SBUF, name=f"{old.name}'kept", first_partition=old.first_partition
        )
        if memory is Memory.PSUM:
            b.append(isa.REGISTRY["tensor_copy"], None, None, {"dst": kept, "src": whole(old)})
            added.append((s.after, len(b) - 1))
        else:
            spilled = b.scratch(f"{old.name} spilled", old.shape, old.dtype)
            b.append(isa.REGISTRY["dma_copy"], Engine.SYNC, 0, {"dst": spilled, "src": whole(old)})
            added.append((s.after, len(b) - 1))
            b.append(isa.REGISTRY["dma_copy"], Engine.SYNC, 1, {"dst": kept, "src": spilled})
            added.append((s.before - 1, len(b) - 1))
        rebound.append((s.tile, s.before, kept.buffer.id))
    made = Draft(b, draft.movable | {buffer for *_, buffer in rebound})
    for tile, start, buffer in rebound:
        later = (made.owner == tile) & (made.of >= start) & (made.of < len(order))
        made.references[later, OWNER] = buffer
    places = np.concatenate([np.arange(len(order), dtype=np.float64), [after + 0.5 for after, _ in added]])
    made.order = np.argsort(places, kind="stable")
    return made
