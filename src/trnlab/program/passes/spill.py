# SPDX-License-Identifier: Apache-2.0
"""Spilling: what does not fit leaves the memory between two of its uses.

A tile of PSUM that nobody writes any more is copied to SBUF, where all later readers find it. A tile of SBUF goes to
HBM and comes back before its next use, which costs two transfers: ordinary instructions of the routine, through
scratch memory named after the tile, which reports count as spills. Its copy in HBM stays good until it is written
again. Of the tiles that could leave, the one whose next use is furthest away does (Belady's rule). Several reloads
are under way at a time, so that engines compute meanwhile (ADR 123). Moving bits changes no value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from trnlab import isa
from trnlab.isa.base import Engine, Memory
from trnlab.program.access import AP, Buffer, whole
from trnlab.program.builder import Builder
from trnlab.program.changes import Spill
from trnlab.program.passes.draft import OWNER, ROLE, WORK, WRITES, Draft, Ints
from trnlab.program.routine import COL

MOST_ROUNDS = 24
_FILLED = 0.87  # of SBUF, see `Policy.loads_share`: the rest is for tiles of several iterations
_AHEAD = 8  # reloads that are under way at a time, as far as the rest has room for them
_QUEUES = 8  # rings that transfers take turns on


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
class _Leave:
    """A tile leaves after place `after`, to be back at place `before`. saved: its copy in HBM is still good."""

    tile: int
    after: int
    before: int
    saved: bool = False


class _Log:
    """What was spilled so far. copies: of tiles that came back, where in HBM their copy lies."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.copies = memory, dict[int, AP]()
        self.spills: list[Spill] = []

    def add(self, draft: Draft, leave: _Leave) -> None:
        """A tile leaves."""
        old = draft.buffers[leave.tile]
        size, back = old.partitions * old.nbytes, self.memory is Memory.SBUF
        self.spills.append(
            Spill(
                old.name.partition("'")[0],
                draft.b.made_at.get(leave.tile),
                self.memory.name.lower(),
                "hbm" if back else "sbuf",
                1,
                0 if leave.saved else size,
                size if back else 0,
            )
        )


def spill(draft: Draft, memory: Memory, limit: int, unit: int) -> tuple[Draft, list[Spill]]:
    """Move tiles out of `memory` until those alive at once take at most `limit` bytes, in multiples of `unit`.

    Returns the draft with the instructions added, and what left; nothing where nothing could leave.
    """
    limit = limit if memory is Memory.PSUM else int(limit * _FILLED)
    wanted = limit // 2 // unit * unit if memory is Memory.PSUM else limit  # half is for tiles that live shortly
    log = _Log(memory)
    for _ in range(MOST_ROUNDS):
        chosen = _chosen(draft, (wanted, limit), unit, log)
        if not chosen:
            break
        draft = _apply(draft, chosen, log)
    return draft, log.spills


