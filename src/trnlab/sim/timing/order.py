# SPDX-License-Identifier: Apache-2.0
"""The in-order pass: when each instruction of one call starts and ends. Integer picoseconds, compiled, no allocation.

An instruction starts when its engine has issued the one before and all its operands are ready:

    read        the last write of the slot is done, plus a semaphore, whoever wrote
    overwrite   the last write and all reads of the slot by *other* engines are done, plus a semaphore; an engine's
                own earlier instructions precede by the order of its pipeline
    ports       engines that share a port of a memory take turns, see `plan`
    part        instructions on different parts of the PE array run side by side
    weights     the PE array takes those of the next instruction while it works on this one, when they are there
    tables      ScalarE loads those of a function when the instructions before have been issued, those of the first
                function when the program begins; what of it is left when the operands are there, lengthens it
    half rate   the PE array looks back on each window of its clock: after one with little work the next runs at half
                rate, after one with more at full rate (only where windows are asked for)
    DMA         the issuing engine is busy with the trigger only; the transfer follows on the DMA engines ("lanes"),
                in order within its queue; a transfer that is ready early may run before one that was issued earlier
                on another queue, so lanes remember their idle gaps (unless they serve in the order of the program);
                a trigger whose descriptors software makes starts some time after its operands are ready
    cut         while collectives are on their way, transfers move at what these leave of the DMA engines and HBM
                (`streams`): as their first byte could move, so do all

Engines are numbered as in `isa.base.Engine`. Of who did something to a slot, 5 stands for the DMA engines, and
for the CC cores, who move data by them: everybody waits for both, and they for everybody.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.loops import compiled
from trnlab.sim.timing.layout import (
    ARBITRATION,
    BANKS,
    BEGAN,
    BUSY,
    CC,
    COMPLETION,
    DMA,
    ENDS,
    ENGINE,
    ENGINES,
    EXPOSED,
    FILL,
    FREE,
    FULL_ABOVE,
    GAPS,
    HALF_LATENCY,
    HALF_RATE,
    HELD,
    HOLDER,
    ISSUE,
    ISSUE_GAP,
    LANES,
    LAST,
    LATENCY,
    MORE_MASK,
    MORE_SHIFT,
    NEVER,
    NO_CONTENTION,
    OF_READ,
    OF_READ_BEFORE,
    OF_READER,
    OF_READER_BEFORE,
    OF_WRITER,
    PART,
    PARTS,
    PARTS_OF_ARRAY,
    PORT,
    PORTS,
    PORTS_COUNT,
    PROGRAM_ORDER,
    PSUM_BANK,
    PSUM_PORT,
    RAW,
    READ,
    READ_SHIFT,
    READER,
    READER_BEFORE,
    RING,
    RINGS,
    SBUF_PORT,
    SEMAPHORE,
    SLOT,
    SLOT_MASK,
    SLOT_ROW,
    SLOW,
    START,
    TABLE,
    TABLE_LOAD,
    TABLES,
    TENSOR,
    VECTOR,
    WAKE,
    WAR,
    WAW,
    WEIGHTS,
    WENT,
    WINDOW,
    WINDOW_END,
    WORKED,
    WRITE,
    WRITER,
    Array,
    Ints,
)
from trnlab.sim.timing.transfers import place_transfer


class Clocks:
    """Where the engines and DMA lanes stand, carried from call to call. `base`: time of the earliest start."""

    def __init__(self, base: int) -> None:
        self.engine = np.full((ENGINES, 2), base, np.int64)
        self.engine[:, LAST] = -1
        self.part = np.full((PARTS_OF_ARRAY + 1, 2), NEVER, np.int64)  # of the PE array: free when, held by whom
        self.window = np.array([base, 0, 1], np.int64)  # of the PE array: it starts at half rate
        self.unit = np.array([0, base], np.int64)  # table set that ScalarE holds; when the PE array took its weights
        self.port = np.full((PORTS_COUNT, 2, HELD, 3), NEVER, np.int64)  # port, side: from, to, instruction
        self.port_count = np.zeros((PORTS_COUNT, 2), np.int64)
        self.issued = np.full((RINGS, 2), NEVER, np.int64)  # last descriptors of a queue: when, whose
        self.ring = np.full((RINGS, LANES), NEVER, np.int64)  # last byte of a queue on each lane
        self.lane = np.full((3, LANES), base, np.int64)  # last byte of each lane, whose, and which way it went
        self.lane[LAST], self.lane[WENT] = -1, 0
        self.gap = np.full((GAPS, 3, LANES), NEVER, np.int64)  # from, to, transfer that ends where the gap begins
        self.gaps = np.full((GAPS + 1, 2), NEVER, np.int64)  # of each set of gaps: the latest end, and the longest
        self.gaps[GAPS, 0] = 0  # how many sets so far; the last GAPS are kept
        self.cut = np.zeros((0, 2), np.int64)  # from when on, and how much of each lane collectives leave

    def settle(self) -> None:
        """Turn what is kept in turns so that the oldest comes first: the same clocks, however long they have run."""
        _settle(self.port, self.port_count, self.gap, self.gaps)


@compiled
def _settle(port: Ints, port_count: Ints, gap: Ints, gaps: Ints) -> None:
    """See `Clocks.settle`."""
    held = np.empty((HELD, 3), np.int64)
    for p in range(PORTS_COUNT):
        for side in range(2):
            if port_count[p, side] > HELD:
                for i in range(3 * HELD):
                    held[i // 3, i % 3] = port[p, side, i // 3, i % 3]
                for i in range(3 * HELD):
                    port[p, side, i // 3, i % 3] = held[(port_count[p, side] + i // 3) & (HELD - 1), i % 3]
                port_count[p, side] = HELD
    if gaps[GAPS, 0] > GAPS:
        oldest, row = gaps[GAPS, 0], np.empty(GAPS, np.int64)
        for i in range(3 * LANES):
            for g in range(GAPS):
                row[g] = gap[g, i // LANES, i % LANES]
            for g in range(GAPS):
                gap[g, i // LANES, i % LANES] = row[(oldest + g) & (GAPS - 1)]
        for i in range(2):
            for g in range(GAPS):
                row[g] = gaps[g, i]
            for g in range(GAPS):
                gaps[g, i] = row[(oldest + g) & (GAPS - 1)]
        gaps[GAPS, 0] = GAPS


def slots(count: int) -> Ints:
    """Slots that nobody has used; see the columns above."""
    table = np.full((count, SLOT), NEVER, np.int64)
    table[:, (WRITER, READER, READER_BEFORE)] = -8 + DMA
    return table


def unpack(use: int) -> tuple[slice, int]:
    """The slots of an operand, and what is done to them."""
    first = use & SLOT_MASK
    return slice(first, first + (use >> MORE_SHIFT & MORE_MASK) + 1), use >> READ_SHIFT


@compiled(nogil=True)
def run(
    rows: Ints,
    row_of: Array,
    visit: Array,
    first_use: Array,
    uses: Ints,
    base: int,
    parameters: Ints,
    engine_state: Ints,
    part: Ints,
    window: Ints,
    unit: Ints,
    port: Ints,
    port_count: Ints,
    issued: Ints,
    ring: Ints,
    lane: Ints,
    gap: Ints,
    gaps: Ints,
    cut: Ints,
    states: Ints,
    start: Ints,
    end: Ints,
    begin: Ints,
    done: Ints,
    blocker: Array,
    cause: Array,
    held: Array,
) -> None:
    """Time the instructions of one call, in the order of `visit` if there is one.

    `base` is the index of the call's first instruction in the whole timeline. states: of the slots, a row behind the
    other, since a row of them has a known length.
    """
    as_written, found = visit.shape[0] == 0, np.empty((2, LANES), np.int64)
    contended, windowed = parameters[ARBITRATION] != NO_CONTENTION, parameters[WINDOW] != 0
    signal = parameters[SEMAPHORE]
    for turn in range(row_of.shape[0]):
        number = turn if as_written else np.int64(visit[turn])
        i = np.uint64(number)  # unsigned: as an index it is not asked whether it counts from the end
        r = np.uint64(row_of[i])
        engine = rows[r, ENGINE]
        issuer, last_use = np.uint64(engine), np.uint64(first_use[i + np.uint64(1)])
        is_dma, semaphore = rows[r, RING] >= 0, signal + rows[r, WAKE]
        who = DMA if is_dma else engine
        apart = is_dma or engine == CC
        t, by = engine_state[issuer, FREE], engine_state[issuer, LAST] << 3
        why, wait = START if by < 0 else ISSUE, np.int64(NEVER)
        for k in range(np.uint64(first_use[i]), last_use):
            use = uses[k]
            flags, at = use >> READ_SHIFT, np.uint64(use & SLOT_MASK) * SLOT_ROW
            more = use >> MORE_SHIFT & MORE_MASK
            if flags == READ:
                newest = _written_last(at, more, states)
                ready = states[newest] + semaphore
                wait = max(wait, ready)
                if ready >= t:
                    t, by, why = ready, states[newest + OF_WRITER], RAW
                continue
            while True:
                ready = states[at] + semaphore
                if flags & READ:
                    wait = max(wait, ready)
                    if ready >= t:
                        t, by, why = ready, states[at + OF_WRITER], RAW
                elif flags & FILL and states[at + OF_WRITER] >= base * 8:
                    pass
                elif apart or states[at + OF_WRITER] & 7 != who:
                    wait = max(wait, ready)
                    if ready > t:
                        t, by, why = ready, states[at + OF_WRITER], WAW
                if flags & WRITE:
                    last_read = at + (OF_READ if apart or states[at + OF_READER] & 7 != who else OF_READ_BEFORE)
                    ready = states[last_read] + semaphore
                    wait = max(wait, ready)
                    if ready > t:
                        t, by, why = ready, states[last_read + OF_WRITER], WAR
                if more == 0:
                    break
                more, at = more - 1, at + SLOT_ROW
        index = base + number
        if is_dma:
            occupied = rows[r, BUSY]
            begin[i], last, held[i] = place_transfer(
                rows[r], t + occupied + rows[r, LATENCY], parameters, index, issued, ring, lane, gap, gaps, cut, found
            )
            finish = last + parameters[COMPLETION]
        else:
            busy, occupied = rows[r, BUSY], rows[r, ISSUE_GAP]
            extra = drain = np.int64(0)
            if engine == TENSOR:
                if contended:
                    free, user = _parts_free(rows[r, PARTS], part)
                    if free > t:
                        t, by, why = free, user << 3, PART
                extra = max(max(wait, unit[WEIGHTS]) + rows[r, EXPOSED] - t, np.int64(0))
                if contended:
                    unit[WEIGHTS] = t + extra
                if windowed:
                    work, slow = busy + extra, rows[r, SLOW] + 2 * extra
                    extra += _paced(t, work, slow, parameters, window) - work
                    drain = np.int64(parameters[HALF_LATENCY] * window[HALF_RATE])
                _hold_parts(rows[r, PARTS], t + busy + extra, index, part)
            elif rows[r, TABLE] != 0 and rows[r, TABLE] != unit[TABLES]:
                loaded = parameters[TABLE_LOAD] + (engine_state[engine, FREE] if unit[TABLES] else parameters[BEGAN])
                unit[TABLES] = rows[r, TABLE]
                extra = np.int64(max(loaded - t, 0))
            busy, occupied = busy + extra, occupied + extra
            if rows[r, PORTS] and contended:
                ports = _ports(rows[r, PORTS], first_use[i], first_use[i + np.uint64(1)], uses)
                free, user = _port_free(ports, engine, t, busy, parameters[ARBITRATION], port, port_count)
                if free > t:
                    t, by, why = free, user << 3, PORT
                _hold_ports(ports, engine, t, busy, index, port, port_count)
            begin[i], held[i] = t, -1
            finish = t + busy + rows[r, LATENCY] + drain
        end[i] = t + occupied
        if contended:
            engine_state[issuer, FREE], engine_state[issuer, LAST] = t + occupied, index
        start[i], done[i], blocker[i], cause[i] = t, finish, by >> 3, why
        mark = index * 8 + who
        for k in range(np.uint64(first_use[i]), last_use):
            use = uses[k]
            flags, at = use >> READ_SHIFT, np.uint64(use & SLOT_MASK) * SLOT_ROW
            more = use >> MORE_SHIFT & MORE_MASK
            if flags == READ:
                for each in range(at, at + np.uint64(more + 1) * SLOT_ROW, SLOT_ROW):
                    _note_read(each, who, finish, mark, states)
                continue
            while True:
                if flags & READ:
                    _note_read(at, who, finish, mark, states)
                if flags & WRITE:
                    states[at], states[at + OF_WRITER] = max(states[at], finish), mark
                if more == 0:
                    break
                more, at = more - 1, at + SLOT_ROW


@compiled(inline="always")
def _written_last(at: Any, more: int, states: Ints) -> Any:
    """The one of a slot and as many `more` that was written after all others, the last of several."""
    newest, latest = at, states[at]
    for other in range(at + SLOT_ROW, at + np.uint64(more + 1) * SLOT_ROW, SLOT_ROW):
        if states[other] >= latest:
            newest, latest = other, states[other]
    return newest


@compiled(inline="always")
def _note_read(at: Any, who: int, finish: int, mark: int, states: Ints) -> None:
    """Remember that a slot is read until `finish`: the last time, and the last one by anybody else."""
    if states[at + OF_READER] & 7 == who:
        if finish > states[at + OF_READ]:
            states[at + OF_READ], states[at + OF_READER] = finish, mark
    elif finish > states[at + OF_READ]:
        states[at + OF_READ_BEFORE] = states[at + OF_READ]
        states[at + OF_READER_BEFORE] = states[at + OF_READER]
        states[at + OF_READ], states[at + OF_READER] = finish, mark
    elif finish > states[at + OF_READ_BEFORE]:
        states[at + OF_READ_BEFORE], states[at + OF_READER_BEFORE] = finish, mark


@compiled(inline="always")
def _parts_free(parts: int, part: Ints) -> Any:
    """When the last of these parts of the PE array is free, and who holds it; no parts: all of it."""
    if parts == 0:
        return part[PARTS_OF_ARRAY, 0], part[PARTS_OF_ARRAY, 1]
    free, user = np.int64(NEVER), np.int64(-1)
    for p in range(PARTS_OF_ARRAY):
        if parts >> p & 1 and part[p, 0] > free:
            free, user = part[p, 0], part[p, 1]
    return free, user


@compiled(inline="always")
def _hold_parts(parts: int, until: int, index: int, part: Ints) -> None:
    """Remember that an instruction uses parts of the PE array; the last row is the latest of all."""
    if parts == 0:
        return  # its issue slot is as long
    for p in range(PARTS_OF_ARRAY):
        if parts >> p & 1:
            part[p, 0], part[p, 1] = until, index
    if until > part[PARTS_OF_ARRAY, 0]:
        part[PARTS_OF_ARRAY, 0], part[PARTS_OF_ARRAY, 1] = until, index


@compiled(inline="always")
def _ports(bits: int, first: int, last: int, uses: Ints) -> int:
    """The ports as bits: SBUF's, PSUM's, one per bank of PSUM."""
    ports = bits & (SBUF_PORT | PSUM_PORT)
    if bits & PSUM_BANK:
        for k in range(first, last):
            s = uses[k] & SLOT_MASK
            if s < BANKS:
                ports |= np.int64(4) << s
    return ports


@compiled
def _paced(t: int, work: int, slow: int, parameters: Ints, window: Ints) -> int:
    """How long the PE array takes from `t` on for what takes `work` at full rate and `slow` at half rate."""
    if work == 0 or slow == 0:  # a what-if in which it costs nothing
        return work
    now, remaining = t, work
    while True:
        while window[WINDOW_END] <= now:
            window[HALF_RATE] = 1 if window[WORKED] < parameters[FULL_ABOVE] else 0
            window[WORKED] = 0
            window[WINDOW_END] += parameters[WINDOW]
        left = window[WINDOW_END] - now
        needed = remaining * slow // work if window[HALF_RATE] else remaining
        if needed <= left:
            window[WORKED] += remaining
            return now + needed - t
        done = left * work // slow if window[HALF_RATE] else left
        window[WORKED] += done
        remaining -= done
        now += left


@compiled(forceinline=True)
def _port_free(ports: int, engine: int, t: int, busy: int, arbitration: int, port: Ints, count: Ints) -> Any:
    """The earliest time from `t` on at which the engine that shares the ports leaves them alone for `busy`.

    An instruction may go before another that was issued earlier on the other engine and still waits for its operands,
    unless everything is to happen in the order of the program.
    """
    side = np.uint64(1 if engine == VECTOR else 0)  # of the other
    by, moved = np.int64(-1), True
    while moved:
        moved = False
        p, left = side, ports
        while left:
            if left & 1:
                last = count[p]
                first, oldest = last, max(last - HELD, 0)
                while first > oldest and port[_interval(p, first - 1) + ENDS] > t:
                    first -= 1
                for n in range(first, last):  # in order of time
                    h = _interval(p, n)
                    since, until = port[h], port[h + ENDS]
                    if t < until and (arbitration == PROGRAM_ORDER or since < t + busy):
                        t, by, moved = until, port[h + HOLDER], True
            p, left = p + np.uint64(2), left >> 1
    return t, by


@compiled(inline="always")
def _interval(p: int, n: int) -> Any:
    """Where interval n of a port and a side lies."""
    return (p * np.uint64(HELD) + np.uint64(n & (HELD - 1))) * np.uint64(3)


@compiled(forceinline=True)
def _hold_ports(ports: int, engine: int, t: int, busy: int, index: int, port: Ints, count: Ints) -> None:
    """Remember that an engine uses its ports from `t` on."""
    p, left = np.uint64(0 if engine == VECTOR else 1), ports
    while left:
        if left & 1:
            h = _interval(p, count[p])
            port[h], port[h + ENDS], port[h + HOLDER] = t, t + busy, index
            count[p] += 1
        p, left = p + np.uint64(2), left >> 1
