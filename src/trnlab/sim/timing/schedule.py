# SPDX-License-Identifier: Apache-2.0
"""What the hardware's compiler decides of a kernel: in which order engines take its instructions, and which engine
takes those that leave it open.

The compiler is free to reorder instructions that do not depend on each other (nki.language.no_reorder); how it does
so is not published. Here it is a list scheduler: every engine takes, of its instructions whose operands are there,
the one that comes first in the kernel. Addresses in SBUF are decided before (`lang.placement` rotates them), so that
what may run ahead is bounded by memory. The order that it finds is then timed like any other. Which of this is done
is the policy's (`trnlab.policy`): reorder, balance, rotate, window.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.isa.base import Memory
from trnlab.isa.collectives.meeting import Meeting
from trnlab.loops import compiled
from trnlab.loops.heap import pop, push
from trnlab.policy import Policy
from trnlab.program.routine import COL, OPEN_ENGINE, OPEN_ORDER, OPEN_PLACE, Routine
from trnlab.sim.timing import layout
from trnlab.sim.timing.layout import Array, Ints
from trnlab.sim.timing.plan import SRC_IN_HBM, TimingPlan, alternatives, plan
from trnlab.sim.timing.triggers import with_triggers

FAR = 1 << 61
BANK = 2048  # bytes per partition
SPARE = 2  # banks of PSUM that are kept for the tile whose turn it is
FREE, FIXED, FENCE = range(3)  # how an instruction may move: at will, not past others of its engine, not at all


def planned(routine: Routine, chip: Chip, policy: Policy) -> TimingPlan:
    """The plan of a routine as `policy` orders it; remembered with the routine."""
    base = plan(routine, chip)
    if not len(routine.left_open):
        return base
    plans: dict[tuple[Chip, Policy], TimingPlan] = routine._memo.setdefault("scheduled", {})
    if (chip, policy) not in plans:
        base = with_triggers(routine, base, chip, policy)
        ordered = policy.reorder or policy.balance
        plans[chip, policy] = _schedule(routine, base, chip, policy) if ordered else base
    return plans[chip, policy]


def _schedule(routine: Routine, base: TimingPlan, chip: Chip, policy: Policy) -> TimingPlan:
    """List scheduling. Banks of PSUM are handed out on the way, or left as recorded where that gets stuck."""
    rows, ops, other = alternatives(routine, base, chip)
    moves = _moves(routine, base, policy)
    free = routine.left_open & OPEN_ENGINE != 0 if policy.balance else np.zeros(len(routine), np.bool_)
    choice = np.where(free, other[base.row_of], -1).astype(np.int32)
    semaphore, completion = (round(f.value * 1000) for f in (chip.sync.semaphore, chip.dma.completion))
    rotate = policy.rotate and (routine.left_open & OPEN_PLACE).all()
    renames = [np.insert(_psum_tiles(routine), base.beside, -1)] if rotate else []
    for tiles in [*renames, np.full(len(base.uses), -1, np.int32)]:
        uses = np.where(tiles >= 0, base.uses & ~layout.SLOT_MASK | (routine.num_slots + tiles), base.uses)
        slots = routine.num_slots + int(tiles.max(initial=-1)) + 1
        edges, first_edge = _ordered(base, uses, moves, rows, slots, np.zeros(len(routine), np.int8))
        row_of, visit, bank = base.row_of.copy(), np.empty(len(routine), np.int32), np.full(slots, -1, np.int64)
        access = (base.first_operand, tiles, *_lifetimes(base.first_operand, tiles))
        rank = _ranks(base, edges, policy)
        limits = (policy.window, rank, bank, visit)
        if _list(rows, row_of, choice, first_edge, edges, semaphore, completion, *access, *limits):
            break
    uses = np.where(tiles >= 0, base.uses & ~layout.SLOT_MASK | bank[tiles], base.uses)
    return replace(base, rows=rows, ops=ops, row_of=row_of, uses=uses, visit=visit)


def interleaved_order(routine: Routine, length: int, chip: Chip) -> Array:
    """The order of a routine of two that do not depend on each other, the first of so many instructions: every engine
    takes each one's instructions in their order, and of both whichever could start sooner, of equals the first's."""
    n = len(routine)
    strand = (np.arange(n) >= length).astype(np.int8)
    return _listed(routine, chip, np.full(n, FIXED, np.int8), strand, n)


def sooner_order(routine: Routine, chip: Chip, window: int) -> Array:
    """An order of a routine in which every engine takes, of its next `window` instructions, the first of those that
    could start soonest."""
    n = len(routine)
    return _listed(routine, chip, np.full(n, FREE, np.int8), np.zeros(n, np.int8), window)


def _listed(routine: Routine, chip: Chip, moves: Array, strand: Array, window: int) -> Array:
    """The order of a list scheduler that leaves engines and places as they are recorded."""
    base, n = plan(routine, chip), len(routine)
    uses, slots = _without_constants(routine, base)
    edges, first_edge = _ordered(base, uses, moves, base.rows, slots, strand)
    semaphore, completion = (round(f.value * 1000) for f in (chip.sync.semaphore, chip.dma.completion))
    tiles, visit = np.full(len(base.uses), -1, np.int32), np.empty(n, np.int32)
    access = (base.first_operand, tiles, *_lifetimes(base.first_operand, tiles))
    limits = (window, np.arange(n), np.full(1, -1, np.int64), visit)
    choice = np.full(n, -1, np.int32)
    done = _list(base.rows, base.row_of.copy(), choice, first_edge, edges, semaphore, completion, *access, *limits)
    assert done, "instructions wait for each other"
    return visit


def _without_constants(routine: Routine, base: TimingPlan) -> tuple[Ints, int]:
    """Uses, and how many slots they are of, where all tensors that nothing writes are one slot: nobody waits for
    them, and those of a large model have millions."""
    owner = np.insert(routine.operands[:, COL["buffer"]], base.beside, len(routine.buffers))
    constant = np.array([*(b.memory is Memory.HBM for b in routine.buffers), False])
    constant[owner[base.uses >> layout.READ_SHIFT & layout.WRITE != 0]] = False
    one = layout.READ << layout.READ_SHIFT | routine.num_slots
    return np.where(constant[owner], one, base.uses), routine.num_slots + 1


def _ordered(base: TimingPlan, uses: Ints, moves: Array, rows: Ints, slots: int, strand: Array) -> tuple[Array, Ints]:
    """All edges by their first instruction, and where those of each instruction begin."""
    graph = (base.first_operand, uses, moves, rows, base.row_of, slots, strand)
    edges = np.empty((_edges(*graph, np.empty((0, 3), np.int32)), 3), np.int32)
    _edges(*graph, edges)
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    return edges, np.searchsorted(edges[:, 0], np.arange(len(base.row_of) + 1)).astype(np.int64)


def _ranks(base: TimingPlan, edges: Array, policy: Policy) -> Ints:
    """What engines take first of that which could start: instructions by number, loads by that of their first use."""
    rank = np.arange(len(base.row_of))
    if policy.by_use:
        loads = np.array([key.queue >= 0 and key.in_hbm == SRC_IN_HBM for key in base.keys], np.bool_)[base.row_of]
        uses = edges[loads[edges[:, 0]] & (edges[:, 2] > 0)]
        first = np.full(len(rank), len(rank))
        np.minimum.at(first, uses[:, 0], uses[:, 1])
        rank = np.where(loads & (first < len(rank)), first, rank)
    return rank


def _psum_tiles(routine: Routine) -> Array:
    """Per operand: the number of its tile when that lies in one bank of PSUM, else -1."""
    number = np.full(len(routine.buffers) + 1, -1, np.int32)
    for b in routine.buffers:
        if b.memory is Memory.PSUM and b.kind == "tile" and b.nbytes <= BANK:
            number[b.id] = b.id
    owner = routine.operands[:, COL["buffer"]]
    return number[owner]


def _lifetimes(first_use: Array, tiles: Array) -> tuple[Array, Array]:
    """How often each tile is used, and the tiles in the order of their first use."""
    used = tiles[tiles >= 0]
    _, first = np.unique(used, return_index=True)
    return np.bincount(used, minlength=1).astype(np.int64), used[np.sort(first)].astype(np.int64)


def _moves(routine: Routine, base: TimingPlan, policy: Policy) -> Array:
    """How each instruction may move: not what uses registers of its engine or sequencer, or meets other cores."""
    moves = np.full(len(routine), FREE if policy.reorder else FIXED, np.int8)
    moves[routine.left_open & OPEN_ORDER == 0] = FENCE if policy.reorder else FIXED
    keeps = np.zeros(max(isa.BY_OPCODE) + 1, np.int8)
    for code, instr in isa.BY_OPCODE.items():
        state = any(spec.state for spec in instr.operands) or "reduce_cmd" in instr.attrs
        control = isinstance(instr, Meeting) or any(kind.startswith("sequencer") for kind in instr.cost_kinds)
        keeps[code] = FENCE if control else FIXED if state else FREE
    kept: Array = np.maximum(moves, keeps[routine.opcode])
    return kept


@compiled
def _edges(
    first_use: Array, uses: Ints, moves: Array, rows: Ints, row_of: Array, slots: int, strand: Array, edges: Array
) -> int:
    """Pairs (before, after, waits): `after` waits for the result, or only for its turn. Counts them when there is no
    room, else fills them in. strand: which of two streams of instructions each is of; those keep their order apart.
    """
    count, fill = 0, edges.shape[0] > 0
    writer = np.full(slots, -1, np.int64)
    reader = np.full(slots, -1, np.int64)  # head of the list of reads since the last write
    size = 0
    for k in range(uses.shape[0]):
        size += (uses[k] >> layout.MORE_SHIFT & layout.MORE_MASK) + 1
    node, following = np.empty(size, np.int64), np.empty(size, np.int64)
    top = 0
    last_of = np.full((layout.ENGINES, 2), -1, np.int64)  # last instruction of an engine that keeps its place
    fence = -1
    found = np.empty(1024, np.int64)  # before * 2 + waits, of one instruction
    for i in range(row_of.shape[0]):
        row = row_of[i]
        engine, is_dma = rows[row, layout.ENGINE], rows[row, layout.RING] >= 0
        n = 0
        for k in range(first_use[i], first_use[i + 1]):
            use = uses[k]
            flags, first = use >> layout.READ_SHIFT, use & layout.SLOT_MASK
            for s in range(first, first + (use >> layout.MORE_SHIFT & layout.MORE_MASK) + 1):
                if n > found.shape[0] - 8:
                    found = np.concatenate((found, np.empty_like(found)))
                w = writer[s]
                if w >= 0:
                    own = rows[row_of[w], layout.ENGINE] == engine and rows[row_of[w], layout.RING] < 0
                    found[n] = w * 2 + (1 if flags & layout.READ or is_dma or not own else 0)
                    n += 1
                r = reader[s] if flags & layout.WRITE else -1
                while r >= 0:
                    if n > found.shape[0] - 8:
                        found = np.concatenate((found, np.empty_like(found)))
                    w = node[r]
                    if w != i:
                        own = rows[row_of[w], layout.ENGINE] == engine and rows[row_of[w], layout.RING] < 0
                        found[n] = w * 2 + (1 if is_dma or not own else 0)
                        n += 1
                    r = following[r]
        if moves[i] == 2:
            for j in range(fence if fence >= 0 else 0, i):
                if fill:
                    edges[count, 0], edges[count, 1], edges[count, 2] = j, i, 0
                count += 1
            fence = i
        elif fence >= 0:
            found[n] = fence * 2
            n += 1
        if moves[i] == 1:
            if last_of[engine, strand[i]] >= 0:
                found[n] = last_of[engine, strand[i]] * 2
                n += 1
            last_of[engine, strand[i]] = i
        _sort(found, n)
        previous = np.int64(-1)
        for m in range(n - 1, -1, -1):
            before = found[m] >> 1
            if before != previous:
                if fill:
                    edges[count, 0], edges[count, 1], edges[count, 2] = before, i, found[m] & 1
                count += 1
                previous = before
        for k in range(first_use[i], first_use[i + 1]):
            use = uses[k]
            flags, first = use >> layout.READ_SHIFT, use & layout.SLOT_MASK
            for s in range(first, first + (use >> layout.MORE_SHIFT & layout.MORE_MASK) + 1):
                if flags & layout.WRITE:
                    writer[s], reader[s] = i, -1
                if flags & layout.READ:
                    node[top], following[top] = i, reader[s]
                    reader[s] = top
                    top += 1
    return count


@compiled
def _sort(values: Ints, count: int) -> None:
    """Order the first of them in place, by ever smaller distances: few as a rule, and no memory is asked for."""
    distance = count // 2
    while distance > 0:
        for i in range(distance, count):
            value, j = values[i], i
            while j >= distance and values[j - distance] > value:
                values[j] = values[j - distance]
                j -= distance
            values[j] = value
        distance //= 2


@compiled
def _list(
    rows: Ints,
    row_of: Array,
    choice: Array,
    first_edge: Ints,
    edges: Array,
    semaphore: int,
    completion: int,
    first_use: Array,
    tiles: Array,
    left_of_tile: Ints,
    openers: Ints,
    window: int,
    rank: Ints,
    bank: Ints,
    visit: Array,
) -> bool:
    """The order in which a list scheduler takes instructions, the rows of those whose engine was open, and the bank
    of each tile. False when it gets stuck for want of banks.

    Banks go to tiles as they are first written; the last few of them only to the tile that is next in the kernel.
    """
    n = row_of.shape[0]
    left = np.zeros(n, np.int64)
    for e in range(edges.shape[0]):
        left[edges[e, 1]] += 1
    ready = np.zeros(n, np.int64)
    late = np.empty((layout.ENGINES, n), np.int64)  # heaps of those that wait: by when they are ready
    here = np.empty((layout.ENGINES, n), np.int64)  # heaps of those that could start: by their rank
    num_late, num_here = np.zeros(layout.ENGINES, np.int64), np.zeros(layout.ENGINES, np.int64)
    free, backlog = np.zeros(layout.ENGINES, np.int64), np.zeros(layout.ENGINES, np.int64)
    bank_free, bank_open = np.zeros(layout.BANKS, np.int64), np.zeros(layout.BANKS, np.bool_)
    stuck, num_stuck = np.empty(n, np.int64), 0  # wait for a bank
    banks_left, opened, turn = layout.BANKS, 0, 0
    lanes, taken, lowest = np.int64(0), np.zeros(n, np.bool_), 0
    for i in range(n):
        if left[i] == 0:
            _release(i, rows, row_of, choice, ready, late, num_late, free, backlog)
    while turn < n:
        best, engine = np.int64(FAR), -1
        for e in range(layout.ENGINES):
            if num_here[e] > 0 and (here[e, 0] < lowest + window or rows[row_of[here[e, 0]], layout.RING] >= 0):
                at = max(free[e], ready[here[e, 0]])
                if at < best:
                    best, engine = at, e
            if num_late[e] > 0:
                at = max(free[e], ready[late[e, 0]])
                if at < best:
                    best, engine = at, e
        if engine < 0:
            return False
        while num_late[engine] > 0 and ready[late[engine, 0]] <= best:
            i, num_late[engine] = pop(late[engine], num_late[engine], ready)
            num_here[engine] = push(here[engine], num_here[engine], i, rank)
        if here[engine, 0] >= lowest + window and rows[row_of[here[engine, 0]], layout.RING] < 0:
            continue
        i, num_here[engine] = pop(here[engine], num_here[engine], rank)
        start, waits = max(free[engine], ready[i]), False
        for k in range(first_use[i], first_use[i + 1]):
            tile = tiles[k]
            if tile >= 0 and bank[tile] < 0:
                while opened < openers.shape[0] and bank[openers[opened]] >= 0:
                    opened += 1
                if banks_left > (0 if openers[opened] == tile else SPARE):
                    b = -1
                    for c in range(layout.BANKS):
                        if not bank_open[c] and (b < 0 or bank_free[c] < bank_free[b]):
                            b = c
                    bank[tile], bank_open[b] = b, True
                    banks_left -= 1
                    start = max(start, bank_free[b])
                else:
                    waits = True
        if waits:
            stuck[num_stuck] = i
            num_stuck += 1
            continue
        visit[turn] = i
        turn += 1
        taken[i] = True
        while lowest < n and taken[lowest]:
            lowest += 1
        r = row_of[i]
        free[engine] = start + rows[r, layout.ISSUE_GAP]
        backlog[engine] -= rows[r, layout.ISSUE_GAP]
        if rows[r, layout.RING] >= 0:
            begin = max(free[engine] + rows[r, layout.LATENCY], lanes)
            share = rows[r, layout.SHARE]
            lanes = begin + share * rows[r, layout.NUM_LANES] // layout.LANES
            done = begin + share + rows[r, layout.STAGGER] * rows[r, layout.NUM_LANES] + completion
        else:
            done = start + rows[r, layout.BUSY] + rows[r, layout.LATENCY]
        closed = False
        for k in range(first_use[i], first_use[i + 1]):
            tile = tiles[k]
            if tile >= 0:
                left_of_tile[tile] -= 1
                if left_of_tile[tile] == 0:
                    bank_open[bank[tile]], bank_free[bank[tile]] = False, done + semaphore
                    banks_left += 1
                    closed = True
        if closed or num_stuck > 0:  # whose turn it is may have changed, too
            for m in range(num_stuck):
                e = rows[row_of[stuck[m]], layout.ENGINE]
                num_here[e] = push(here[e], num_here[e], stuck[m], rank)
            num_stuck = 0
        for e in range(first_edge[i], first_edge[i + 1]):
            after = edges[e, 1]
            wake = semaphore + rows[row_of[after], layout.WAKE]
            ready[after] = max(ready[after], done + wake if edges[e, 2] else free[engine])
            left[after] -= 1
            if left[after] == 0:
                _release(after, rows, row_of, choice, ready, late, num_late, free, backlog)
    return True


@compiled
def _release(
    i: int,
    rows: Ints,
    row_of: Array,
    choice: Array,
    ready: Ints,
    late: Ints,
    num_late: Ints,
    free: Ints,
    backlog: Ints,
) -> None:
    """All that instruction i waited for is in its place; if its engine is open, it goes where it is done first."""
    r = row_of[i]
    if choice[i] >= 0:
        mine, other = rows[r, layout.ENGINE], rows[choice[i], layout.ENGINE]
        here = max(free[mine] + backlog[mine], ready[i]) + rows[r, layout.BUSY]
        there = max(free[other] + backlog[other], ready[i]) + rows[choice[i], layout.BUSY]
        if there < here:
            row_of[i] = r = choice[i]
    engine = rows[r, layout.ENGINE]
    backlog[engine] += rows[r, layout.ISSUE_GAP]
    num_late[engine] = push(late[engine], num_late[engine], i, ready)
