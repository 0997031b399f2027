# SPDX-License-Identifier: Apache-2.0
"""Routines and programs as text, for people, tests and bug reports; `parse` reads it back, columns and all.

    routine @scale for trn2, sbuf 512, scratch 0 {
      param %x: float32[256, 64] slot 32768
      sbuf %t: float32[128, 64] at 0 slot 256
      sync: dma_copy dst=%t, src=%x[rows 128 by 256, @0, 1*64]
      vector: tensor_scalar dst=%t, data=%t, op0='multiply', operand0=2.0 !1
      sync.2: dma_copy dst=%x[rows 128 by 256, @32768, 1*64], src=%t
      loc !1 = 'train.py':12 in 'step' 'x = 2 * x'
    }

An operand is a whole buffer, or an access pattern: which partitions (in HBM: how many rows, how many bytes apart),
the byte offset, then each free dimension as step*count, in elements. `as` reads the bytes in another format.
Attributes that have their default are left out. `sync.2` is a DMA on queue 2, `!1` a line of the user's source.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.errors import Location
from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import AP, MAX_FREE_DIMS, Buffer, whole
from trnlab.program.routine import COL, ENGINE_NAMES, Call, Program, ProgramTensor, Routine

_KINDS = {Memory.SBUF: "sbuf", Memory.PSUM: "psum"}


def routine_text(routine: Routine, *, indent: str = "") -> str:
    """A routine, one instruction per line."""
    names = buffer_names(routine)
    sizes = f"sbuf {routine.sbuf_bytes}, scratch {routine.scratch_bytes}"
    lines = [f"routine @{_title(routine.name)} for {routine.target}, {sizes} {{"]
    lines += [f"  {_buffer(b, names)}" for b in routine.buffers]
    lines += [f"  {instruction_text(routine, i, names)}" for i in range(len(routine))]
    lines += [f"  loc !{i} = {_location(loc)}" for i, loc in enumerate(routine.locs) if loc is not None]
    return "\n".join(indent + line for line in [*lines, "}"])


def instruction_text(routine: Routine, i: int, names: dict[int, str] | None = None) -> str:
    """Instruction i: engine and queue, name, operands, attributes that differ from their defaults, source line."""
    names = names or buffer_names(routine)
    instr = isa.BY_OPCODE[int(routine.opcode[i])]
    queue = int(routine.queue[i])
    engine = ENGINE_NAMES[isa.Engine(int(routine.engine[i]))] + (f".{queue}" if queue >= 0 else "")
    arguments = []
    for role, ap in operands_of(routine, i):
        arguments.append(f"{instr.operands[role].name}={ap_text(ap, names)}")
    for name, value in routine.attr_table[int(routine.attr[i])]:
        if name not in instr.attrs or _differs(value, instr.attrs[name]):
            arguments.append(f"{name}={_literal(value)}")
    loc = int(routine.loc[i])
    mark = f" !{loc}" if routine.locs[loc] is not None else ""
    return f"{engine}: {instr.name} {', '.join(arguments)}".rstrip() + mark


def operands_of(routine: Routine, i: int) -> list[tuple[int, AP]]:
    """(role, access pattern) of each operand of instruction i."""
    found = []
    for row in routine.operands[int(routine.first_operand[i]) : int(routine.first_operand[i + 1])]:
        field = {name: int(row[column]) for name, column in COL.items()}
        dims = [(field[f"step{d}"], field[f"count{d}"]) for d in range(MAX_FREE_DIMS)]
        while dims and dims[0] == (0, 1):
            dims.pop(0)
        ap = AP(
            routine.buffers[field["buffer"]],
            BY_CODE[field["dtype"]],
            field["start_partition"],
            field["partitions"],
            field["partition_step"],
            field["offset"],
            tuple(dims),
        )
        found.append((field["role"], ap))
    return found


def ap_text(ap: AP, names: dict[int, str]) -> str:
    """An operand, as the module's docstring describes."""
    name = names[ap.buffer.id]
    if ap == whole(ap.buffer):
        return name
    if ap.memory is Memory.HBM:
        rows = f"rows {ap.partitions} by {ap.partition_step}"
    else:
        rows = f"{ap.start_partition}:{ap.start_partition + ap.partitions}"
    dims = "".join(f", {step}*{count}" for step, count in ap.dims)
    cast = "" if ap.dtype is ap.buffer.dtype else f" as {ap.dtype.name}"
    return f"{name}[{rows}, @{ap.offset}{dims}]{cast}"


