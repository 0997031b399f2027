# SPDX-License-Identifier: Apache-2.0
"""How long a product takes in a blocking: its loads, transposes, products and results go through the engines once.

What `matmul` records is followed piece by piece, in its order and with the chip's costs of each instruction, but a
tile of the result is one step of the PE array, and all DMA engines are one. That takes a hundredth of what recording
and timing takes, and is within a few percent of it. Two calls of the product follow each other, each in SBUF of its
own, so that what overlaps with a neighbour counts half as much as what does not.

Letters: N resident, F streamed operand; a group is what meets in SBUF at once: pieces of N, a piece of F.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.loops import compiled

Ints = np.ndarray[Any, np.dtype[np.int64]]

P = 128
FULL = 1024  # columns by which costs are given, in picoseconds
GAPS = 16  # idle times of the DMA engines that are remembered, as the timing simulator does
QUEUES = 4  # of loads, and as many of stores
CALLS = 2
ARRIVALS = 4  # tiles of what an epilogue reads that are on their way, at most
NEVER = np.int64(1) << 60
# Of an operand, rows of `sides`: resident, streamed.
SIZE, BLOCK, PIECE, TILES, RAW, K_ROWS, UNIT, SHARE, TURN, SPREAD = range(10)
# Of the product.
LHS_RESIDENT, K, DEPTH, KEEP, SPILL, BANKS, TURNING, ROOM, APART, AHEAD, ANNOUNCED, PAIRS = range(12)
# Costs in picoseconds; those of columns are of FULL.
(
    MATMUL,
    MATMUL_COLUMNS,
    TRANSPOSE,
    PE_LATENCY,
    COPY,
    COPY_COLUMNS,
    COPY_LATENCY,
    SUM,
    SUM_COLUMNS,
    SUM_LATENCY,
    RESULT,
    TRIGGER,
    START,
    INTERVAL,
    COMPLETION,
    STORE_TRIGGER,
    STORE_START,
    STORE_COLUMNS,
    STORE_TURN,
) = range(19)
# Of a group, columns of `groups`.
FIRST_PIECE, PIECES, FAR_PIECE, ROWS, BEGINS, ENDS, BANK = range(7)
# Of a piece: the first and the last group that reads it, its columns, its rows; and when it has come, when the array
# may read it, and when the tile in which it waited to be transposed is free again.
FIRST, LAST, COLUMNS, PIECE_ROWS, CAME, READY, FREED = range(7)
# Where everything is, in `now`.
PE, SCALAR, VECTOR, SYNC, DMA, END, TURNED, STORING, NUM_GAPS, LOADS, STORES = range(11)
# How far each operand is, in `at`: pieces loaded, pieces transposed, jobs of the next one that are done.
LOADED, DONE, JOBS = range(3)
# `work`, which is planned and never changes but for what pieces note: sides, how, cost, groups, pieces, and how many
# pieces each operand has. `state`: now, gaps of the DMA engines, queues, when each bank for transposes and each for
# results is free, arrivals of what epilogues read, when each group was done, at.


@compiled
def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@compiled
def _plan(sides: Ints, how: Ints, groups: Ints, pieces: Ints) -> Any:
    """Write down all groups in order and the pieces that they read; returns how many groups, pieces of N and of F."""
    near, far = sides[0], sides[1]
    chunk, banks, count, before = how[DEPTH] * P, 0, 0, 0
    chunks, blocks = _ceil(how[K], chunk), _ceil(far[SIZE], far[BLOCK])
    once = chunks == 1 and blocks == 1
    for r in range(_ceil(near[SIZE], near[BLOCK])):
        across = _ceil(min(near[SIZE] - r * near[BLOCK], near[BLOCK]), near[PIECE])
        for s in range(blocks):
            singly = how[SPILL] > 0 or (chunks == 1 and (s == 0 or s == blocks - 1))
            for c in range(chunks):
                visit = before + (0 if how[KEEP] else s * chunks * across) + c * across
                streamed = 0 if once else (r * blocks + s) * chunks + c
                rows, columns = min(chunk, how[K] - c * chunk), min(far[PIECE], far[SIZE] - s * far[BLOCK])
                for part in range(across if singly else 1):
                    first, number = (visit + part, 1) if singly else (visit, across)
                    units = 0
                    for j in range(number):
                        column = r * near[BLOCK] + (part + j) * near[PIECE]
                        wide = min(near[PIECE], near[SIZE] - column)
                        units += _ceil(wide, near[UNIT])
                        _need(pieces[0, first + j], count, wide, rows)
                    _need(pieces[1, streamed], count, columns, rows)
                    group = groups[count]
                    group[FIRST_PIECE], group[PIECES], group[FAR_PIECE] = first, number, streamed
                    group[ROWS], group[BANK] = rows, banks
                    group[BEGINS], group[ENDS] = int(c == 0), int(c == chunks - 1)
                    banks += units * _ceil(columns, far[UNIT]) if group[ENDS] or how[SPILL] else 0
                    count += 1
        before += across * chunks * (1 if how[KEEP] else blocks)
    return count, before, 1 if once else _ceil(near[SIZE], near[BLOCK]) * blocks * chunks


@compiled
def _need(piece: Ints, group: int, columns: int, rows: int) -> None:
    """A group reads a piece."""
    piece[FIRST] = min(piece[FIRST], group)
    piece[LAST], piece[COLUMNS], piece[PIECE_ROWS] = group, columns, rows


@compiled
def _transfer(now: Ints, gaps: Ints, ready: int, share: int, turn: int) -> int:
    """Where the DMA engines have room for a transfer: in an idle time that is long enough, or behind the last.
    Returns when its last byte has passed."""
    for g in range(max(now[NUM_GAPS] - GAPS, 0), now[NUM_GAPS]):
        gap = gaps[g % GAPS]
        at = max(ready, gap[0])
        if at + share <= gap[1]:
            if at - gap[0] > gap[1] - at - share:  # the longer rest is kept
                gap[1] = at
            else:
                gap[0] = at + share
            return int(at + share)
    at = max(ready, now[DMA] + turn)
    if at > now[DMA] + turn:
        gap = gaps[now[NUM_GAPS] % GAPS]
        gap[0], gap[1] = now[DMA], at
        now[NUM_GAPS] += 1
    now[DMA] = at + share
    return int(at + share)


@compiled
def _side_of(turn: int, how: Ints) -> int:
    """The row of `sides` of the left operand (turn 0) and of the right one, in which order `matmul` goes through
    them."""
    return turn if how[LHS_RESIDENT] else 1 - turn


@compiled
def _share(side: Ints, piece: Ints, how: Ints) -> int:
    """For how long the DMA engines move a piece."""
    return int(side[SHARE] * piece[COLUMNS] * piece[PIECE_ROWS] // (side[PIECE] * min(how[K], how[DEPTH] * P)))


@compiled
def _load(x: int, work: Any, state: Any) -> None:
    """Load the next piece of operand `x` once its place is free."""
    sides, how, cost, _, pieces, _ = work
    now, gaps, queues, _, _, _, ends, at = state
    i, side = at[x, LOADED], sides[x]
    piece, before = pieces[x, i], np.int64(0)
    if side[K_ROWS] and i >= side[TILES]:
        before = ends[pieces[x, i - side[TILES], LAST]]
    if not side[K_ROWS] and i >= side[RAW]:
        before = pieces[x, i - side[RAW], FREED]
    now[SYNC] = max(now[SYNC], before) + cost[TRIGGER]
    queue = now[LOADS] % QUEUES
    made = max(now[SYNC] + cost[START], queues[0, queue, 0] + cost[INTERVAL])
    queues[0, queue, 0] = made
    share = _share(side, piece, how)
    turn = side[TURN] if now[STORING] else 0
    last = _transfer(now, gaps, max(made, queues[0, queue, 1]), share, turn)
    last = max(last, made + side[SPREAD] + share)
    queues[0, queue, 1] = last
    now[STORING], now[LOADS] = 0, now[LOADS] + 1
    piece[CAME] = last + cost[COMPLETION]
    at[x, LOADED] = i + 1
    if side[K_ROWS]:
        piece[READY], at[x, DONE] = piece[CAME], i + 1


@compiled
def _load_ahead(group: int, work: Any, state: Any) -> None:
    """Load into all tiles that are free before a group, what is needed first before the rest."""
    sides, how, _, _, pieces, counts = work
    at = state[-1]
    while True:
        best = -1
        for turn in range(2):
            x = _side_of(turn, how)
            i, side = at[x, LOADED], sides[x]
            if i == counts[x]:
                continue
            if side[K_ROWS]:
                free = i < side[TILES] or pieces[x, i - side[TILES], LAST] < group
            else:
                free = i - side[RAW] < at[x, DONE]
            if free and (best < 0 or pieces[x, i, FIRST] < pieces[best, at[best, LOADED], FIRST]):
                best = x
        if best < 0:
            return
        _load(best, work, state)


@compiled
def _jobs(side: Ints, piece: Ints, room: int) -> Any:
    """How a piece is transposed: k tiles of a job, such jobs, jobs across, columns of one, and jobs in all."""
    width = min(room, side[PIECE])
    most, across = max(1, room // piece[COLUMNS]), _ceil(piece[COLUMNS], width)
    full = piece[PIECE_ROWS] // P
    steps = _ceil(full, most)
    return most, full, across, width, (steps + (1 if piece[PIECE_ROWS] % P else 0)) * across


@compiled
def _backlog(group: int, work: Any, at: Ints) -> int:
    """Transposing jobs that groups up to this one wait for."""
    sides, how, _, _, pieces, counts = work
    found = np.int64(0)
    for x in range(2):
        i = at[x, DONE]
        if sides[x, K_ROWS] or i == counts[x] or pieces[x, i, FIRST] > group:
            continue
        found -= at[x, JOBS]
        while i < counts[x] and pieces[x, i, FIRST] <= group:
            found += _jobs(sides[x], pieces[x, i], how[ROOM])[4]
            i += 1
    return int(found)


@compiled
def _transpose(until: int, group: int, work: Any, state: Any) -> bool:
    """One job of those that groups up to `until` need, where a tile for it is free before `group`."""
    sides, how, cost, _, pieces, counts = work
    now, _, _, turned, _, _, ends, at = state
    for turn in range(2):
        x = _side_of(turn, how)
        i, side = at[x, DONE], sides[x]
        if side[K_ROWS] or i == counts[x] or pieces[x, i, FIRST] > until:
            continue
        free = np.int64(0)
        if i >= side[TILES]:
            if pieces[x, i - side[TILES], LAST] >= group:
                continue
            free = ends[pieces[x, i - side[TILES], LAST]]
        if at[x, LOADED] == i:
            _load(x, work, state)
        piece = pieces[x, i]
        most, full, across, width, jobs = _jobs(side, piece, how[ROOM])
        step, column = at[x, JOBS] // across, at[x, JOBS] % across
        tiles = min(most, full - step * most) if step * most < full else np.int64(1)
        columns = min(width, piece[COLUMNS] - column * width)
        bank = now[TURNED] % how[TURNING]
        now[TURNED] += 1
        now[PE] = max(now[PE], max(piece[CAME], turned[bank])) + tiles * _ceil(columns, P) * cost[TRANSPOSE]
        turned[bank] = _copy(now, how, cost, max(now[PE] + cost[PE_LATENCY], free), tiles * columns)
        at[x, JOBS] += 1
        if at[x, JOBS] == jobs:
            at[x, JOBS], at[x, DONE] = 0, i + 1
            piece[READY], piece[FREED] = turned[bank], now[PE]
        return True
    return False


@compiled
def _copy(now: Ints, how: Ints, cost: Ints, ready: int, columns: int) -> int:
    """Copy columns out of PSUM, where VectorE reaches it beside ScalarE by whoever is done sooner. Returns when."""
    busy = cost[COPY] + columns * cost[COPY_COLUMNS] // FULL
    added = cost[SUM] + columns * cost[SUM_COLUMNS] // FULL
    if how[APART] and now[VECTOR] + added <= now[SCALAR] + busy:
        now[VECTOR] = max(now[VECTOR], ready) + added
        return int(now[VECTOR] + cost[SUM_LATENCY])
    now[SCALAR] = max(now[SCALAR], ready) + busy
    return int(now[SCALAR] + cost[COPY_LATENCY])


@compiled
def _add(now: Ints, how: Ints, cost: Ints, ready: int, columns: int) -> int:
    """Add columns of PSUM to sums in SBUF, on VectorE; where both share PSUM's port, ScalarE's copies wait."""
    engine = VECTOR if how[APART] else SCALAR
    now[engine] = max(now[engine], ready) + cost[SUM] + columns * cost[SUM_COLUMNS] // FULL
    return int(now[engine] + cost[SUM_LATENCY])


@compiled
def _epilogue(
    now: Ints, how: Ints, cost: Ints, gaps: Ints, arrivals: Ints, ready: int, columns: int, share: int, turn: int
) -> int:
    """What follows the product is computed of a tile, beside copies out of PSUM; what it reads for a later tile is
    loaded next, which is half of the bytes that it moves. Returns when it is done."""
    now[VECTOR] = max(now[VECTOR], ready) + columns * cost[RESULT] // FULL
    done = now[VECTOR] + cost[COPY_LATENCY]
    last = _transfer(now, gaps, done + cost[START], share, turn if now[STORING] else 0)
    arrivals[(now[STORES] + how[ANNOUNCED]) % ARRIVALS] = last + cost[COMPLETION]
    now[STORING] = 0
    return int(done)


@compiled
def _finish(
    now: Ints, how: Ints, cost: Ints, gaps: Ints, queues: Ints, arrivals: Ints, ready: int, columns: int
) -> int:
    """A tile of the result leaves PSUM, and for HBM; returns when its bank is free."""
    share, turn = columns * cost[STORE_COLUMNS] // FULL, columns * cost[STORE_TURN] // FULL
    if cost[RESULT]:
        share, turn = share // 2, turn // 2
        ready = max(ready, arrivals[now[STORES] % ARRIVALS])
        free = ready + cost[COPY] + columns * cost[COPY_COLUMNS] // FULL + cost[COPY_LATENCY]
        done = _epilogue(now, how, cost, gaps, arrivals, ready, columns, share, turn)
    else:
        done = free = _copy(now, how, cost, ready, columns)
    queue = now[STORES] % QUEUES
    made = max(done + cost[STORE_TRIGGER] + cost[STORE_START], queues[1, queue, 0])
    queues[1, queue, 0] = _transfer(now, gaps, made, share, 0 if now[STORING] else turn)
    now[STORING], now[STORES] = 1, now[STORES] + 1
    now[END] = max(now[END], queues[1, queue, 0] + cost[COMPLETION])
    return int(free)


@compiled
def _columns(tile: int, group: Ints, how: Ints, sides: Ints, pieces: Ints) -> int:
    """Moving columns of a tile of a group's result; tiles follow each other row by row of the left operand."""
    far = pieces[1, group[FAR_PIECE], COLUMNS]
    if how[LHS_RESIDENT]:
        across = _ceil(far, sides[1, UNIT])
        return int(min(sides[1, UNIT], far - tile % across * sides[1, UNIT]))
    unit = sides[0, UNIT]
    units = tile % ((_tiles(group, sides, pieces)) // _ceil(far, sides[1, UNIT]))
    j = group[FIRST_PIECE]
    while units >= _ceil(pieces[0, j, COLUMNS], unit):
        units -= _ceil(pieces[0, j, COLUMNS], unit)
        j += 1
    return int(min(unit, pieces[0, j, COLUMNS] - units * unit))


@compiled
def _tiles(group: Ints, sides: Ints, pieces: Ints) -> int:
    """Tiles of a group's result."""
    units = np.int64(0)
    for j in range(group[FIRST_PIECE], group[FIRST_PIECE] + group[PIECES]):
        units += _ceil(pieces[0, j, COLUMNS], sides[0, UNIT])
    return int(units * _ceil(pieces[1, group[FAR_PIECE], COLUMNS], sides[1, UNIT]))


@compiled
def _matmuls(rows: int, pairs: int) -> int:
    """Matmuls of a tile of the result over so many rows; of two full k tiles where the array doubles its rows."""
    full = rows // P
    return full // 2 + full % 2 + (1 if rows % P else 0) if pairs else _ceil(rows, P)


@compiled
def _multiply(g: int, work: Any, state: Any) -> None:
    """The products of a group, with the transposes of those ahead spread among them."""
    sides, how, cost, groups, pieces, _ = work
    now, gaps, queues, _, banks, arrivals, _, at = state
    group = groups[g]
    for j in range(group[FIRST_PIECE], group[FIRST_PIECE] + group[PIECES]):
        now[PE] = max(now[PE], pieces[0, j, READY])
    now[PE] = max(now[PE], pieces[1, group[FAR_PIECE], READY])
    tiles, until = _tiles(group, sides, pieces), g + how[AHEAD]
    jobs, done = _backlog(until, work, at), 0
    for tile in range(tiles):
        columns, bank = _columns(tile, group, how, sides, pieces), (group[BANK] + tile) % how[BANKS]
        if group[BEGINS] or how[SPILL]:
            now[PE] = max(now[PE], banks[bank])
        count = _matmuls(group[ROWS], how[PAIRS])
        now[PE] += count * (cost[MATMUL] + columns * cost[MATMUL_COLUMNS] // FULL)
        ready = now[PE] + cost[PE_LATENCY]
        if how[SPILL]:
            first = group[BEGINS] and not group[ENDS]
            ready = _copy(now, how, cost, ready, columns) if first else _add(now, how, cost, ready, columns)
            banks[bank] = ready
        if group[ENDS]:
            banks[bank] = _finish(now, how, cost, gaps, queues, arrivals, ready, columns)
        while done < jobs * (tile + 1) // tiles:
            done += 1
            if not _transpose(until, g, work, state):
                done = jobs
    while _transpose(until, g, work, state):
        pass


@compiled
def _still_multiplied(sides: Ints, how: Ints, cost: Ints, groups: Ints, pieces: Ints, count: int) -> Any:
    """For how long the PE array multiplies at least from each of the groups on."""
    found = np.zeros(count + 1, np.int64)
    for g in range(count - 1, -1, -1):
        group, columns = groups[g], np.int64(0)
        for tile in range(_tiles(group, sides, pieces)):
            columns += cost[MATMUL] + _columns(tile, group, how, sides, pieces) * cost[MATMUL_COLUMNS] // FULL
        found[g] = found[g + 1] + _matmuls(group[ROWS], how[PAIRS]) * columns
    return found


@compiled
def _moved(work: Any) -> int:
    """For how long the DMA engines move the bytes of a call."""
    sides, how, cost, groups, pieces, counts = work
    found = np.int64(0)
    for x in range(2):
        for i in range(counts[x]):
            found += _share(sides[x], pieces[x, i], how)
    for g in range(len(groups)):
        if groups[g, ENDS]:
            for tile in range(_tiles(groups[g], sides, pieces)):
                share = _columns(tile, groups[g], how, sides, pieces) * cost[STORE_COLUMNS] // FULL
                found += 2 * (share // 2) if cost[RESULT] else share
    return int(found)


@compiled
def block_time(sides: Ints, how: Ints, cost: Ints, groups: Ints, pieces: Ints, limit: int) -> Any:
    """Picoseconds that a product takes of two that follow each other, and for which the DMA engines move its bytes.
    groups, pieces: room for what is planned. limit: of the sum of both; NEVER instead of the time where it is sure
    to be more."""
    pieces[:, :, FIRST] = NEVER
    count, near, far = _plan(sides, how, groups, pieces)
    now, ends, at = np.zeros(11, np.int64), np.zeros(count, np.int64), np.zeros((2, 3), np.int64)
    work = sides, how, cost, groups[:count], pieces, np.array([near, far])
    state = (
        now,
        np.zeros((GAPS, 2), np.int64),
        np.zeros((2, QUEUES, 2), np.int64),
        np.zeros(how[TURNING], np.int64),
        np.zeros(how[BANKS], np.int64),
        np.zeros(ARRIVALS, np.int64),
        ends,
        at,
    )
    moved, rest = _moved(work), _still_multiplied(sides, how, cost, groups, pieces, count)
    for call in range(CALLS):
        pieces[:, :, CAME:] = 0
        ends[:], at[:] = 0, 0
        for g in range(count):
            _load_ahead(g, work, state)
            while _transpose(g, g, work, state):
                pass
            _load_ahead(g, work, state)
            _multiply(g, work, state)
            ends[g] = now[PE]
            _load_ahead(g, work, state)
            if (now[PE] + rest[g + 1] + (CALLS - 1 - call) * rest[0]) // CALLS + moved > limit:
                return NEVER, moved
    return max(now[END], now[PE]) // CALLS, moved
