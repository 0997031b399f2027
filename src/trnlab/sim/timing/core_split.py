# SPDX-License-Identifier: Apache-2.0
"""What each of two cores does of a routine that they share: the stores of half the results, and all these need.

A routine's stores to its parameters are cut, in the order of the program, so that both halves have about as much
work. A half is those stores and every instruction that something it executes reads from: found backwards, cell by
cell of SBUF and PSUM, four bytes of 32 partitions each. A value that both halves need is loaded or computed by both,
as on two cores that share nothing but HBM. What overwrites a cell as a whole ends the need of it; what covers it in
part does not, so that a half may have too much and never too little. One pass finds the first and the last store that
each instruction is for, which answers for every cut.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from trnlab import isa
from trnlab.isa.base import Memory
from trnlab.loops import compiled
from trnlab.numerics import dtypes
from trnlab.program.gang import points
from trnlab.program.routine import COL, Routine
from trnlab.sim.timing import layout
from trnlab.sim.timing.layout import Array, Ints
from trnlab.sim.timing.plan import TimingPlan

CELL, QUADRANT, QUADRANTS = 4, 32, 4  # bytes, partitions
WORTH = 0.9  # of the whole routine's work: a larger half is not worth a second core
EVEN, TRIES = 1.15, 5  # how far apart halves may be, and how many cuts are looked at
MANY = 1 << 20  # combinations of opcode, attributes and role for which a table is made
LITTLE, FEW = 0.1, 0.05  # of the largest store, and of the instructions: results that are made at the end


class CoreSplit(NamedTuple):
    """The instructions of each core, in order."""

    first: Array
    second: Array


def split_cores(routine: Routine, p: TimingPlan) -> CoreSplit | None:
    """How two cores share a routine; None where its work does not split along its results."""
    key = "halves"
    if key not in routine._memo:
        routine._memo[key] = _halves(routine, p)
    found: CoreSplit | None = routine._memo[key]
    return found


def _halves(routine: Routine, p: TimingPlan) -> CoreSplit | None:
    if len(routine) < 2 or len(routine.left_open) or routine.prints or points(routine) or _has_state(routine):
        return None
    access = _access(routine)
    stored = _stored(routine, access)
    little = (stored > 0) & (stored < LITTLE * stored.max())
    main = (stored > 0) & ~little
    if np.count_nonzero(main) < 2:
        return None
    work = _Work(p)
    readers, total = _readers(routine, access, main), np.cumsum(stored * main)
    cut, best = 0.5, None
    low, high = 0.0, 1.0
    for _ in range(TRIES):
        found = _cut(readers, total, cut)
        if found is None:
            break
        sizes = [work.of(half) for half in found]
        if best is None or max(sizes) < best[0]:
            best = max(sizes), found
        if max(sizes) <= EVEN * min(sizes):
            break
        low, high = (cut, high) if sizes[0] < sizes[1] else (low, cut)
        cut = (low + high) / 2
    if best is None or best[0] > WORTH * work.of(np.arange(len(routine))):
        return None
    return _finished(routine, access, best[1], little)


def _cut(readers: Array, total: Ints, at: float) -> list[Array] | None:
    """The instructions of both halves where the first has a share `at` of what is stored up to each one, `total`.
    readers: see `_readers`."""
    late = int(np.searchsorted(total, total[-1] * at, side="right"))  # the first store of the second half
    halves = [np.flatnonzero(readers[:, 0] < late), np.flatnonzero(readers[:, 1] >= late)]
    return halves if all(half.size for half in halves) else None


def _finished(routine: Routine, access: Array, found: list[Array], little: Array) -> CoreSplit | None:
    """The halves with what makes small results, statistics of rows: each core stores those of its own rows, by the
    few instructions that nobody else needs. None where these are many, as of sums over all rows."""
    done = np.zeros(len(routine), np.bool_)
    for half in found:
        done[half] = True
    rest = np.flatnonzero(~done)
    if rest.size > FEW * len(routine) or (rest.size and not (_readers(routine, access, little)[rest, 1] >= 0).all()):
        return None
    first, second = (np.union1d(half, rest) for half in found)
    return CoreSplit(first, second)


class _Work:
    """How much work some of a routine's instructions are."""

    def __init__(self, p: TimingPlan) -> None:
        rows = p.rows[p.row_of]
        self.engine, self.busy = rows[:, layout.ENGINE], rows[:, layout.ISSUE_GAP]
        self.moved = rows[:, layout.SHARE] * rows[:, layout.NUM_LANES]

    def of(self, which: Array) -> int:
        """Picoseconds of the busiest engine, or of DMA engines that share all transfers equally."""
        engines = np.bincount(self.engine[which], self.busy[which], layout.ENGINES)
        return max(int(engines.max()), int(self.moved[which].sum()) // layout.LANES)


def _has_state(routine: Routine) -> bool:
    """Whether instructions hand on what no memory holds: registers, accumulators, random states; or meet others."""
    kinds, _ = _kinds(routine)
    stateful = any(isa.BY_OPCODE[code].operands[role].state for code, _, role in kinds)
    names = {isa.BY_OPCODE[int(code)].name for code in np.flatnonzero(np.bincount(routine.opcode))}
    return stateful or any(
        word in name for name in names for word in ("register", "rng", "rand", "barrier", "sendrecv")
    )


def _kinds(routine: Routine) -> tuple[list[tuple[int, int, int]], Array]:
    """The distinct operands by opcode, attributes and role of the operand; and which of these each one is."""
    per_instruction = np.diff(routine.first_operand)
    codes = np.repeat(routine.opcode, per_instruction).astype(np.int64)
    attrs = np.repeat(routine.attr, per_instruction).astype(np.int64)
    roles = routine.operands[:, COL["role"]]
    if not len(roles):
        return [], np.zeros(0, np.int64)
    shape = tuple(int(values.max()) + 1 for values in (codes, attrs, roles))
    packed = np.ravel_multi_index((codes, attrs, roles), shape)
    met = np.bincount(packed, minlength=1) > 0 if prod(shape) <= MANY else None
    if met is None:  # more combinations than are worth a table
        distinct, which = np.unique(packed, return_inverse=True)
    else:
        distinct, which = np.flatnonzero(met), (np.cumsum(met) - 1)[packed]
    unpacked = np.unravel_index(distinct, shape)
    return list(zip(*(values.tolist() for values in unpacked))), which


def _access(routine: Routine) -> Array:
    """What is done to each operand: `layout.READ`, `layout.WRITE` or both."""
    kinds, which = _kinds(routine)
    found = np.empty(len(kinds), np.int64)
    for number, (code, attr, role) in enumerate(kinds):
        instr = isa.BY_OPCODE[code]
        spec = instr.operands[role]
        access = layout.WRITE if spec.role == "dst" else layout.READ
        if spec.rw and instr.reads_destination(dict(routine.attr_table[attr]) if routine.attr_table else {}):
            access |= layout.READ
        found[number] = access
    return found[which]


def _stored(routine: Routine, access: Array) -> Ints:
    """Bytes that each instruction writes to a parameter; none at all where one adds to what is there."""
    table = routine.operands
    is_param = np.array([b.kind == "param" for b in routine.buffers])
    writes = (access & layout.WRITE > 0) & is_param[table[:, COL["buffer"]]]
    if (writes & (access & layout.READ > 0)).any():
        return np.zeros(len(routine), np.int64)
    sizes = np.array([dtypes.BY_CODE[code].itemsize for code in range(len(dtypes.BY_CODE))], np.int64)
    counts = table[:, [COL[f"count{i}"] for i in range(4)]].prod(axis=1) * table[:, COL["partitions"]]
    nbytes = np.where(writes, counts * sizes[table[:, COL["dtype"]]], 0)
    owner = np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))
    return np.bincount(owner, nbytes, len(routine)).astype(np.int64)


