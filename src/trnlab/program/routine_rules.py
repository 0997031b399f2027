# SPDX-License-Identifier: Apache-2.0
"""The rules that one routine keeps, checked from its columns alone; see `verify` for the codes.

Columns are looked at as arrays, and the instructions' own rules once for each form that occurs, so that a routine of
a million instructions takes seconds. Nothing is taken for granted: numbers may be of any size, indices of any sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError, Location
from trnlab.isa.base import Engine, Memory
from trnlab.isa.collectives.collective import CollectiveInstruction
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import Buffer, Grid
from trnlab.program.routine import COL, OPERAND_COLUMNS, Routine
from trnlab.program.slots import put_in_slots, slots_with
from trnlab.program.text import operands_of

Array = np.ndarray[Any, Any]
QUEUES = 16  # of an engine that a row of the timing simulator has room for
_ALIGN = 4096  # bytes that scratch may be longer than what lies in it
MOST_SLOTS = 1 << 28  # of a routine (assumed): more are no program that was compiled
_MOST = 1 << 52  # of any number in a column, and of any sum of them: floats count so far exactly
_TYPES = {
    "opcode": "int16",
    "engine": "int8",
    "queue": "int8",
    "work": "int32",
    "attr": "int32",
    "loc": "int32",
    "first_operand": "int32",
    "left_open": "int8",
    "sbuf_cuts": "int64",
}
_COUNTS = [COL[f"count{d}"] for d in range(4)]
_STEPS = [COL[f"step{d}"] for d in range(4)]


@dataclass(frozen=True)
class ParameterUsage:
    """What a routine does with its parameters, by position: those it needs filled, and those it writes; and with
    what stays in SBUF between calls."""

    needs: frozenset[int]
    writes: frozenset[int]
    finds: frozenset[int] = frozenset()  # buffers that stay in SBUF, by number, that it needs filled
    leaves: frozenset[int] = frozenset()  # those that it fills


def verify_routine(routine: Routine, chip: Chip) -> ParameterUsage:
    """Check one routine; returns how it uses its parameters. Raises ConstraintError."""
    _columns(routine)
    for number, buffer in enumerate(routine.buffers):
        _buffer(routine, number, buffer, chip)
    _scratch(routine)
    _bounds(routine, routine.operands)
    _prints(routine)
    _slots(routine, chip)
    _forms(routine, chip)
    return _reads_and_writes(routine)


def fail(
    code: str, what: str, where: Location | None = None, *, limit: object = None, got: object = None
) -> NoReturn:
    """Raise the ConstraintError of a broken rule."""
    raise ConstraintError(what, code=code, where=where, limit=limit, got=got)


# -- columns and buffers --------------------------------------------------------------------------------------------
def _columns(routine: Routine) -> None:
    count, name = len(routine), routine.name
    for column, kind in _TYPES.items():
        found: Array = getattr(routine, column)
        if found.ndim != 1 or found.dtype != kind:
            fail("TRN421", f"column {column!r} of routine {name!r}", limit=kind, got=f"{found.dtype} {found.shape}")
    if routine.operands.dtype != np.int64 or routine.operands.shape[1:] != (len(OPERAND_COLUMNS),):
        fail("TRN421", f"operands of routine {name!r}", got=f"{routine.operands.dtype} {routine.operands.shape}")
    sizes = {c: len(getattr(routine, c)) for c in ("opcode", "engine", "queue", "work", "attr", "loc")}
    if set(sizes.values()) - {count} or len(routine.first_operand) != count + 1:
        fail("TRN421", f"columns of routine {name!r} differ in length", limit=count, got=sizes)
    if len(routine.left_open) not in (0, count):
        fail("TRN421", f"column 'left_open' of routine {name!r}", limit=count, got=len(routine.left_open))
    tables = {"attr": len(routine.attr_table), "loc": len(routine.locs), "work": len(routine.works)}
    for column, length in tables.items():
        _within(routine, column, 0, length, "leaves its table")
    _within(routine, "queue", -1, QUEUES, "names a queue that there is not")
    unknown = set(routine.opcode.tolist()) - set(isa.BY_OPCODE)
    if unknown or set(routine.engine.tolist()) - set(Engine):
        fail("TRN421", f"routine {name!r} has unknown opcodes or engines", got=sorted(unknown))
    first = routine.first_operand
    if first[0] != 0 or (np.diff(first) < 0).any() or first[-1] != len(routine.operands):
        fail("TRN421", f"first_operand of routine {name!r} does not cover its operands")
    _operand_columns(routine, routine.operands)
    params = [b.id for b in routine.buffers if b.kind == "param"]
    if sorted(routine.params) != params:
        fail("TRN421", f"parameters of routine {name!r}", limit=params, got=routine.params)
    for earlier, later in routine.after:
        if not 0 <= earlier < later < count:
            fail("TRN421", f"an order of instructions of routine {name!r}", limit=count, got=(earlier, later))


def _within(routine: Routine, column: str, low: int, high: int, what: str) -> None:
    """All values of a column from `low` on and below `high`."""
    values: Array = getattr(routine, column)
    if len(values) and not low <= values.min() <= values.max() < high:
        got = (int(values.min()), int(values.max()))
        fail("TRN421", f"column {column!r} of routine {routine.name!r} {what}", limit=high, got=got)


def _operand_columns(routine: Routine, operands: Array) -> None:
    """Numbers that are indices, and those that are sizes, of operands."""
    limits = {
        "buffer": (0, len(routine.buffers) - 1),
        "dtype": (0, len(BY_CODE) - 1),
        "start_partition": (0, 1 << 16),
        "partitions": (1, _MOST),
        "partition_step": (-_MOST, _MOST),
        "offset": (0, _MOST),
        **{f"step{d}": (-_MOST, _MOST) for d in range(4)},
        **{f"count{d}": (1, _MOST) for d in range(4)},
    }
    for name, (low, high) in limits.items():
        values = operands[:, COL[name]]
        if len(values) and not low <= values.min() <= values.max() <= high:
            code = "TRN421" if name in ("buffer", "dtype") else "TRN422"
            got = (int(values.min()), int(values.max()))
            fail(code, f"{name} of an operand of routine {routine.name!r}", limit=(low, high), got=got)


def _buffer(routine: Routine, number: int, b: Buffer, chip: Chip) -> None:
    psum = chip.psum.num_banks * chip.psum.bank_bytes_per_partition
    room = {
        "tile": {Memory.SBUF: chip.sbuf.usable_bytes_per_partition, Memory.PSUM: psum}.get(b.memory, 0),
        "scratch": routine.scratch_bytes,
        "resident": chip.sbuf.usable_bytes_per_partition if b.memory is Memory.SBUF else 0,
        "param": b.address + b.nbytes,
    }.get(b.kind, -1)
    if b.id != number or room < 0 or (b.kind not in ("tile", "resident")) != (b.memory is Memory.HBM):
        fail("TRN421", f"buffer {b.name!r} of routine {routine.name!r}", got=f"{b.kind} {b.id} in {b.memory.name}")
    if b.memory is Memory.SBUF:
        room = min(room, routine.sbuf_bytes)
    if b.address < 0 or b.nbytes < 0 or b.address + b.nbytes > min(room, _MOST):
        fail(
            "TRN422",
            f"buffer {b.name!r} of routine {routine.name!r} leaves {b.memory.name}",
            limit=f"{room} bytes",
            got=f"{b.nbytes} bytes at {b.address}",
        )
    lanes = (b.first_partition, b.partitions)
    if b.memory is not Memory.HBM and (min(lanes) < 0 or sum(lanes) > chip.num_partitions):
        fail("TRN422", f"buffer {b.name!r} has too many partitions", limit=chip.num_partitions, got=b.partitions)
    if b.slot_bytes < (b.memory is Memory.HBM and b.grid is None) or not _is_grid(b.grid):
        fail("TRN423", f"how buffer {b.name!r} of routine {routine.name!r} is cut", got=b.slot_bytes)


def _scratch(routine: Routine) -> None:
    """No more scratch than its buffers take: it is memory that every call of it needs."""
    top = max((b.address + b.nbytes for b in routine.buffers if b.kind == "scratch"), default=0)
    if not top <= routine.scratch_bytes < top + _ALIGN:
        fail("TRN422", f"scratch of routine {routine.name!r}", limit=f"{top} bytes", got=routine.scratch_bytes)


def _is_grid(grid: Grid | None) -> bool:
    """Whether rows and columns begin with 0, grow, and columns end with the row."""
    if grid is None:
        return True
    cuts = [np.array(each) for each in (grid.rows, grid.columns)]
    grown = all(len(c) > 1 and c[0] == 0 and (np.diff(c) > 0).all() for c in cuts)
    return grown and grid.columns[-1] == grid.pitch and grid.rows[-1] < _MOST


# -- operands -------------------------------------------------------------------------------------------------------
def _bounds(routine: Routine, operands: Array) -> None:
    """Every operand within its buffer, no more of its bytes than it is made of."""
    if not len(operands):
        return
    owner = operands[:, COL["buffer"]]
    nbytes = np.array([b.nbytes for b in routine.buffers], np.int64)[owner]
    lanes = np.array([b.partitions for b in routine.buffers], np.int64)[owner]
    in_hbm = np.array([b.memory is Memory.HBM for b in routine.buffers], np.bool_)[owner]
    start, rows = operands[:, COL["start_partition"]], operands[:, COL["partitions"]]
    low, high = extents(operands, in_hbm)
    outside = (low < 0) | (high >= nbytes) | (operands[:, COL["is_hbm"]] != in_hbm)
    outside |= np.where(in_hbm, start != 0, start + rows > lanes)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        fail(
            "TRN422",
            f"an operand of routine {routine.name!r} leaves buffer {routine.buffers[owner[at]].name!r}",
            _where(routine, operands, at),
            limit=f"{nbytes[at]} bytes, {lanes[at]} partitions",
            got=f"bytes {low[at]}..{high[at]}, partitions {start[at]}+{rows[at]}",
        )


def _where(routine: Routine, operands: Array, row: int) -> Location | None:
    if operands is not routine.operands:
        return None
    return routine.locs[int(routine.loc[np.searchsorted(routine.first_operand, row, side="right") - 1])]


def extents(operands: Array, in_hbm: Array) -> tuple[Array, Array]:
    """First and last byte that each operand touches in its buffer; -1 for the first where numbers are too large."""
    item = np.array([BY_CODE[code].itemsize for code in range(len(BY_CODE))], np.int64)[operands[:, COL["dtype"]]]
    steps = operands[:, _STEPS] * item[:, None]
    steps = np.column_stack([steps, np.where(in_hbm, operands[:, COL["partition_step"]], 0)])
    reps = np.column_stack([operands[:, _COUNTS], operands[:, COL["partitions"]]]) - 1
    absurd = (np.abs(steps.astype(np.float64)) * reps > _MOST).any(axis=1)
    absurd |= (reps + 1).astype(np.float64).prod(axis=1) > _MOST  # times that a row of no step is read
    spans = np.where(absurd[:, None], 0, steps) * reps
    first = operands[:, COL["offset"]]
    low, high = first + np.minimum(spans, 0).sum(axis=1), first + np.maximum(spans, 0).sum(axis=1) + item - 1
    return np.where(absurd, -1, low), high


def _prints(routine: Routine) -> None:
    """What is shown lies within its buffer, in the shape that is said, and in order."""
    records = np.array([p.operand for p in routine.prints], np.int64).reshape(-1, len(OPERAND_COLUMNS))
    _operand_columns(routine, records)
    _bounds(routine, records)
    at = [0, *(p.at for p in routine.prints), len(routine)]
    sizes = records[:, [*_COUNTS, COL["partitions"]]].prod(axis=1).tolist()
    if at != sorted(at) or any(int(np.prod(p.shape)) != size for p, size in zip(routine.prints, sizes)):
        fail("TRN421", f"what routine {routine.name!r} prints", limit=sizes, got=[p.shape for p in routine.prints])


def _slots(routine: Routine, chip: Chip) -> None:
    """Slots as the buffers and the cuts of SBUF make them, and each operand's those of its bytes. Of an operand that
    an index picks from they may be more: how far the index reaches is not written down."""
    cuts, name = routine.sbuf_cuts, routine.name
    if not len(cuts) or cuts[0] != 0 or (np.diff(cuts) <= 0).any() or cuts[-1] > routine.sbuf_bytes:
        fail("TRN423", f"cuts of SBUF in routine {name!r}", got=cuts[:8].tolist())
    slots = slots_with(routine.buffers, cuts, chip.psum)
    total = slots.total + len(routine.after)
    if (routine.num_psum, routine.num_slots) != (chip.psum.num_banks, total) or total > MOST_SLOTS:
        limit, got = (chip.psum.num_banks, min(total, MOST_SLOTS)), (routine.num_psum, routine.num_slots)
        fail("TRN423", f"slots of routine {name!r}", limit=limit, got=got)
    wanted = routine.operands.copy()
    wanted[:, COL["first"]], wanted[:, COL["last"]] = extents(wanted, wanted[:, COL["is_hbm"]] != 0)
    put_in_slots(routine.buffers, wanted, chip.psum, slots)
    found, first, last = routine.operands, COL["first"], COL["last"]
    wrong = (found[:, first] > wanted[:, first]) | (found[:, last] < wanted[:, last])
    wrong |= ((found[:, first] != wanted[:, first]) | (found[:, last] != wanted[:, last])) & ~_picked(routine)
    wrong |= (found[:, first] < 0) | (found[:, last] >= max(slots.total, 1))
    if slots.hbm != routine.hbm_slot or wrong.any():
        fail("TRN423", f"slots of routine {name!r}", got=f"operands {np.flatnonzero(wrong)[:5].tolist()} differ")


def _picked(routine: Routine) -> Array:
    """Which operands an index may pick from: all of an instruction that has one."""
    owner = _owner(routine)
    by_index = np.zeros(max(isa.BY_OPCODE) + 1, np.bool_)
    by_index[[code for code, instr in isa.BY_OPCODE.items() if any(spec.index_of for spec in instr.operands)]] = True
    return np.asarray(by_index[routine.opcode[owner]])


def _owner(routine: Routine) -> Array:
    """The instruction of each operand."""
    return np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))


def _forms(routine: Routine, chip: Chip) -> None:
    """Every instruction legal and its work what its operands say, looked at once for each form."""
    for i in _distinct(routine):
        where, instr = routine.locs[int(routine.loc[i])], isa.BY_OPCODE[int(routine.opcode[i])]
        found = operands_of(routine, i)
        roles = [role for role, _ in found]
        if roles != sorted({*roles}) or not {*roles} <= {*range(len(instr.operands))}:
            fail("TRN421", f"{instr.name} has no such operands", where, got=roles)
        ops = {instr.operands[role].name: ap for role, ap in found}
        attrs = dict(routine.attr_table[int(routine.attr[i])])
        if not {*instr.attrs} <= {*attrs}:
            fail("TRN421", f"attributes of {instr.name} are missing", where, got=sorted({*instr.attrs} - {*attrs}))
        work = isa.validate(instr, ops, attrs, Engine(int(routine.engine[i])), chip, where)
        said = routine.works[int(routine.work[i])]
        if work != said:
            fail("TRN421", f"{instr.name} has other work than is said", where, limit=work, got=said)


def _distinct(routine: Routine) -> list[int]:
    """One instruction of each form: all that rules and work depend on."""
    if not len(routine):
        return []
    operands, owner = routine.operands, _owner(routine)
    kinds = np.zeros((len(operands), 0), np.int64)
    if len(operands):
        of = operands[:, COL["buffer"]]
        memory = np.array([b.memory for b in routine.buffers], np.int64)[of]
        lane = np.array([b.first_partition for b in routine.buffers], np.int64)[of]
        offset = operands[:, COL["offset"]]
        within = np.where(memory == Memory.PSUM, offset, offset % 64)
        pattern = operands[
            :, [COL["role"], COL["dtype"], COL["partitions"], COL["partition_step"], *_STEPS, *_COUNTS]
        ]
        kinds = np.column_stack([memory, lane + operands[:, COL["start_partition"]], within, pattern])
    _, kind = np.unique(kinds, axis=0, return_inverse=True)
    width = int(np.diff(routine.first_operand).max())
    table = np.full((len(routine), 4 + width), -1, np.int64)
    for column, name in enumerate(("opcode", "engine", "attr", "work")):
        table[:, column] = getattr(routine, name)
    table[owner, 4 + np.arange(len(operands)) - routine.first_operand[owner]] = kind.ravel()
    _, first = np.unique(table, axis=0, return_index=True)
    return sorted(first.tolist())


# -- what is read and written ---------------------------------------------------------------------------------------
def accesses(routine: Routine, i: int) -> Iterator[tuple[Array, bool, bool]]:
    """(operand record, is read, is written) of instruction i. What a collective leaves where no group names the rank
    is no read: nobody needs it filled."""
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    attrs = dict(routine.attr_table[int(routine.attr[i])])
    for record in routine.operands[int(routine.first_operand[i]) : int(routine.first_operand[i + 1])]:
        spec = instr.operands[int(record[COL["role"]])]
        kept = spec.rw and not isinstance(instr, CollectiveInstruction) and instr.reads_destination(attrs)
        read = spec.role == "src" or kept
        yield record, read, spec.role == "dst"


def _reads_and_writes(routine: Routine) -> ParameterUsage:
    """Which parameters need contents; TRN424 where a tile or scratch is read before it is written, slot by slot."""
    read, written, owner = *_directions(routine), _owner(routine)
    position = {buffer: i for i, buffer in enumerate(routine.params)}
    first_write = np.full(routine.num_slots, len(routine), np.int64)  # the instruction that first writes a slot
    for _, first, last, i in reversed(_ranges(routine, owner, written)):
        first_write[first : last + 1] = i
    resident = {b.id for b in routine.buffers if b.kind == "resident"}
    needs, finds = set(), set()
    for buffer, first, last, i in _ranges(routine, owner, read):
        if first_write[first : last + 1].max() < i:
            continue
        if buffer in resident:
            finds.add(buffer)
            continue
        if buffer not in position:
            fail(
                "TRN424",
                f"{isa.BY_OPCODE[int(routine.opcode[i])].name}, instruction {i} of routine {routine.name!r}, "
                "reads what nothing wrote",
                routine.locs[int(routine.loc[i])],
                got=f"buffer {routine.buffers[buffer].name!r}",
            )
        needs.add(position[buffer])
    targets = np.unique(routine.operands[written, COL["buffer"]]).tolist()
    writes = {position[b] for b in targets if b in position}
    return ParameterUsage(
        frozenset(needs), frozenset(writes), frozenset(finds), frozenset(b for b in targets if b in resident)
    )


def _directions(routine: Routine) -> tuple[Array, Array]:
    """Which operands are read, and which written; as `accesses` says of each."""
    owner = _owner(routine)
    key = (routine.opcode[owner].astype(np.int64) << 32 | routine.attr[owner]) << 8 | routine.operands[:, COL["role"]]
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    read, written = np.zeros(len(first), np.bool_), np.zeros(len(first), np.bool_)
    for number, row in enumerate(first.tolist()):
        found = list(accesses(routine, int(owner[row])))[row - int(routine.first_operand[owner[row]])]
        read[number], written[number] = found[1:]
    return read[which.ravel()], written[which.ravel()]


def _ranges(routine: Routine, owner: Array, chosen: Array) -> list[tuple[int, int, int, int]]:
    """(buffer, first slot, last slot, first instruction) of these operands, each range once, by instruction."""
    rows = routine.operands[chosen][:, [COL["buffer"], COL["first"], COL["last"]]]
    distinct, first = np.unique(rows, axis=0, return_index=True)
    found = np.column_stack([distinct, owner[chosen][first]])
    return [tuple(row) for row in found[np.argsort(found[:, 3], kind="stable")].tolist()]
