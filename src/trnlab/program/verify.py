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

from collections.abc import Collection, Sequence
from math import prod

from trnlab.chips.spec import Chip
from trnlab.collectives import PURPOSES
from trnlab.isa.base import Memory
from trnlab.isa.collectives.meeting import CorePlace
from trnlab.numerics.dtypes import DType
from trnlab.program.access import Buffer
from trnlab.program.routine import Call, Program, ProgramTensor, Routine
from trnlab.program.routine_rules import ParameterUsage, accesses, fail, verify_routine

__all__ = ["ParameterUsage", "accesses", "verify_program", "verify_routine"]

_KINDS = ("input", "output", "constant", "temp")
_MOST = 1 << 52  # bytes of a tensor, and of an address
_CORES = 2  # of a rank
_ALIGN = 4096  # bytes that an arena may be longer than what lies in it


def verify_program(program: Program, chip: Chip, empty: Collection[int] = ()) -> None:
    """Check every routine, every call, and the life of every tensor. Raises ConstraintError.

    empty: outputs that stand for tensors without elements, which nobody has to write.
    """
    _tensors(program)
    usages = [verify_routine(routine, chip) for routine in program.routines]
    tensors = {tensor.id: tensor for tensor in program.tensors}
    written: set[int] = set()
    filled = {*program.inputs, *program.constants}
    at_home: dict[CorePlace, set[_Tile]] = {}
    for call in program.calls:
        _call(program, call, tensors, chip)
        _bound_twice(call, program.routines[call.routine], usages[call.routine], tensors)
    for calls in program.together():
        if len(calls) > 1:  # what one writes another may read, behind a meeting
            filled |= {call.args[position] for call in calls for position in usages[call.routine].writes}
        for call in calls:
            _is_filled(program, call, usages[call.routine], filled)
            routine, held = program.routines[call.routine], at_home.get(call.place, set())
            at_home[call.place] = _held_after(call, routine, usages[call.routine], held)
            written |= {call.args[position] for position in usages[call.routine].writes}
        filled |= written
    _results(program, tensors, written | {*empty})
    _constants(program, tensors)
    _lives(program)


# -- programs -------------------------------------------------------------------------------------------------------
def _tensors(program: Program) -> None:
    """Tensors are found by their place in the list, and have the bytes that their shape says."""
    for place, t in enumerate(program.tensors):
        size = prod(t.shape) * t.dtype.itemsize
        sound = t.id == place and t.kind in _KINDS and min(t.shape, default=0) >= 0 and -1 <= t.address <= _MOST
        if not sound or t.nbytes != size or size > _MOST:
            fail(
                "TRN425",
                f"tensor {t.name!r} of program {program.name!r} at place {place}",
                limit=f"{size} bytes of {t.dtype}{list(t.shape)}, {' or '.join(_KINDS)}",
                got=f"{t.nbytes} bytes, {t.kind} {t.id}",
            )
    given = [*program.inputs, *program.outputs, *program.constants]
    if not {*given} <= {*range(len(program.tensors))} or program.ranks < 1:
        fail("TRN425", f"inputs and outputs of program {program.name!r}", limit=len(program.tensors), got=given)
    top = max((t.address + t.nbytes for t in program.tensors if t.address >= 0), default=0)
    if not 0 <= program.hbm_bytes <= top + _ALIGN:
        fail("TRN422", f"the arena of program {program.name!r}", limit=f"{top} bytes", got=program.hbm_bytes)


def _is_filled(program: Program, call: Call, usage: ParameterUsage, filled: set[int]) -> None:
    """What a call reads was given, or written before."""
    for tensor in (call.args[position] for position in sorted(usage.needs)):
        if tensor not in filled:
            fail(
                "TRN424",
                f"call of {program.routines[call.routine].name!r} reads tensor {program.tensors[tensor].name!r}",
                call.loc,
                limit="inputs, constants, and what earlier calls wrote",
                got="nothing wrote it",
            )


def _constants(program: Program, tensors: dict[int, ProgramTensor]) -> None:
    """The values of constants are as many as the tensor has bytes, in its format."""
    for number, array in program.constants.items():
        t = tensors[number]
        if array.nbytes != t.nbytes or array.dtype != t.dtype.numpy:
            fail(
                "TRN425",
                f"the values of constant {t.name!r}",
                limit=f"{t.nbytes} bytes of {t.dtype}",
                got=f"{array.nbytes} bytes of {array.dtype}",
            )


def _call(program: Program, call: Call, tensors: dict[int, ProgramTensor], chip: Chip) -> None:
    """A call of a routine that there is, on a core that there is, with tensors for its parameters."""
    if not (0 <= call.routine < len(program.routines) and 0 <= call.core < _CORES and 0 <= call.rank < program.ranks):
        got = (call.routine, call.core, call.rank)
        fail("TRN425", f"a call of program {program.name!r}", limit="a routine, core and rank that it has", got=got)
    routine = program.routines[call.routine]
    if len(call.offsets) not in (0, len(call.args)) or (call.purpose and call.purpose not in PURPOSES):
        fail("TRN425", f"call of {routine.name!r}", call.loc, got=(call.offsets, call.purpose))
    if len(call.args) != len(routine.params) or any(t not in tensors for t in call.args):
        fail(
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
            fail(
                "TRN425",
                f"tensor {tensor.name!r} for parameter {buffer.name!r} of {routine.name!r}",
                call.loc,
                limit=f"{buffer.nbytes} bytes of {buffer.dtype}",
                got=f"{tensor.nbytes} bytes of {tensor.dtype}",
            )
    top = call.sbuf_base + routine.sbuf_bytes
    if call.sbuf_base < 0 or top > chip.sbuf.usable_bytes_per_partition:
        fail(
            "TRN422",
            f"call of {routine.name!r} leaves SBUF",
            call.loc,
            limit=chip.sbuf.usable_bytes_per_partition,
            got=top,
        )


# Of SBUF: first byte of a partition, the one behind, format, shape, first partition.
_Tile = tuple[int, int, DType, tuple[int, ...], int]


def _held_after(call: Call, routine: Routine, usage: ParameterUsage, held: set[_Tile]) -> set[_Tile]:
    """What stays in SBUF after a call, of what was `held` there before it; TRN424 where it finds something else."""

    def tile(b: Buffer) -> _Tile:
        start = call.sbuf_base + b.address
        return start, start + b.nbytes, b.dtype, b.shape, b.first_partition

    for number in usage.finds:
        if tile(routine.buffers[number]) not in held:
            fail(
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
            fail("TRN426", f"two parameters of {routine.name!r} write tensor {name!r} in one call", call.loc)


def _results(program: Program, tensors: dict[int, ProgramTensor], written: set[int]) -> None:
    spoilt = written & set(program.constants)
    if spoilt:
        fail("TRN427", "a constant is written", got=[tensors[t].name for t in sorted(spoilt)])
    missing = set(program.outputs) - written - set(program.inputs)
    if missing:
        fail("TRN427", "an output is never written", got=[tensors[t].name for t in sorted(missing)])


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
            fail("TRN422", f"tensor {t.name!r} leaves the arena", limit=program.hbm_bytes, got=t.address + t.nbytes)
    for i, t in enumerate(placed):
        for u in placed[i + 1 :]:
            if u.address >= t.address + t.nbytes:
                break
            if first[t.id] <= last[u.id] and first[u.id] <= last[t.id] and u.nbytes:
                fail(
                    "TRN428",
                    f"tensors {t.name!r} and {u.name!r} share bytes while both are alive",
                    got=f"calls {first[t.id]}..{last[t.id]} and {first[u.id]}..{last[u.id]}",
                )
