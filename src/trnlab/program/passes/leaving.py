# SPDX-License-Identifier: Apache-2.0
"""Which tiles leave a memory between two of their uses: one sweep over a routine, as a compiled loop.

Tiles are numbered here in the order in which they become alive: by their first use, then by buffer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trnlab.loops import compiled
from trnlab.loops.heap import pop, push
from trnlab.program.passes.draft import WRITES, Draft, Ints


class TileUses(NamedTuple):
    """When the tiles of a memory are used: tile t at places[begin[t] : begin[t + 1]], in the order of the routine."""

    buffer: Ints
    last_write: Ints  # the last place that writes it
    begin: Ints
    places: Ints
    tile: Ints  # of each place
    uses: Ints  # indices of `places` by place, those of all tiles together
    ended: Ints  # tiles by their last use


def uses_of(draft: Draft, inside: np.ndarray[Any, np.dtype[np.bool_]]) -> TileUses:
    """The tiles whose buffer is `inside`, with their uses in the order of the routine."""
    routine = draft.order, draft.first, draft.owner.copy(), draft.access
    first, tile = np.full(len(inside), len(draft)), np.full(len(inside), -1)
    counts, none = np.zeros(len(inside), np.int64), np.empty(0, np.int64)
    total = _walk(*routine, inside, first, counts, tile, none, none, none)
    used = np.flatnonzero(counts)
    buffer = used[np.argsort(first[used], kind="stable")]
    tile[buffer] = np.arange(len(buffer))
    begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[buffer])])
    last_write, uses, places = np.full(len(buffer), -1), np.empty(total, np.int64), np.empty(total, np.int64)
    if total:
        _walk(*routine, inside, first, begin[:-1].copy(), tile, last_write, uses, places)
    ended = np.argsort(places[begin[1:] - 1], kind="stable")
    return TileUses(buffer, last_write, begin, places, np.repeat(np.arange(len(buffer)), counts[buffer]), uses, ended)


@compiled
def _walk(
    order: Ints,
    begins: Ints,
    owner: Ints,
    access: Ints,
    inside: Any,
    first: Ints,
    fill: Ints,
    tile: Ints,
    last_write: Ints,
    uses: Ints,
    places: Ints,
) -> int:  # pragma: no cover
    """Count the places at which each buffer is used in `fill`, and note its first; where there is room for uses, fill
    them in instead. Returns how many there are.
    """
    total, seen = 0, np.full(inside.shape[0], -1, np.int64)
    for place in range(order.shape[0]):
        for k in range(begins[order[place]], begins[order[place] + 1]):
            b = owner[k]
            if not inside[b]:
                continue
            if uses.shape[0] and access[k] & WRITES:
                last_write[tile[b]] = place
            if seen[b] == place:
                continue
            seen[b] = place
            if uses.shape[0]:
                t = tile[b]
                places[fill[t]], uses[total] = place, fill[t]
                fill[t] += 1
            else:
                first[b] = min(first[b], place)
                fill[b] += 1
            total += 1
    return total


@compiled
def leave(
    tiles: TileUses, size: Ints, fixed: Any, kept: Any, once_written: bool, wanted: int, limit: int, out: Ints
) -> int:  # pragma: no cover
    """Whenever tiles take more than `wanted` bytes, the one that can and is needed last leaves; where none can, they
    may take up to `limit`.

    fixed: tiles that stay. kept: tiles whose copy is good until they are written again. once_written: tiles leave
    after their last write only. out: for each that leaves, tile, the place after which, the place before which it has
    to be back, and whether its copy is still good. Returns how many leave.
    """
    begin, places = tiles.begin, tiles.places
    heap, waiting = np.empty(len(places), np.int64), 0
    aside, none = np.empty(len(places), np.int64), np.empty(0, np.int64)
    alive, passed = np.zeros(len(size), np.bool_), begin[:-1].copy()  # passed: uses up to now
    total, ending, seen, found = 0, 0, 0, 0
    for tile in range(len(size)):
        now = places[begin[tile]]
        while places[begin[tiles.ended[ending] + 1] - 1] < now:
            if alive[tiles.ended[ending]]:
                alive[tiles.ended[ending]] = False
                total -= size[tiles.ended[ending]]
            ending += 1
        while total + size[tile] > wanted:
            seen, waiting = _advance(tiles, now, seen, passed, heap, waiting, none)
            last_write = tiles.last_write if once_written else none
            victim, waiting = _furthest(tiles, now, alive, fixed, last_write, passed, heap, waiting, aside, none)
            if victim < 0:
                break
            before, after, first = places[passed[victim]], places[passed[victim] - 1], places[begin[victim]]
            out[found, 0], out[found, 1], out[found, 2] = victim, after, before
            out[found, 3] = kept[victim] and tiles.last_write[victim] == first
            alive[victim] = False
            total, found = total - size[victim], found + 1
        if total + size[tile] > limit:
            break
        alive[tile] = True
        total += size[tile]
    return found


@compiled
def _advance(
    tiles: TileUses, now: int, seen: int, passed: Ints, heap: Ints, waiting: int, none: Ints
) -> Any:  # pragma: no cover
    """Enter the tiles used up to `now` into the heap of those that wait: by their next use, the last first, then by
    tile. Returns how many uses that are, and how many are in the heap."""
    while seen < len(tiles.uses) and tiles.places[tiles.uses[seen]] <= now:
        use = tiles.uses[seen]
        tile = tiles.tile[use]
        passed[tile] = use + 1
        if use + 1 < tiles.begin[tile + 1]:
            waiting = push(heap, waiting, tile - tiles.places[use + 1] * len(passed), none)
        seen += 1
    return seen, waiting


@compiled
def _furthest(
    tiles: TileUses,
    now: int,
    alive: Any,
    fixed: Any,
    last_write: Ints,
    passed: Ints,
    heap: Ints,
    waiting: int,
    aside: Ints,
    none: Ints,
) -> Any:  # pragma: no cover
    """The tile that can leave now and is needed last, -1 where there is none; and how many are in the heap then."""
    victim, later = -1, 0
    while waiting > 0 and victim < 0:
        entry, waiting = pop(heap, waiting, none)
        tile = entry % len(passed)
        first, at = tiles.begin[tile], passed[tile]
        if fixed[tile] or (not alive[tile] and tiles.places[first] < now):
            continue  # it never leaves, or has left
        between = first < at and at < tiles.begin[tile + 1] and tiles.places[at - 1] != now
        if not alive[tile] or not between or (len(last_write) and last_write[tile] > now):
            aside[later] = entry  # not now
            later += 1
        elif entry == tile - tiles.places[at] * len(passed):
            victim = tile
    for k in range(later):
        waiting = push(heap, waiting, aside[k], none)
    return victim, waiting
