# SPDX-License-Identifier: Apache-2.0
"""What the instructions of a program did with memory: which tensor each one waited for, how full SBUF and PSUM were,
and what was spilled. The timeline knows instructions; the program knows their tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.isa.base import Memory
from trnlab.loops import compiled
from trnlab.profile.names import short_label
from trnlab.program.routine import COL, OPEN_PLACE, Program, Routine
from trnlab.timeline import CAUSES, Timeline

Ints = np.ndarray[Any, np.dtype[Any]]
MOST_STEPS = 20_000  # of an occupancy; a longer one keeps the highest value of each of so many equal parts
_ON_A_TENSOR = tuple(CAUSES.index(name) for name in ("operand", "reuse", "overwrite"))
_BUFFER, _FIRST, _LAST, _ROLE = COL["buffer"], COL["first"], COL["last"], COL["role"]


@dataclass(frozen=True)
class TensorUsage:
    """What tensors occupied on chip while a program ran."""

    names: tuple[str, ...]  # tensors and tiles
    # per instruction the one whose last use let it go, as an index of names; -1 where it waited for no tensor
    buffer: Ints
    # per memory its capacity in bytes, and times in picoseconds at which the bytes in use change to what
    occupancy: dict[str, tuple[int, Ints, Ints]]
    spilled: tuple[int, int]  # bytes written to and read from the scratch memory in HBM


def usage(program: Program, timeline: Timeline, chip: Chip) -> TensorUsage:
    """Usage of one run of `program` on `chip`, timed as `timeline`."""
    tables = _Tables(program, timeline)
    capacity = {
        "sbuf": int(chip.sbuf.bytes_per_partition.value) * chip.num_partitions * timeline.cores,
        "psum": chip.psum.num_banks * chip.psum.bank_bytes_per_partition * chip.num_partitions * timeline.cores,
    }
    size, start, end, memory = _lifetimes(tables, program, timeline)
    occupancy = {}
    for name, kind in (("sbuf", Memory.SBUF), ("psum", Memory.PSUM)):
        mine = memory == kind
        times, used = _steps(start[mine], end[mine], size[mine], timeline.total)
        occupancy[name] = (capacity[name], times, np.minimum(used, capacity[name]))
    return TensorUsage(tables.names, _waited(tables, timeline), occupancy, spilled(program, timeline))


class _Tables:
    """The routines' columns one after the other; a row per buffer of each routine, and a row per call."""

    def __init__(self, program: Program, timeline: Timeline) -> None:
        routines = program.routines
        rows = _bases(len(r.operands) for r in routines)
        self.operands = np.concatenate([r.operands for r in routines] or [np.empty((0, len(COL)), np.int64)])
        self.writes = np.concatenate([_writes(r) for r in routines] or [np.zeros(0, np.bool_)])
        codes = [r.first_operand.astype(np.int64) + base for r, base in zip(routines, rows)]
        self.first_operand = np.concatenate(codes or [np.zeros(0, np.int64)])
        numbers: dict[str, int] = {}
        placed = [_placed(r, numbers, where) for r, where in zip(routines, _places(program))]
        self.buffers = np.concatenate(placed or [np.empty((0, 7), np.int64)])
        tensors = [numbers.setdefault(t.name, len(numbers)) for t in program.tensors]
        self.tensor_name = np.array([*tensors, -1], np.int64)
        self.names = tuple(numbers)
        row = {t.id: i for i, t in enumerate(program.tensors)}
        self.args = np.array([*(row[t] for c in program.calls for t in c.args), -1], np.int64)
        self.calls = self._calls(
            program, _bases(len(r) + 1 for r in routines), _bases(len(p) for p in placed), timeline
        )

    @staticmethod
    def _calls(program: Program, code: Ints, tiles: Ints, timeline: Timeline) -> Ints:
        """A row per call, see `_CODE` and on."""
        at = _bases(len(routine) for _, routine in program)
        args = _bases(len(c.args) for c in program.calls)
        rows = [
            (code[c.routine], tiles[c.routine], at[i], args[i], c.sbuf_base, timeline.calls[i].core)
            for i, c in enumerate(program.calls)
        ]
        return np.array(rows, np.int64).reshape(-1, 6)


# Columns of the rows of calls: where the routine's instructions and buffers begin in the tables, the first
# instruction in the timeline, the first argument, the offset in SBUF, and the core.
_CODE, _TILES, _AT, _ARGS, _BASE, _CORE = range(6)
_APART = 1 << 20  # bytes between the on-chip memories of two cores, where they are counted as one
# Columns of the rows of buffers.
_MEMORY, _ADDRESS, _NBYTES, _PARTITION, _PARTITIONS, _PARAMETER, _NAME = range(7)


def _places(program: Program) -> list[str]:
    """What follows the name of a tile of each routine: " in " and its first call's label, where there are several."""
    labels = {call.routine: call.label for call in reversed(program.calls)}
    several = len(program.routines) > 1
    return [
        f" in {short_label(labels[i])}" if several and labels.get(i) else "" for i in range(len(program.routines))
    ]


