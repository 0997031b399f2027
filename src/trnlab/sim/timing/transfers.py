# SPDX-License-Identifier: Apache-2.0
"""Where a transfer finds room on the DMA engines ("lanes"): behind the last one, or in a gap that was left."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.loops import compiled
from trnlab.sim.timing.lanes import begins, fill, follow, measure, occupy, remember, settle
from trnlab.sim.timing.layout import (
    ARBITRATION,
    FIRST_LANE,
    FREE,
    GAPS,
    LANES,
    LAST,
    LOAD,
    NEVER,
    NO_CONTENTION,
    NUM_LANES,
    READY_FIRST,
    RING,
    SHARE,
    SPACING,
    STAGGER,
    STORE,
    TURN,
    WAY,
    WENT,
    WHOLE,
    Ints,
)


@compiled(forceinline=True)
def place_transfer(
    row: Ints,
    ready: int,
    parameters: Ints,
    index: int,
    issued: Ints,
    ring: Ints,
    lane: Ints,
    gap: Ints,
    gaps: Ints,
    cut: Ints,
    found: Ints,
) -> Any:
    """Place one transfer on its lanes; returns first byte, last byte, and what held back the lane that was last."""
    queue, share, stagger = np.uint64(row[RING]), row[SHARE], row[STAGGER]
    low = row[FIRST_LANE]
    first_lane, lanes = np.uint64(low), np.uint64(row[NUM_LANES])
    made, by, before = ready, np.int64(-1), issued[queue, 1]
    if issued[queue, 0] + row[SPACING] > made:
        made, by = issued[queue, 0] + row[SPACING], before
    issued[queue, 0], issued[queue, 1] = made, index
    if parameters[ARBITRATION] == NO_CONTENTION:
        return made, made + (row[NUM_LANES] - 1) * stagger + share, by
    if cut.shape[0]:
        share = _competing(max(made, lane[FREE, first_lane]), share, cut)
    fits = False
    for g in range(GAPS):
        fits |= (gaps[g, 0] >= made + share) & (gaps[g, 1] >= share)
    if fits and parameters[ARBITRATION] == READY_FIRST:
        if lanes == LANES:
            return _backfill_all(row, share, made, by, before, index, ring, lane, gap, gaps, found)
        return _backfill(row, share, made, by, before, index, ring, lane, gap, gaps)
    first, last, final, opened = np.int64(1) << 62, np.int64(NEVER), np.uint64(0), False
    turn = row[TURN] if lane[WENT, first_lane] + row[WAY] == LOAD + STORE else np.int64(0)
    if lanes == LANES:
        return _append_all(row, share, turn, made, by, index, ring, lane, gap, gaps)
    at, late = made, made
    for k in range(lanes):
        free = lane[FREE, first_lane + k] + turn
        begin = max(at, free)
        opened |= begin > free
        first = min(first, begin)
        if begin > last:
            last, final, late = begin, first_lane + k, at
        at += stagger
    if lane[FREE, final] + turn > late:
        by = lane[LAST, final]
    if opened:
        _remember(low, low + row[NUM_LANES], made, stagger, lane, gap, gaps, last)
    at = made
    for k in range(lanes):
        until = max(at, lane[FREE, first_lane + k] + turn) + share
        ring[queue, first_lane + k] = lane[FREE, first_lane + k] = until
        lane[LAST, first_lane + k], lane[WENT, first_lane + k] = index, row[WAY]
        at += stagger
    return first, last + share, by


@compiled(forceinline=True)
def _append_all(
    row: Ints, share: int, turn: int, made: int, by: int, index: int, ring: Ints, lane: Ints, gap: Ints, gaps: Ints
) -> Any:
    """As the rest of `place_transfer`, of one over all lanes."""
    stagger, state = row[STAGGER], lane.ctypes.data
    first, last, final, idle = begins(state, made, stagger, turn)
    if lane[FREE, np.uint64(final)] + turn > made + final * stagger:
        by = lane[LAST, np.uint64(final)]
    if idle:
        g = np.uint64(gaps[GAPS, 0] & (GAPS - 1))
        gaps[g, 1] = remember(state, _set(gap, g), made, stagger)[0]
        gaps[g, 0] = last
        gaps[GAPS, 0] += 1
    occupy(state, ring.ctypes.data + row[RING] * LANES * 8, made, stagger, share, turn, index, row[WAY])
    return first, last + share, by


@compiled(inline="always")
def _set(gap: Ints, g: int) -> Any:
    """The address of a set of gaps."""
    return gap.ctypes.data + np.int64(g) * 3 * LANES * 8


@compiled(forceinline=True)
def _backfill_all(
    row: Ints,
    share: int,
    made: int,
    by: int,
    before: int,
    index: int,
    ring: Ints,
    lane: Ints,
    gap: Ints,
    gaps: Ints,
    found: Ints,
) -> Any:
    """As `_backfill`, of a transfer over all lanes."""
    stagger, at, queue = row[STAGGER], found.ctypes.data, ring.ctypes.data + row[RING] * LANES * 8
    newest = gaps[GAPS, 0]
    fresh, left = newest & (GAPS - 1), np.int64((1 << LANES) - 1)
    for n in range(np.uint64(LANES)):
        found[0, n] = -1
    for k in range(max(newest - GAPS + 1, 0), newest):
        g = np.uint64(k & (GAPS - 1))
        if _has_room(g, made, share, gaps):
            taken = fill(_set(gap, g), queue, at, made, stagger, share, index)[0]
            if taken:
                gaps[g, 0], gaps[g, 1] = measure(_set(gap, g))
                left &= ~taken
                if left == 0:
                    break
    if left:
        state, way, turn = lane.ctypes.data, row[WAY], row[TURN]
        target = _set(gap, fresh)
        if follow(state, queue, at, target, made, stagger, share, turn, way, LOAD + STORE, index, NEVER)[0]:
            gaps[np.uint64(fresh), 0], gaps[np.uint64(fresh), 1] = measure(target)
            gaps[GAPS, 0] += 1
    return settle(queue, at, made, stagger, share, by, before)


@compiled
def _competing(begin: int, share: int, cut: Ints) -> int:
    """How long a lane takes from `begin` on for what takes `share` alone. Rows of `cut`, ascending: from when on, and
    how much of WHOLE is left of it.
    """
    low, high = 0, cut.shape[0] - 1  # the last row that begins no later
    while low < high:
        middle = (low + high + 1) // 2
        if cut[middle, 0] <= begin:
            low = middle
        else:
            high = middle - 1
    now, remaining = begin, share
    while low + 1 < cut.shape[0]:
        room = (cut[low + 1, 0] - now) * cut[low, 1] // WHOLE
        if room >= remaining:
            break
        now, remaining, low = cut[low + 1, 0], remaining - room, low + 1
    return int(now - begin + (remaining * WHOLE + cut[low, 1] - 1) // cut[low, 1])


@compiled(inline="always")
def _remember(low: int, high: int, made: int, stagger: int, lane: Ints, gap: Ints, gaps: Ints, last: int) -> None:
    """Note on which lanes a transfer from `made` on leaves a gap behind."""
    g = gaps[GAPS, 0] & (GAPS - 1)
    longest = np.int64(0)
    for n in range(LANES):
        at = max(made + (n - low) * stagger, lane[FREE, n])
        used = (n >= low) & (n < high)
        gap[g, 0, n] = lane[FREE, n] if used else NEVER
        gap[g, 1, n] = at if used else NEVER
        gap[g, 2, n] = lane[LAST, n]
        longest = max(longest, at - lane[FREE, n]) if used else longest
    gaps[g, 0], gaps[g, 1] = last, longest
    gaps[GAPS, 0] += 1


@compiled
def _backfill(
    row: Ints, share: int, made: int, by: int, before: int, index: int, ring: Ints, lane: Ints, gap: Ints, gaps: Ints
) -> Any:
    """As `place_transfer`, where some lane may have an idle gap that is long enough. before: the queue's last one."""
    queue, low = row[RING], row[FIRST_LANE]
    first, last, blocked = np.int64(1) << 62, np.int64(NEVER), np.int64(-1)
    newest = gaps[GAPS, 0]
    oldest = max(newest - GAPS + 1, 0)
    fresh, opened, filled = newest & (GAPS - 1), False, np.int64(0)
    end = newest  # sets without room for this transfer on any lane are left out at both ends
    while oldest < end and not _has_room(oldest & (GAPS - 1), made, share, gaps):
        oldest += 1
    while oldest < end and not _has_room((end - 1) & (GAPS - 1), made, share, gaps):
        end -= 1
    for n in range(low, low + row[NUM_LANES]):
        earliest, cause = made + (n - low) * row[STAGGER], by
        if ring[queue, n] > earliest:
            earliest, cause = ring[queue, n], before
        at: Any = np.int64(-1)
        for k in range(oldest, end):
            g = k & (GAPS - 1)
            if gaps[g, 0] >= earliest + share and gaps[g, 1] >= share:
                since, until = gap[g, 0, n], gap[g, 1, n]
                if max(earliest, since) + share <= until:
                    at, previous = max(earliest, since), gap[g, 2, n]
                    if at - since > until - at - share:  # keep the longer rest
                        gap[g, 1, n] = at
                    else:
                        gap[g, 0, n], gap[g, 2, n] = at + share, index
                    filled |= np.int64(1) << g
                    break
        if at < 0:
            free, previous = lane[FREE, n], lane[LAST, n]
            turn = row[TURN] if lane[WENT, n] + row[WAY] == LOAD + STORE else np.int64(0)
            at = max(earliest, free + turn)
            if at > free + turn:
                if not opened:  # the oldest gaps are forgotten
                    opened = True
                    gap[fresh, 0, :] = gap[fresh, 1, :] = NEVER
                gap[fresh, 0, n], gap[fresh, 1, n], gap[fresh, 2, n] = free, at, previous
            lane[FREE, n], lane[LAST, n], lane[WENT, n] = at + share, index, row[WAY]
        if at > earliest:
            cause = previous
        ring[queue, n] = at + share
        first = min(first, at)
        if at + share > last:
            last, blocked = at + share, np.int64(cause)
    if opened:
        gaps[GAPS, 0] += 1
        filled |= np.int64(1) << fresh
    for g in range(GAPS):
        if filled >> g & 1:
            _measure(g, gap, gaps)
    return first, last, blocked


@compiled(inline="always")
def _has_room(g: int, made: int, share: int, gaps: Ints) -> bool:
    """Whether some gap of a set may be long enough, and late enough, for `share` from `made` on."""
    return bool(gaps[g, 0] >= made + share) & bool(gaps[g, 1] >= share)


@compiled(inline="always")
def _measure(g: int, gap: Ints, gaps: Ints) -> None:
    """The latest end and the longest of a set of gaps."""
    latest, longest = np.int64(NEVER), np.int64(0)
    for n in range(LANES):
        latest, longest = max(latest, gap[g, 1, n]), max(longest, gap[g, 1, n] - gap[g, 0, n])
    gaps[g, 0], gaps[g, 1] = latest, longest
