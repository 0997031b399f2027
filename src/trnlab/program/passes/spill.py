# SPDX-License-Identifier: Apache-2.0
"""Spilling: what does not fit leaves the memory between two of its uses.

A tile of PSUM that nobody writes any more is copied to SBUF, where all later readers find it. A tile of SBUF goes to
HBM and comes back before its next use, which costs two transfers: ordinary instructions of the routine, through
scratch memory named after the tile, which reports count as spills. Its copy in HBM stays good until it is written
again. Of the tiles that could leave, the one whose next use is furthest away does (Belady's rule). Several reloads
are under way at a time, so that engines compute meanwhile (ADR 123). Moving bits changes no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trnlab import isa
from trnlab.isa.base import Engine, Memory
from trnlab.program.access import AP, whole
from trnlab.program.builder import Builder
from trnlab.program.changes import Spill
from trnlab.program.passes.draft import OWNER, ROLE, WORK, Draft, Ints
from trnlab.program.passes.leaving import leave, uses_of
from trnlab.program.routine import COL

MOST_ROUNDS = 24
_FILLED = 0.87  # of SBUF, see `Policy.loads_share`: the rest is for tiles of several iterations
AHEAD = 8  # reloads that are under way at a time, as far as the rest has room for them
_QUEUES = 8  # rings that transfers take turns on


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


def spill(draft: Draft, memory: Memory, limit: int, unit: int, ahead: int = AHEAD) -> list[Spill]:
    """Move tiles out of `memory` until those alive at once take at most `limit` bytes, in multiples of `unit`.

    Returns what left; nothing where nothing could leave.
    """
    limit = limit if memory is Memory.PSUM else int(limit * _FILLED)
    wanted = limit // 2 // unit * unit if memory is Memory.PSUM else limit  # half is for tiles that live shortly
    log = _Log(memory)
    for _ in range(MOST_ROUNDS):
        chosen = _chosen(draft, (wanted, limit), unit, log)
        if not chosen:
            break
        _apply(draft, chosen, log, ahead)
    return log.spills


def _chosen(draft: Draft, room: tuple[int, int], unit: int, log: _Log) -> list[_Leave]:
    """One sweep over the routine: whenever tiles take more than the first number of `room`, one leaves that can.

    Where none can, they may take up to the second.
    """
    columns = draft.columns()
    tiles = uses_of(draft, columns.memory == int(log.memory))
    fixed, kept = np.zeros(len(draft.buffers), np.bool_), np.zeros(len(draft.buffers), np.bool_)
    fixed[[p.operand[COL["buffer"]] for p in draft.b.prints]] = True
    kept[list(log.copies)] = True
    size = -(-columns.nbytes[tiles.buffer] // unit) * unit
    found = np.empty((len(tiles.places), 4), np.int64)
    stays, after_last_write = (fixed[tiles.buffer], kept[tiles.buffer]), log.memory is Memory.PSUM
    count = leave(tiles, size, *stays, after_last_write, *room, found)
    rows = zip(tiles.buffer[found[:count, 0]].tolist(), found[:count, 1:].tolist())
    return [_Leave(number, after, before, saved=bool(saved)) for number, (after, before, saved) in rows]


def _apply(draft: Draft, leaves: list[_Leave], log: _Log, ahead: int) -> None:
    """Add copies out (and back), and bind later uses to where the tile is then."""
    b = draft.b
    added: list[tuple[int, int]] = []  # (place behind which, instruction)
    rebound: list[tuple[int, int, int]] = []  # (tile, from place, buffer)
    line = b.location
    room = int(b.sbuf_limit * (1 - _FILLED))
    back = _reload_places(leaves, ahead, [b.buffers[one.tile].nbytes for one in leaves], room)
    for turn, one in enumerate(leaves):
        log.add(draft, one)
        old, b.location = b.buffers[one.tile], b.made_at.get(one.tile)
        name = old.name.partition("'")[0]
        kept = b.unplaced(old.shape, old.dtype, Memory.SBUF, name=f"{name}'kept", first_partition=old.first_partition)
        b.made_at[kept.buffer.id] = b.location
        if log.memory is Memory.PSUM:
            b.append(isa.REGISTRY["tensor_copy"], None, None, {"dst": kept, "src": whole(old)})
            added.append((one.after, len(b) - 1))
        else:
            copy = log.copies[one.tile] if one.saved else b.scratch(f"{name} spilled", old.shape, old.dtype)
            log.copies[kept.buffer.id] = copy
            if not one.saved:
                _move(b, copy, whole(old), turn)
                added.append((one.after, len(b) - 1))
            _move(b, kept, copy, turn)
            added.append((back[turn], len(b) - 1))
        rebound.append((one.tile, one.before, kept.buffer.id))
    b.location = line
    _rebind(draft, added, rebound)


def _reload_places(leaves: list[_Leave], ahead: int, sizes: Sequence[int] = (), room: int = 0) -> list[int]:
    """Behind which place each tile comes back: when no more than `ahead` reloads are on their way with it, so that
    the chip computes meanwhile, and no sooner than it has left.

    sizes: bytes of each tile, of which `room` are on their way at a time, or a single tile.
    """
    order = sorted(range(len(leaves)), key=lambda turn: leaves[turn].before)
    places = [0] * len(leaves)
    first = under_way = 0
    for n, turn in enumerate(order):
        under_way += sizes[turn] if sizes else 0
        while first < n and (n - first >= ahead or under_way > room):
            under_way -= sizes[order[first]] if sizes else 0
            first += 1
        leave, sooner = leaves[turn], leaves[order[first]]
        places[turn] = max(min(sooner.before, leave.before) - 1, leave.after)
    return places


def _move(b: Builder, dst: AP, src: AP, turn: int) -> None:
    """One transfer between SBUF and HBM."""
    b.append(isa.REGISTRY["dma_copy"], Engine.SYNC, turn % _QUEUES, {"dst": dst, "src": src})


def _rebind(draft: Draft, added: list[tuple[int, int]], rebound: list[tuple[int, int, int]]) -> None:
    """Take in what the builder has recorded since, each in its place, and give operands other tiles."""
    count, place = len(draft), np.empty(len(draft), np.int64)
    place[draft.order] = np.arange(count)
    draft.movable |= {buffer for *_, buffer in rebound}
    begin = np.full(len(draft.buffers), count, np.int64)  # from which place on another tile stands for each
    instead = np.zeros(len(draft.buffers), np.int64)
    for tile, start, buffer in rebound:
        begin[tile], instead[tile] = start, buffer
    at = place[draft.of]
    later = np.flatnonzero(at >= begin[draft.owner])
    draft.references[later, OWNER] = instead[draft.owner[later]]
    _count_as_sbuf(draft, later[np.argsort(at[later], kind="stable")])
    draft.take_in()
    places = np.concatenate([np.arange(count, dtype=np.float64), [after + 0.5 for after, _ in added]])
    draft.order = draft.order[np.argsort(places, kind="stable")]


def _count_as_sbuf(draft: Draft, operands: Ints) -> None:
    """Let the cost of instructions be that of having these operands in SBUF."""
    masks = np.array([work.psum for work in draft.b.works], np.int64)
    of, role = draft.of[operands], draft.references[operands, ROLE]
    counted = masks[draft.rows[of, WORK]] >> role & 1 != 0
    works = draft.b.works
    for i, bit in zip(of[counted].tolist(), role[counted].tolist()):
        work = works[int(draft.rows[i, WORK])]
        draft.rows[i, WORK] = draft.b.work_index(replace(work, psum=work.psum & ~(1 << bit)))
        works = draft.b.works