def _placed(routine: Routine, numbers: dict[str, int], where: str) -> Ints:
    """A row per buffer; `numbers` gets the names."""
    place = {index: n for n, index in enumerate(routine.params)}
    rows = [
        (
            b.memory,
            b.address,
            b.nbytes,
            b.first_partition,
            b.partitions,
            place.get(i, -1),
            numbers.setdefault(b.name if b.kind == "param" else b.name + where, len(numbers)),
        )
        for i, b in enumerate(routine.buffers)
    ]
    return np.array(rows, np.int64).reshape(-1, 7)


def _bases(counts: Any) -> Ints:
    return np.cumsum([0, *counts], dtype=np.int64)


def _writes(routine: Routine) -> Ints:
    """Per operand whether the instruction writes it."""
    roles = np.zeros((max(isa.BY_OPCODE) + 1, max(len(i.operands) for i in isa.BY_OPCODE.values())), np.bool_)
    for code, instr in isa.BY_OPCODE.items():
        roles[code, : len(instr.operands)] = [spec.role == "dst" for spec in instr.operands]
    owner = np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))
    return np.asarray(roles[routine.opcode[owner], routine.operands[:, _ROLE]])


def _waited(tables: _Tables, t: Timeline) -> Ints:
    found = np.full(len(t), -1, np.int32)
    operand, reuse, _ = _ON_A_TENSOR
    _find_buffers(
        t.blocker,
        np.isin(t.cause, _ON_A_TENSOR),
        t.cause != operand,
        t.cause != reuse,
        t.call,
        tables.calls,
        tables.args,
        tables.tensor_name,
        tables.first_operand,
        tables.operands,
        tables.writes,
        tables.buffers,
        found,
    )
    return found


def _lifetimes(tables: _Tables, program: Program, t: Timeline) -> tuple[Ints, Ints, Ints, Ints]:
    """Lifetimes of every tile of every call that is used: its bytes, when its use begins and ends, and its memory."""
    counts = np.array([len(program.routines[c.routine].buffers) for c in program.calls], np.int64)
    places = _bases(counts)
    start, end = np.full(places[-1], t.total, np.int64), np.zeros(places[-1], np.int64)
    _extend(t.call, tables.calls, tables.first_operand, tables.operands, places, t.start, t.done, start, end)
    which = np.arange(places[-1]) - np.repeat(places[:-1] - tables.calls[:, _TILES], counts)
    rows = tables.buffers[which]
    rows[:, _ADDRESS] += np.repeat(tables.calls[:, _BASE], counts) * (rows[:, _MEMORY] == Memory.SBUF)
    rows[:, _ADDRESS] += np.repeat(tables.calls[:, _CORE], counts) * _APART
    used = np.flatnonzero((end > start) & (rows[:, _MEMORY] != Memory.HBM))
    used = used[np.argsort(start[used], kind="stable")]
    rows, start, end = rows[used], start[used], end[used]
    fixed = ~np.repeat(np.array([_places_open(program.routines[c.routine]) for c in program.calls], np.bool_), counts)
    held = np.flatnonzero(fixed[used] | (rows[:, _MEMORY] != Memory.PSUM))
    mine = end[held]
    _make_way(rows[held], start[held], mine)
    end[held] = mine
    return rows[:, _NBYTES] * rows[:, _PARTITIONS], start, end, rows[:, _MEMORY]


def _places_open(routine: Routine) -> bool:
    """Whether the hardware's compiler decides in which banks of PSUM the tiles lie, so that nobody here knows."""
    return bool(len(routine.left_open) and (routine.left_open & OPEN_PLACE).all())


