# SPDX-License-Identifier: Apache-2.0
"""The in-order pass: when each instruction of one call starts and ends. Integer picoseconds, compiled, no allocation.

An instruction starts when its engine has issued the one before and all its operands are ready:

    read        the last write of the slot is done, plus a semaphore, whoever wrote
    overwrite   the last write and all reads of the slot by *other* engines are done, plus a semaphore; an engine's
                own earlier instructions precede by the order of its pipeline
    half rate   the PE array looks back on each window of its clock: after a full-rate one with little work the next
                runs at half rate, after a half-rate one full of work at full rate (only where windows are asked for)
    DMA         the issuing engine is busy with the trigger only; the transfer follows on the DMA engines ("lanes"),
                in order within its queue; a transfer that is ready early may run before one that was issued earlier
                on another queue, so lanes remember their idle gaps

Engines are numbered as in `isa.base.Engine`; 5 stands for the DMA engines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Ints = np.ndarray[Any, np.dtype[np.int64]]
Array = np.ndarray[Any, Any]

ENGINES, LANES, RINGS = 5, 16, 5 * 16
GAPS = 8  # a power of two
HELD = 16  # intervals of a port that are remembered; a power of two
DMA = 5
CLASSES = 6  # engines and DMA: who may have read a slot
NEVER = -(1 << 60)
READ, WRITE = 1, 2
TENSOR, VECTOR, SCALAR = 0, 1, 2

# Columns of a cost row, see `plan`.
ENGINE, BUSY, LATENCY, EXPOSED, TABLE, PORTS, RING, SHARE, FIRST_LANE, NUM_LANES, STAGGER = range(11)
ROW = 11
SBUF_PORT, PSUM_PORT = 1, 2  # bits of PORTS

WINDOW_END, WORKED, HALF_RATE = range(3)  # of `Clocks.window`

# Why an instruction did not start earlier.
START, ISSUE, RAW, WAR, WAW, PORT = range(6)


class Clocks:
    """Where the engines and DMA lanes stand, carried from call to call. `base`: time of the earliest start."""

    def __init__(self, base: int) -> None:
        self.engine_free = np.full(ENGINES, base, np.int64)
        self.engine_last = np.full(ENGINES, -1, np.int64)
        self.window = np.array([base, 0, 1], np.int64)  # of the PE array: it starts at half rate
        self.table = np.zeros(1, np.int64)  # table set that ScalarE holds
        self.ring_begin = np.full((RINGS, 2), NEVER, np.int64)  # last descriptors: when, whose
        self.ring_free = np.full((RINGS, LANES), NEVER, np.int64)
        self.ring_last = np.full((RINGS, LANES), -1, np.int64)
        self.lane_free = np.full(LANES, base, np.int64)
        self.lane_last = np.full(LANES, -1, np.int64)
        self.gaps = np.zeros((LANES, GAPS, 3), np.int64)  # from, to, transfer that ends where the gap begins
        self.gap_end = np.full(LANES, NEVER, np.int64)  # no gap of the lane ends later
        self.port = np.full((2, 2, HELD, 3), NEVER, np.int64)  # port, side: from, to, instruction
        self.port_count = np.zeros((2, 2), np.int64)
        self.num_gaps = np.zeros(LANES, np.int64)  # so far; the last GAPS are kept


class Slots:
    """When the last write of each slot is done, by whom; the same of the last read by each engine and by DMA.

    What earlier calls have done counts as done by DMA, which everybody waits for.
    """

    def __init__(self, count: int) -> None:
        self.write = np.full(count, NEVER, np.int64)
        self.writer = np.full(count, DMA, np.int64)
        self.write_index = np.full(count, -1, np.int64)
        self.read = np.full((count, CLASSES), NEVER, np.int64)
        self.read_index = np.full((count, CLASSES), -1, np.int64)


@njit(cache=True)
def run(
    rows: Ints,
    row_of: Array,
    first_operand: Array,
    slot_first: Array,
    slot_last: Array,
    access: Array,
    base: int,
    semaphore: int,
    interval: int,
    completion: int,
    table_load: int,
    rate_window: int,
    warm_above: int,
    cool_below: int,
    window: Ints,
    engine_free: Ints,
    engine_last: Ints,
    table: Ints,
    ring_begin: Ints,
    ring_free: Ints,
    ring_last: Ints,
    lane_free: Ints,
    lane_last: Ints,
    gaps: Ints,
    gap_end: Ints,
    num_gaps: Ints,
    port: Ints,
    port_count: Ints,
    write: Ints,
    writer: Ints,
    write_index: Ints,
    read: Ints,
    read_index: Ints,
    start: Ints,
    end: Ints,
    begin: Ints,
    done: Ints,
    blocker: Array,
    cause: Array,
    held: Array,
) -> None:
    """Time the instructions of one call; `base` is the index of its first instruction in the whole timeline."""
    for i in range(row_of.shape[0]):
        row = rows[row_of[i]]
        engine = row[ENGINE]
        is_dma = row[RING] >= 0
        who = DMA if is_dma else engine
        t, by, why = engine_free[engine], engine_last[engine], ISSUE
        if by < 0:
            why = START
        for k in range(first_operand[i], first_operand[i + 1]):
            flags = access[k]
            for s in range(slot_first[k], slot_last[k] + 1):
                if flags & READ or is_dma or writer[s] != who:
                    ready = write[s] + semaphore
                    if ready > t or (ready == t and flags & READ):
                        t, by = ready, write_index[s]
                        why = RAW if flags & READ else WAW
                if flags & WRITE:
                    for other in range(CLASSES):
                        if other != who or is_dma:
                            ready = read[s, other] + semaphore
                            if ready > t:
                                t, by, why = ready, read_index[s, other], WAR
        busy = row[BUSY]
        if engine == TENSOR and not is_dma and t > engine_free[engine]:
            busy += row[EXPOSED]
        if rate_window and engine == TENSOR and not is_dma:
            busy = _paced(t, busy, rate_window, warm_above, cool_below, window)
        if row[TABLE] != 0 and row[TABLE] != table[0]:
            table[0] = row[TABLE]
            busy += table_load
        index = base + i
        if row[PORTS]:
            free, user = _port_free(row[PORTS], engine, t, busy, port, port_count)
            if free > t:
                t, by, why = free, user, PORT
            _hold_ports(row[PORTS], engine, t, busy, index, port, port_count)
        finish = t + busy
        engine_free[engine], engine_last[engine] = finish, index
        start[i], end[i], begin[i] = t, finish, t
        held[i] = -1
        if is_dma:
            ready = finish + row[LATENCY]
            begin[i], last, held[i] = _transfer(
                row,
                ready,
                interval,
                index,
                ring_begin,
                ring_free,
                ring_last,
                lane_free,
                lane_last,
                gaps,
                gap_end,
                num_gaps,
            )
            finish = last + completion
        else:
            finish += row[LATENCY]
        done[i], blocker[i], cause[i] = finish, by, why
        for k in range(first_operand[i], first_operand[i + 1]):
            flags = access[k]
            for s in range(slot_first[k], slot_last[k] + 1):
                if flags & READ and finish > read[s, who]:
                    read[s, who], read_index[s, who] = finish, index
                if flags & WRITE:
                    if finish > write[s]:
                        write[s] = finish
                    writer[s], write_index[s] = who, index


@njit(cache=True)
def _paced(t: int, work: int, length: int, warm_above: int, cool_below: int, window: Ints) -> int:
    """How long the PE array takes from `t` on for what takes `work` at full rate."""
    now = t
    while True:
        while window[WINDOW_END] <= now:
            limit = warm_above if window[HALF_RATE] else cool_below
            window[HALF_RATE] = 1 if window[WORKED] < limit else 0
            window[WORKED] = 0
            window[WINDOW_END] += length
        left = window[WINDOW_END] - now
        needed = 2 * work if window[HALF_RATE] else work
        if needed <= left:
            window[WORKED] += needed
            return now + needed - t
        window[WORKED] += left
        work -= left // 2 if window[HALF_RATE] else left
        now += left


@njit(cache=True)
def _port_free(ports: int, engine: int, t: int, busy: int, port: Ints, count: Ints) -> Any:
    """The earliest time from `t` on at which the engine that shares the ports leaves them alone for `busy`.

    An instruction may go before another that was issued earlier on the other engine and still waits for its operands.
    """
    other = 1 if engine == VECTOR else 0
    by, moved = np.int64(-1), True
    while moved:
        moved = False
        for p in range(2):
            if ports >> p & 1:
                first = last = count[p, other]
                while first > max(last - HELD, 0) and port[p, other, (first - 1) & (HELD - 1), 1] > t:
                    first -= 1
                for n in range(first, last):  # in order of time
                    held = port[p, other, n & (HELD - 1)]
                    if t < held[1] and held[0] < t + busy:
                        t, by, moved = held[1], held[2], True
    return t, by


@njit(cache=True)
def _hold_ports(ports: int, engine: int, t: int, busy: int, index: int, port: Ints, count: Ints) -> None:
    """Remember that an engine uses its ports from `t` on."""
    side = 0 if engine == VECTOR else 1
    for p in range(2):
        if ports >> p & 1:
            held = port[p, side, count[p, side] & (HELD - 1)]
            held[0], held[1], held[2] = t, t + busy, index
            count[p, side] += 1


@njit(cache=True)
def _transfer(
    row: Ints,
    ready: int,
    interval: int,
    index: int,
    ring_begin: Ints,
    ring_free: Ints,
    ring_last: Ints,
    lane_free: Ints,
    lane_last: Ints,
    gaps: Ints,
    gap_end: Ints,
    num_gaps: Ints,
) -> Any:
    """Place one transfer on its lanes; returns first byte, last byte, and what held back the lane that was last."""
    ring, share = row[RING], row[SHARE]
    first, last, held = np.int64(1) << 62, np.int64(NEVER), np.int64(-1)
    issued, by = max(ready, ring_begin[ring, 0] + interval), np.int64(-1)
    if issued > ready:
        by = ring_begin[ring, 1]
    lanes = range(row[FIRST_LANE], row[FIRST_LANE] + row[NUM_LANES])
    delay = np.int64(0)
    gap_may_fit = False
    for lane in lanes:
        gap_may_fit |= gap_end[lane] >= issued + share
    for lane in lanes:
        earliest, before = issued + delay, by
        delay += row[STAGGER]
        if ring_free[ring, lane] > earliest:
            earliest, before = ring_free[ring, lane], ring_last[ring, lane]
        fits = _fitting(gaps[lane], num_gaps[lane], earliest, share) if gap_may_fit else -1
        if fits >= 0:
            at, previous = _fill(gaps[lane, fits], earliest, share, index)
        else:
            free, previous = lane_free[lane], lane_last[lane]
            at = max(earliest, free)
            if at > free:  # the oldest gap is forgotten
                gap = gaps[lane, num_gaps[lane] & (GAPS - 1)]
                gap[0], gap[1], gap[2], gap_end[lane] = free, at, previous, at
                num_gaps[lane] += 1
            lane_free[lane], lane_last[lane] = at + share, index
        if at > earliest:
            before = previous
        ring_free[ring, lane], ring_last[ring, lane] = at + share, index
        first = min(first, at)
        if at + share > last:
            last, held = at + share, before
    ring_begin[ring, 0], ring_begin[ring, 1] = issued, index
    return first, last, held


@njit(cache=True)
def _fitting(gaps: Ints, count: int, earliest: int, share: int) -> int:
    """The first gap of a lane that has room for `share` from `earliest` on, or -1."""
    fits = -1
    for g in range(count - 1, max(count - GAPS, 0) - 1, -1):  # newest first: they are in order of time
        gap = gaps[g & (GAPS - 1)]
        if gap[1] < earliest + share:
            break
        if max(earliest, gap[0]) + share <= gap[1]:
            fits = g & (GAPS - 1)
    return fits


@njit(cache=True)
def _fill(gap: Ints, earliest: int, share: int, index: int) -> Any:
    """Take `share` of a gap and keep the longer rest; returns when, and the transfer that was in the way."""
    since, until, previous = gap[0], gap[1], gap[2]
    at = max(earliest, since)
    if at - since > until - at - share:
        gap[1] = at
    else:
        gap[0], gap[2] = at + share, index
    return at, previous