def buffer_names(routine: Routine) -> dict[int, str]:
    """A unique printed name for each buffer: its own, with its number where several have it."""
    used: dict[str, int] = {}
    for b in routine.buffers:
        used[b.name] = used.get(b.name, 0) + 1
    return {b.id: f"%{b.name}" if _plain(b.name) and used[b.name] == 1 else f"%.{b.id}" for b in routine.buffers}


def program_text(program: Program, *, constants: bool = True) -> str:
    """A program: tensors, routines, calls. `constants`: with the bytes of constants, as `parse` needs."""
    ranks = f", ranks {program.ranks} on {program.cluster}" if program.ranks > 1 else ""
    waits = " waiting" if program.waits else ""
    lines = [f"program @{_title(program.name)} for {program.target}, hbm {program.hbm_bytes}{ranks}{waits} {{"]
    lines += [f"  {_tensor(t)}" for t in program.tensors]
    if constants:
        lines += [f"  constant %{i} = {_array(value)}" for i, value in program.constants.items()]
    lines.append(f"  inputs {_list(program.inputs)}")
    lines.append(f"  outputs {_list(program.outputs)}")
    lines += [routine_text(r, indent="  ") for r in program.routines]
    lines += [f"  {_call(c)}" for c in program.calls]
    return "\n".join([*lines, "}", ""])


def _buffer(b: Buffer, names: dict[int, str]) -> str:
    kind = b.kind if b.memory is Memory.HBM or b.kind == "resident" else _KINDS[b.memory]
    own = "" if names[b.id] == f"%{b.name}" else f" {b.name!r}"
    place = "" if kind == "param" else f" at {b.address}"
    lane = f" partition {b.first_partition}" if b.first_partition else ""
    return f"{kind} {names[b.id]}{own}: {b.dtype.name}{list(b.shape)}{place}{lane} slot {b.slot_bytes}"


def _tensor(t: ProgramTensor) -> str:
    return f"tensor %{t.id} {t.name!r}: {t.kind} {t.dtype.name}{list(t.shape)}, {t.nbytes} bytes at {t.address}"


def _call(c: Call) -> str:
    base = f" sbuf {c.sbuf_base}" if c.sbuf_base else ""
    label = f" {c.label!r}" if c.label else ""
    loc = f" loc {_location(c.loc)}" if c.loc is not None else ""
    begins = f" from {', '.join(map(str, c.offsets))}" if c.offsets else ""
    purpose = f" for {c.purpose}" if c.purpose else ""
    core = (f" core {c.core}" if c.core else "") + (" beside" if c.concurrent else "")
    core += f" rank {c.rank}" if c.rank else ""
    return f"call {c.routine} ({_list(c.args)}){begins}{base}{purpose}{core}{label}{loc}"


def _location(loc: Location) -> str:
    return f"{loc.file!r}:{loc.line} in {loc.function!r} {loc.text!r}"


def _array(value: np.ndarray[Any, Any]) -> str:
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return f"{value.dtype.name}{list(value.shape)} {data or '-'}"


def _list(ids: Iterable[int]) -> str:
    return ", ".join(f"%{i}" for i in ids)


def _literal(value: Any) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)


def _differs(value: Any, default: Any) -> bool:
    """Whether an attribute must be written: False and 0 are equal to Python, but not the same text."""
    return bool(value != default) or type(value) is not type(default)


def _title(name: str) -> str:
    return name if _plain(name) else repr(name)


def _plain(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None