@compiled
def _make_way(rows: Ints, start: Ints, end: Ints) -> None:
    """End the use of a tile, at the latest, where that of another one in its place begins. In order of `start`.

    The last result of the one and the first start of the other may overlap by an engine's pipeline. Places are told
    apart by 64 bytes and by 32 partitions.
    """
    granules = np.int64(0)
    for i in range(len(rows)):
        granules = max(granules, (rows[i, 1] + rows[i, 2]) // 64 + 1)
    owner = np.full((3, granules, 4), -1, np.int64)
    for i in range(len(rows)):
        for g in range(rows[i, 1] // 64, (rows[i, 1] + rows[i, 2] - 1) // 64 + 1):
            for q in range(rows[i, 3] // 32, min((rows[i, 3] + rows[i, 4] - 1) // 32, 3) + 1):
                before = owner[rows[i, 0], g, q]
                if before >= 0 and end[before] > start[i]:
                    end[before] = start[i]
                owner[rows[i, 0], g, q] = i


def _steps(start: Ints, end: Ints, size: Ints, total: int) -> tuple[Ints, Ints]:
    """The sum of the sizes over time: when it changes, and to what."""
    times = np.concatenate([[0], start, end])
    changes = np.concatenate([[0], size, -size])
    times, place = np.unique(times, return_inverse=True)
    values = np.cumsum(np.bincount(place, changes, len(times)).astype(np.int64))
    if len(times) <= MOST_STEPS:
        return times, values
    edges = np.arange(MOST_STEPS, dtype=np.int64) * max(total, 1) // MOST_STEPS
    before = np.searchsorted(times, edges, side="right") - 1
    peaks = np.maximum.reduceat(values, before)
    return edges, peaks


def spilled(program: Program, timeline: Timeline) -> tuple[int, int]:
    """Bytes to and from the routines' scratch memory in HBM."""
    read = np.array([op.hbm_read for op in timeline.ops], np.int64)
    write = np.array([op.hbm_write for op in timeline.ops], np.int64)
    saved = reloaded = 0
    for (_, routine), info in zip(program, timeline.calls):
        sides = routine._memo.get("spills")
        if sides is None:
            sides = routine._memo["spills"] = _scratch_sides(routine)
        ops = timeline.op[info.first : info.first + info.count]
        saved += int(write[ops[sides[0]]].sum())
        reloaded += int(read[ops[sides[1]]].sum())
    return saved, reloaded


def _scratch_sides(routine: Routine) -> tuple[Ints, Ints]:
    """Instructions that write scratch memory, and that read it: a transfer's operands are destination, source."""
    scratch = np.array([b.kind == "scratch" for b in routine.buffers], np.bool_)
    touches = scratch[routine.operands[:, _BUFFER]] if len(scratch) else np.zeros(0, np.bool_)
    owner = np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))
    role = routine.operands[:, _ROLE]
    return np.unique(owner[touches & (role == 0)]), np.unique(owner[touches & (role > 0)])


@compiled
def _extend(
    call: Any,
    calls: Ints,
    first_operand: Ints,
    operands: Ints,
    places: Ints,
    start: Any,
    done: Any,
    begins: Ints,
    ends: Ints,
) -> None:
    """The first start and the last end of what touches each buffer of each call."""
    for i in range(call.shape[0]):
        c = call[i]
        local = calls[c, _CODE] + i - calls[c, _AT]
        for k in range(first_operand[local], first_operand[local + 1]):
            place = places[c] + operands[k, _BUFFER]
            begins[place] = min(begins[place], start[i])
            ends[place] = max(ends[place], done[i])


@compiled
def _find_buffers(
    blocker: Any,
    waits: Any,
    writes_now: Any,
    wrote: Any,
    call: Any,
    calls: Ints,
    args: Ints,
    tensor_name: Ints,
    first_operand: Ints,
    operands: Ints,
    writes: Any,
    buffers: Ints,
    found: Any,
) -> None:
    """For each instruction that waits the operand that shares memory with one of its blocker.

    Rather one that it was to write, or read, and that the blocker wrote, or read; else any.
    """
    for i in range(blocker.shape[0]):
        b = blocker[i]
        if b < 0 or not waits[i]:
            continue
        mine, theirs = calls[call[i]], calls[call[b]]
        here, there = mine[_CODE] + i - mine[_AT], theirs[_CODE] + b - theirs[_AT]
        for strict in (True, False):
            for k in range(first_operand[here], first_operand[here + 1]):
                for j in range(first_operand[there], first_operand[there + 1]):
                    fits = not strict or (writes[k] == writes_now[i] and writes[j] == wrote[i])
                    if fits and found[i] < 0:
                        found[i] = _shared(
                            operands[k], operands[j], mine, theirs, call[i] == call[b], buffers, args, tensor_name
                        )


@compiled
def _shared(
    x: Ints, y: Ints, mine: Ints, theirs: Ints, together: bool, buffers: Ints, args: Ints, tensor_name: Ints
) -> Any:
    """The name of the memory that two operands share, -1 when they do not. together: they are of one call."""
    a, b = buffers[mine[_TILES] + x[_BUFFER]], buffers[theirs[_TILES] + y[_BUFFER]]
    if a[_MEMORY] != b[_MEMORY]:
        return -1
    if together:
        return a[_NAME] if x[_FIRST] <= y[_LAST] and y[_FIRST] <= x[_LAST] else -1
    if a[_PARAMETER] >= 0 or b[_PARAMETER] >= 0:
        if a[_PARAMETER] < 0 or b[_PARAMETER] < 0:
            return -1
        tensor = args[mine[_ARGS] + a[_PARAMETER]]
        return tensor_name[tensor] if tensor == args[theirs[_ARGS] + b[_PARAMETER]] else -1
    if mine[_CORE] != theirs[_CORE]:
        return -1
    in_sbuf = 1 if a[_MEMORY] == 1 else 0
    low, other = a[_ADDRESS] + in_sbuf * mine[_BASE], b[_ADDRESS] + in_sbuf * theirs[_BASE]
    return a[_NAME] if low < other + b[_NBYTES] and other < low + a[_NBYTES] else -1
