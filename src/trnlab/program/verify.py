# SPDX-License-Identifier: Apache-2.0
"""The rules that routines and programs keep, checked from their columns alone; what the builder makes passes.

Raises ConstraintError for the first rule broken:

    TRN421  the columns of a routine do not agree with each other
    TRN422  an operand that does not lie within its buffer, or a buffer that does not lie within its memory
    TRN423  the slots of an operand are not those of its bytes
    TRN424  memory that is read before anything wrote it, or that other tiles have had since
    TRN425  a call whose tensors do not match the parameters of its routine
    TRN426  a tensor written through two parameters of one call: dependencies between the two would not be seen
    TRN427  a constant that is written, or an output that is not
    TRN428  two tensors that live at the same time and share bytes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError, Location
from trnlab.isa.base import Engine, Memory
from trnlab.isa.collectives.meeting import CorePlace
from trnlab.numerics.dtypes import BY_CODE, DType
from trnlab.program.access import AP, Buffer
from trnlab.program.routine import COL, Call, Program, ProgramTensor, Routine
from trnlab.program.slots import assign_slots
from trnlab.program.text import operands_of


@dataclass(frozen=True)
class ParameterUsage:
    """What a routine does with its parameters, by position: those it needs filled, and those it writes; and with
    what stays in SBUF between calls."""

    needs: frozenset[int]
    writes: frozenset[int]
    finds: frozenset[int] = frozenset()  # buffers that stay in SBUF, by number, that it needs filled
    leaves: frozenset[int] = frozenset()  # those that it fills


def verify_routine(routine: Routine, chip: Chip) -> ParameterUsage:
    """Check one routine; returns how it uses its parameters."""
    _columns(routine)
    for buffer in routine.buffers:
        _buffer(routine, buffer, chip)
    _operands(routine, chip)
    return _reads_and_writes(routine)


def verify_program(program: Program, chip: Chip) -> None:
    """Check every routine, every call, and the life of every tensor."""
    usages = [verify_routine(routine, chip) for routine in program.routines]
    tensors = {tensor.id: tensor for tensor in program.tensors}
    written: set[int] = set()
    filled = {*program.inputs, *program.constants}
    at_home: dict[CorePlace, set[_Tile]] = {}
    for call, routine in program:
        _call(program, call, routine, tensors, chip)
        usage = usages[call.routine]
        _bound_twice(call, routine, usage, tensors)
        at_home[call.place] = _held_after(call, routine, usage, at_home.get(call.place, set()))
        for tensor in (call.args[position] for position in sorted(usage.needs)):
            if tensor not in filled:
                _fail(
                    "TRN424",
                    f"call of {routine.name!r} reads tensor {tensors[tensor].name!r}",
                    call.loc,
                    limit="inputs, constants, and what earlier calls wrote",
                    got="nothing wrote it",
                )
        written |= {call.args[position] for position in usage.writes}
        filled |= written
    _results(program, tensors, written)
    _lives(program)


def _fail(
    code: str, what: str, where: Location | None = None, *, limit: object = None, got: object = None
) -> NoReturn:
    raise ConstraintError(what, code=code, where=where, limit=limit, got=got)


# -- routines -------------------------------------------------------------------------------------------------------
def _columns(routine: Routine) -> None:
    count, name = len(routine), routine.name
    sizes = {c: len(getattr(routine, c)) for c in ("opcode", "engine", "queue", "work", "attr", "loc")}
    if set(sizes.values()) - {count} or len(routine.first_operand) != count + 1:
        _fail("TRN421", f"columns of routine {name!r} differ in length", limit=count, got=sizes)
    tables = (("attr", routine.attr_table), ("loc", routine.locs), ("work", routine.works))
    for column, table in tables:
        values = getattr(routine, column)
        if count and not 0 <= values.min() <= values.max() < len(table):
            got = (int(values.min()), int(values.max()))
            _fail("TRN421", f"column {column!r} of routine {name!r} leaves its table", limit=len(table), got=got)
    unknown = set(routine.opcode.tolist()) - set(isa.BY_OPCODE)
    if unknown or set(routine.engine.tolist()) - set(Engine):
        _fail("TRN421", f"routine {name!r} has unknown opcodes or engines", got=sorted(unknown))
    first = routine.first_operand
    if first[0] != 0 or (np.diff(first) < 0).any() or first[-1] != len(routine.operands):
        _fail("TRN421", f"first_operand of routine {name!r} does not cover its operands")
    owners = routine.operands[:, COL["buffer"]]
    if len(owners) and not 0 <= owners.min() <= owners.max() < len(routine.buffers):
        _fail("TRN421", f"an operand of routine {name!r} has no buffer", limit=len(routine.buffers), got=owners.max())
    params = [b.id for b in routine.buffers if b.kind == "param"]
    if sorted(routine.params) != params:
        _fail("TRN421", f"parameters of routine {name!r}", limit=params, got=routine.params)


def _buffer(routine: Routine, b: Buffer, chip: Chip) -> None:
    psum = chip.psum.num_banks * chip.psum.bank_bytes_per_partition
    room = {
        "tile": {Memory.SBUF: chip.sbuf.usable_bytes_per_partition, Memory.PSUM: psum}.get(b.memory, 0),
        "scratch": routine.scratch_bytes,
        "resident": chip.sbuf.usable_bytes_per_partition if b.memory is Memory.SBUF else 0,
        "param": b.address + b.nbytes,
    }[b.kind]
    if b.memory is Memory.SBUF:
        room = min(room, routine.sbuf_bytes)
    if b.address < 0 or b.address + b.nbytes > room:
        _fail(
            "TRN422",
            f"buffer {b.name!r} of routine {routine.name!r} leaves {b.memory.name}",
            limit=f"{room} bytes",
            got=f"{b.nbytes} bytes at {b.address}",
        )
    if b.memory is not Memory.HBM and b.first_partition + b.partitions > chip.num_partitions:
        _fail("TRN422", f"buffer {b.name!r} has too many partitions", limit=chip.num_partitions, got=b.partitions)


def _operands(routine: Routine, chip: Chip) -> None:
    """Every operand within its buffer, its slots those of its bytes, every instruction legal."""
    bytes_touched = routine.operands.copy()
    legal: set[tuple[object, ...]] = set()
    row = 0
    for i in range(len(routine)):
        where = routine.locs[int(routine.loc[i])]
        instr = isa.BY_OPCODE[int(routine.opcode[i])]
        ops: dict[str, AP] = {}
        for role, ap in operands_of(routine, i):
            if role >= len(instr.operands) or ap.dtype.code not in BY_CODE:
                _fail("TRN421", f"{instr.name} has no operand {role}", where)
            try:
                ap.recorded()
            except ConstraintError as error:
                _fail("TRN422", f"{instr.name}: {error.what}", where, limit=error.limit, got=error.got)
            bytes_touched[row, [COL["first"], COL["last"]]] = ap.extent()
            ops[instr.operands[role].name] = ap
            row += 1
        attrs = routine.attr_table[int(routine.attr[i])]
        engine = Engine(int(routine.engine[i]))
        key = (instr.opcode, engine, attrs, *(op.recorded()[1] for op in ops.values()))
        if key not in legal:
            isa.validate(instr, ops, dict(attrs), engine, chip, where)
            legal.add(key)
    slots = assign_slots(routine.buffers, bytes_touched, chip.psum)
    if slots.hbm != routine.hbm_slot or (bytes_touched != routine.operands).any():
        wrong = np.flatnonzero((bytes_touched != routine.operands).any(axis=1))
        _fail("TRN423", f"slots of routine {routine.name!r}", got=f"operands {wrong[:5].tolist()} differ")


def accesses(routine: Routine, i: int) -> Iterator[tuple[np.ndarray[Any, Any], bool, bool]]:
    """(operand record, is read, is written) of instruction i."""
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    attrs = dict(routine.attr_table[int(routine.attr[i])])
    for record in routine.operands[int(routine.first_operand[i]) : int(routine.first_operand[i + 1])]:
        spec = instr.operands[int(record[COL["role"]])]
        read = spec.role == "src" or (spec.rw and instr.reads_destination(attrs))
        yield record, read, spec.role == "dst"


def _reads_and_writes(routine: Routine) -> ParameterUsage:
    """Which parameters need contents; TRN424 where a tile or scratch is read before it is written, slot by slot."""
    position = {buffer: i for i, buffer in enumerate(routine.params)}
    filled = np.zeros(routine.num_slots, bool)
    needs: set[int] = set()
    writes: set[int] = set()
    finds: set[int] = set()
    leaves: set[int] = set()
    for i in range(len(routine)):
        found = list(accesses(routine, i))
        for record, read, _ in found:
            owner = int(record[COL["buffer"]])
            if read and not filled[record[COL["first"]] : record[COL["last"]] + 1].all():
                if owner in position:
                    needs.add(position[owner])
                    continue
                if routine.buffers[owner].kind == "resident":
                    finds.add(owner)
                    continue
                name = isa.BY_OPCODE[int(routine.opcode[i])].name
                _fail(
                    "TRN424",
                    f"{name}, instruction {i} of routine {routine.name!r}, reads what nothing wrote",
                    routine.locs[int(routine.loc[i])],
                    got=f"buffer {routine.buffers[owner].name!r}",
                )
        for record, _, written in found:
            if written:
                filled[record[COL["first"]] : record[COL["last"]] + 1] = True
                owner = int(record[COL["buffer"]])
                writes |= {position[owner]} if owner in position else set()
                leaves |= {owner} if routine.buffers[owner].kind == "resident" else set()
    return ParameterUsage(frozenset(needs), frozenset(writes), frozenset(finds), frozenset(leaves))


# -- programs -------------------------------------------------------------------------------------------------------
def _call(program: Program, call: Call, routine: Routine, tensors: dict[int, ProgramTensor], chip: Chip) -> None:
    if len(call.args) != len(routine.params) or any(t not in tensors for t in call.args):
        _fail(
            "TRN425",
            f"call of {routine.name!r} in program {program.name!r}",
            call.loc,
            limit=f"{len(routine.params)} known tensors",
            got=call.args,
        )
    parts: Sequence[int | None] = call.offsets or [None] * len(call.args)
    for number, tensor, offset in zip(routine.params, (tensors[t] for t in call.args), parts, strict=True):
        buffer = routine.buffers[number]
        whole = buffer.nbytes == tensor.nbytes if offset is None else 0 <= offset <= tensor.nbytes - buffer.nbytes
        if not whole or buffer.dtype != tensor.dtype:
            _fail(
                "TRN425",
                f"tensor {tensor.name!r} for parameter {buffer.name!r} of {routine.name!r}",
                call.loc,
                limit=f"{buffer.nbytes} bytes of {buffer.dtype}",
                got=f"{tensor.nbytes} bytes of {tensor.dtype}",
            )
    top = call.sbuf_base + routine.sbuf_bytes
    if call.sbuf_base < 0 or top > chip.sbuf.usable_bytes_per_partition:
        _fail(
            "TRN422",
            f"call of {routine.name!r} leaves SBUF",
            call.loc,
            limit=chip.sbuf.usable_bytes_per_partition,
            got=top,
        )


_Tile = tuple[int, int, DType, tuple[int, ...]]  # of SBUF: first byte of a partition, the one behind, format, shape


def _held_after(call: Call, routine: Routine, usage: ParameterUsage, held: set[_Tile]) -> set[_Tile]:
    """What stays in SBUF after a call, of what was `held` there before it; TRN424 where it finds something else."""

    def tile(b: Buffer) -> _Tile:
        start = call.sbuf_base + b.address
        return start, start + b.nbytes, b.dtype, b.shape

    for number in usage.finds:
        if tile(routine.buffers[number]) not in held:
            _fail(
                "TRN424",
                f"call of {routine.name!r} finds something else in SBUF",
                call.loc,
                limit=f"{routine.buffers[number].name!r}, as an earlier call left it",
                got="nothing wrote it, or another tile had its bytes since",
            )
    kept = {tile(b) for b in routine.buffers if b.kind == "resident"}
    used = {tile(b) for b in routine.buffers if b.memory is Memory.SBUF} - kept
    spoilt = used | {tile(routine.buffers[number]) for number in usage.leaves}
    alive = {t for t in held if t in kept or not any(s[0] < t[1] and t[0] < s[1] for s in spoilt)}
    return alive | {tile(routine.buffers[number]) for number in usage.leaves}


def _bound_twice(call: Call, routine: Routine, usage: ParameterUsage, tensors: dict[int, ProgramTensor]) -> None:
    targets = [call.args[position] for position in usage.writes]
    for tensor in set(targets):
        if targets.count(tensor) > 1:
            name = tensors[tensor].name
            _fail("TRN426", f"two parameters of {routine.name!r} write tensor {name!r} in one call", call.loc)


def _results(program: Program, tensors: dict[int, ProgramTensor], written: set[int]) -> None:
    spoilt = written & set(program.constants)
    if spoilt:
        _fail("TRN427", "a constant is written", got=[tensors[t].name for t in sorted(spoilt)])
    missing = set(program.outputs) - written - set(program.inputs)
    if missing:
        _fail("TRN427", "an output is never written", got=[tensors[t].name for t in sorted(missing)])


def _lives(program: Program) -> None:
    """Temporaries in the arena: two that share bytes must not be alive at the same time."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, call in enumerate(program.calls):
        for tensor in call.args:
            first.setdefault(tensor, at)
            last[tensor] = at
    placed = sorted((t for t in program.tensors if t.address >= 0 and t.id in first), key=lambda t: t.address)
    for t in placed:
        if t.address + t.nbytes > program.hbm_bytes:
            _fail("TRN422", f"tensor {t.name!r} leaves the arena", limit=program.hbm_bytes, got=t.address + t.nbytes)
    for i, t in enumerate(placed):
        for u in placed[i + 1 :]:
            if u.address >= t.address + t.nbytes:
                break
            if first[t.id] <= last[u.id] and first[u.id] <= last[t.id] and u.nbytes:
                _fail(
                    "TRN428",
                    f"tensors {t.name!r} and {u.name!r} share bytes while both are alive",
                    got=f"calls {first[t.id]}..{last[t.id]} and {first[u.id]}..{last[u.id]}",
                )