def _chosen(draft: Draft, room: tuple[int, int], unit: int, log: _Log) -> list[_Leave]:
    """One sweep over the routine: whenever tiles take more than the first number of `room`, one leaves that can.

    Where none can, they may take up to the second.
    """
    tiles = _tiles(draft, log.memory)
    waiting = _Waiting(tiles, {p.operand[COL["buffer"]] for p in draft.b.prints}, log)
    alive: dict[int, int] = {}
    ending: list[tuple[int, int]] = []
    found: list[_Leave] = []
    total = 0
    for number in waiting.order:
        tile = tiles[number]
        now = tile.places[0]
        while ending and ending[0][0] < now:
            total -= alive.pop(heappop(ending)[1], 0)
        size = -(-tile.buffer.nbytes // unit) * unit
        while total + size > room[0]:
            victim = waiting.furthest(now, alive)
            if victim is None and total + size > room[1]:
                return found
            if victim is None:
                break
            found.append(victim)
            total -= alive.pop(victim.tile)
        alive[number] = size
        total += size
        heappush(ending, (tile.places[-1], number))
    return found


class _Waiting:
    """The tiles in the order of their next use, the last first, while a sweep over the routine goes on.

    order: tiles as they become alive; of equal ones the earliest leaves. fixed: tiles that stay.
    """

    def __init__(self, tiles: dict[int, _Tile], fixed: set[int], log: _Log) -> None:
        self.tiles, self.fixed, self.log = tiles, fixed, log
        self.order = sorted(tiles, key=lambda number: tiles[number].places[0])
        self._turn = {number: turn for turn, number in enumerate(self.order)}
        self._uses = sorted((place, number) for number, tile in tiles.items() for place in tile.places[:-1])
        self._seen = 0  # uses before the place that the sweep has come to
        self._heap: list[tuple[int, int, int]] = []  # minus the next use, turn, tile

    def furthest(self, now: int, alive: Mapping[int, int]) -> _Leave | None:
        """What can leave now and is needed last."""
        self._advance(now)
        aside, found = [], None
        while self._heap and found is None:
            entry = heappop(self._heap)
            number, tile = entry[2], self.tiles[entry[2]]
            uses = tile.around(now)
            if number in self.fixed or (number not in alive and tile.places[0] < now):
                continue  # it never leaves, or has left
            if number not in alive or uses is None or (self.log.memory is Memory.PSUM and tile.last_write > now):
                aside.append(entry)  # not now
            elif uses[1] == -entry[0]:
                saved = number in self.log.copies and tile.last_write == tile.places[0]
                found = _Leave(number, *uses, saved=saved)
        for entry in aside:
            heappush(self._heap, entry)
        return found

    def _advance(self, now: int) -> None:
        while self._seen < len(self._uses) and self._uses[self._seen][0] <= now:
            place, number = self._uses[self._seen]
            places = self.tiles[number].places
            heappush(self._heap, (-places[bisect_right(places, place)], self._turn[number], number))
            self._seen += 1


def _tiles(draft: Draft, memory: Memory) -> dict[int, _Tile]:
    """The tiles of a memory by number, with their uses in the order of the routine."""
    place = np.empty(len(draft), np.int64)
    place[draft.order] = np.arange(len(draft))
    tiles: dict[int, _Tile] = {}
    buffers = draft.buffers
    inside = (draft.columns().memory == int(memory))[draft.owner]
    at, owner, writes = place[draft.of[inside]], draft.owner[inside], draft.access[inside] & WRITES != 0
    uses = np.unique(np.stack([owner, at], axis=1), axis=0)  # by tile, and in order
    numbers, begin = np.unique(uses[:, 0], return_index=True)
    last_write = np.full(len(buffers), -1, np.int64)
    np.maximum.at(last_write, owner[writes], at[writes])
    ends, places = [*begin[1:].tolist(), len(uses)], uses[:, 1].tolist()
    for number, first, end in zip(numbers.tolist(), begin.tolist(), ends):
        tiles[number] = _Tile(buffers[number], places[first:end], int(last_write[number]))
    return tiles


def _apply(draft: Draft, leaves: list[_Leave], log: _Log) -> Draft:
    """The draft with copies out (and back), and later uses bound to where the tile is then."""
    b, order = draft.b, draft.order
    b.replace(draft.rows, draft.references, order)
    added: list[tuple[int, int]] = []  # (place behind which, instruction)
    rebound: list[tuple[int, int, int]] = []  # (tile, from place, buffer)
    line = b.location
    room = int(b.sbuf_limit * (1 - _FILLED))
    back = _reload_places(leaves, [b.buffers[leave.tile].nbytes for leave in leaves], room)
    for turn, leave in enumerate(leaves):
        log.add(draft, leave)
        old, b.location = b.buffers[leave.tile], b.made_at.get(leave.tile)
        name = old.name.partition("'")[0]
        kept = b.unplaced(old.shape, old.dtype, Memory.SBUF, name=f"{name}'kept", first_partition=old.first_partition)
        b.made_at[kept.buffer.id] = b.location
        if log.memory is Memory.PSUM:
            b.append(isa.REGISTRY["tensor_copy"], None, None, {"dst": kept, "src": whole(old)})
            added.append((leave.after, len(b) - 1))
        else:
            copy = log.copies[leave.tile] if leave.saved else b.scratch(f"{name} spilled", old.shape, old.dtype)
            log.copies[kept.buffer.id] = copy
            if not leave.saved:
                _move(b, copy, whole(old), turn)
                added.append((leave.after, len(b) - 1))
            _move(b, kept, copy, turn)
            added.append((back[turn], len(b) - 1))
        rebound.append((leave.tile, leave.before, kept.buffer.id))
    b.location = line
    return _rebound(draft, len(order), added, rebound)


def _reload_places(leaves: list[_Leave], sizes: Sequence[int] = (), room: int = 0) -> list[int]:
    """Behind which place each tile comes back: when no more than `_AHEAD` reloads are on their way with it, so that
    the chip computes meanwhile, and no sooner than it has left.

    sizes: bytes of each tile, of which `room` are on their way at a time, or a single tile.
    """
    order = sorted(range(len(leaves)), key=lambda turn: leaves[turn].before)
    places = [0] * len(leaves)
    first = under_way = 0
    for n, turn in enumerate(order):
        under_way += sizes[turn] if sizes else 0
        while n - first >= _AHEAD or (under_way > room and first < n):
            under_way -= sizes[order[first]] if sizes else 0
            first += 1
        leave, sooner = leaves[turn], leaves[order[first]]
        places[turn] = max(min(sooner.before, leave.before) - 1, leave.after)
    return places


def _move(b: Builder, dst: AP, src: AP, turn: int) -> None:
    """One transfer between SBUF and HBM."""
    b.append(isa.REGISTRY["dma_copy"], Engine.SYNC, turn % _QUEUES, {"dst": dst, "src": src})


def _rebound(draft: Draft, count: int, added: list[tuple[int, int]], rebound: list[tuple[int, int, int]]) -> Draft:
    """What the builder holds now, with the instructions that were added in their places.

    count: of the instructions before them.
    """
    made = Draft(draft.b, draft.movable | {buffer for *_, buffer in rebound}, draft.policy)
    begin = np.full(len(made.buffers), count, np.int64)  # from which place on another tile stands for each
    instead = np.zeros(len(made.buffers), np.int64)
    for tile, start, buffer in rebound:
        begin[tile], instead[tile] = start, buffer
    later = np.flatnonzero((made.of >= begin[made.owner]) & (made.of < count))
    made.references[later, OWNER] = instead[made.owner[later]]
    _count_as_sbuf(made, later)
    places = np.concatenate([np.arange(count, dtype=np.float64), [after + 0.5 for after, _ in added]])
    made.order = np.argsort(places, kind="stable")
    return made


def _count_as_sbuf(draft: Draft, operands: Ints) -> None:
    """Let the cost of instructions be that of having these operands in SBUF."""
    works = draft.b.works
    for i, role in zip(draft.of[operands].tolist(), draft.references[operands, ROLE].tolist()):
        work = works[int(draft.rows[i, WORK])]
        if work.psum >> role & 1:
            draft.rows[i, WORK] = draft.b.work_index(replace(work, psum=work.psum & ~(1 << role)))
            works = draft.b.works