def _readers(routine: Routine, access: Array, stores: Array) -> Array:
    """The first and the last of the stores [n, 2] that need each instruction, by their numbers, which are these
    themselves for a store; NEVER and -1 where none does. access: see `_access`."""
    sizes = np.array([dtypes.BY_CODE[code].itemsize for code in range(len(dtypes.BY_CODE))], np.int64)
    kinds = {Memory.SBUF: 1, Memory.PSUM: 2}
    places = [
        (kinds.get(b.memory, 0), b.address, b.first_partition, b.first_partition + b.partitions)
        for b in routine.buffers
    ]
    buffers = np.array(places, np.int64).reshape(-1, 4)
    end = max((b.address + b.nbytes for b in routine.buffers if b.memory in kinds), default=0)
    marks = np.zeros((3, end // CELL + 2), np.int64)
    _mark(routine.operands, buffers, sizes, marks)
    parts = np.cumsum(marks, axis=1)
    span = np.array([NEVER, -1], np.int32)
    cells = np.tile(span, (3, QUADRANTS, int(parts.max()) + 1, 1))
    slots = np.tile(span, (max(routine.num_slots, 1), 1))
    found: Array = _backwards(
        routine.first_operand, routine.operands, access, buffers, sizes, stores, parts, cells, slots
    )
    return found


_C: Any = COL  # numba takes numbers from here
ROLE, BUFFER, DTYPE, START, PARTITIONS, OFFSET = (
    _C[n] for n in ("role", "buffer", "dtype", "start_partition", "partitions", "offset")
)
STEP0, FIRST, LAST = _C["step0"], _C["first"], _C["last"]
MARK, ASK, SET, CLEAR = range(4)
NEVER = (1 << 31) - 1


@compiled
def _mark(table: Ints, buffers: Ints, sizes: Ints, marks: Ints) -> None:
    """Mark where runs of operands begin and end: cells between two marks are always met together."""
    nobody = np.zeros((3, 1, 1, 2), np.int32)
    for o in range(len(table)):
        if buffers[table[o, BUFFER], 0] != 0:
            _touch(table[o], buffers, sizes, marks, nobody, nobody[0, 0], nobody[0, 0, 0], MARK)


@compiled
def _backwards(
    first_operand: Array,
    table: Ints,
    access: Ints,
    buffers: Ints,
    sizes: Ints,
    stores: Array,
    parts: Ints,
    cells: Array,
    slots: Array,
) -> Array:
    """Instructions from the last to the first; `cells`, `slots`: the first and last store of later reads."""
    found = np.empty((len(first_operand) - 1, 2), np.int32)
    for i in range(len(first_operand) - 2, -1, -1):
        span = found[i]
        span[0], span[1] = (i, i) if stores[i] else (NEVER, -1)
        for o in range(first_operand[i], first_operand[i + 1]):
            if access[o] & 2:
                _touch(table[o], buffers, sizes, parts, cells, slots, span, ASK)
        if span[1] < 0:
            continue
        for o in range(first_operand[i], first_operand[i + 1]):
            if access[o] == 2:
                _touch(table[o], buffers, sizes, parts, cells, slots, span, CLEAR)
        for o in range(first_operand[i], first_operand[i + 1]):
            if access[o] & 1:
                _touch(table[o], buffers, sizes, parts, cells, slots, span, SET)
    return found


@compiled
def _touch(
    operand: Ints, buffers: Ints, sizes: Ints, parts: Ints, cells: Array, slots: Array, span: Array, what: int
) -> None:
    """Mark the runs of an operand, ask for which stores its cells are needed, say so of all that it touches, or
    forget it of those that it covers. span: of stores, the first and the last."""
    kind, address, bottom, top = buffers[operand[BUFFER]]
    if kind == 0:
        for s in range(operand[FIRST], operand[LAST] + 1):
            if what != CLEAR:
                _meet(slots[s], span, what)
        return
    size = sizes[operand[DTYPE]]
    low = bottom + operand[START]
    high = low + operand[PARTITIONS]
    run = operand[STEP0 + 7] * size if operand[STEP0 + 6] == 1 else size
    inner = 1 if operand[STEP0 + 6] == 1 else operand[STEP0 + 7]
    for a in range(operand[STEP0 + 1]):
        for b in range(operand[STEP0 + 3]):
            for c in range(operand[STEP0 + 5]):
                for d in range(inner):
                    at = (
                        address
                        + operand[OFFSET]
                        + size
                        * (
                            a * operand[STEP0]
                            + b * operand[STEP0 + 2]
                            + c * operand[STEP0 + 4]
                            + d * operand[STEP0 + 6]
                        )
                    )
                    begin, end = at // CELL, -(-(at + run) // CELL)
                    within, out = -(-at // CELL), (at + run) // CELL
                    if what == MARK:
                        parts[kind, begin] = parts[kind, end] = parts[kind, within] = parts[kind, out] = 1
                        continue
                    if what == CLEAR:
                        begin, end = within, out
                    for q in range(low // QUADRANT, (high - 1) // QUADRANT + 1):
                        covered = low <= max(q * QUADRANT, bottom) and high >= min((q + 1) * QUADRANT, top)
                        if what == CLEAR and not covered:
                            continue
                        for part in range(parts[kind, begin], parts[kind, end]):
                            _meet(cells[kind, q, part], span, what)


@compiled
def _meet(cell: Array, span: Array, what: int) -> None:
    """Widen one of the two by the other, or empty the cell."""
    if what == ASK:
        span[0], span[1] = min(span[0], cell[0]), max(span[1], cell[1])
    elif what == SET:
        cell[0], cell[1] = min(span[0], cell[0]), max(span[1], cell[1])
    else:
        cell[0], cell[1] = NEVER, -1
