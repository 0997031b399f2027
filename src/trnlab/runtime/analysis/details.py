# SPDX-License-Identifier: Apache-2.0
"""What a viewer wants to know of an executable beyond its timeline: the text and source line of every instruction,
and the chain of instructions that decides how long a run takes.

The file is JSON, see `docs/summary.md`. Texts are per routine, and shared: layers that repeat cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.errors import Location
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import BY_CODE
from trnlab.profile.data import DETAILS, DETAILS_VERSION, to_text
from trnlab.program.routine import COL, ENGINE_NAMES, Call, Program, Routine
from trnlab.runtime.analysis.usage import usage
from trnlab.sim.timing import critical_path
from trnlab.timeline import Timeline

_COUNTS = [COL[f"count{i}"] for i in range(4)]
_FORM = [COL[name] for name in ("role", "buffer", "dtype", "partitions")] + _COUNTS  # what an operand's text shows
_LARGEST = 1 << 62


class _Table:
    """Distinct values, numbered in order of appearance."""

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.index.setdefault(value, len(self.index))


def details(program: Program, timeline: Timeline, chip: Chip) -> dict[str, Any]:
    """The content of the file, as plain JSON data."""
    used = usage(program, timeline, chip)
    texts, sources = _Table(), _Table()
    routines = []
    for routine in program.routines:
        distinct, code = _lines(routine)
        text = np.array([texts(line) for line in distinct], np.int64)
        source = np.array([sources(_place(loc)) for loc in routine.locs], np.int64)
        routines.append({"text": text[code].tolist(), "source": source[routine.loc].tolist()})
    calls = [[call.routine, _own_place(call, program.routines[call.routine], sources)] for call in program.calls]
    return {
        "schema": DETAILS,
        "version": DETAILS_VERSION,
        "texts": list(texts.index),
        "sources": list(sources.index),
        "routines": routines,
        "calls": calls,
        "critical_path": critical_path(timeline).tolist(),
        "buffers": used.names,
        "buffer": to_text(used.buffer),
        "occupancy": {
            name: {"capacity": capacity, "time": to_text(np.diff(time, prepend=0)), "bytes": to_text(size)}
            for name, (capacity, time, size) in used.occupancy.items()
        },
        "spilled": {"save_bytes": used.spilled[0], "reload_bytes": used.spilled[1]},
    }


def _place(loc: Location | None) -> tuple[str, str]:
    return ("", "") if loc is None else (str(loc), loc.text.strip())


def _own_place(call: Call, routine: Routine, sources: _Table) -> int:
    """The source of a call's instructions where all come from one line, else -1: they say it themselves.

    A routine is recorded once, with the lines of its first call.
    """
    return sources(_place(call.loc)) if call.loc is not None and len(routine.locs) == 1 else -1


def _lines(routine: Routine) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The distinct lines, and which one each instruction has; those that differ only in where their tiles start share
    one.
    """
    if not len(routine):
        return [], np.zeros(0, np.int64)
    operand, _ = _codes([routine.operands[:, c] for c in _FORM])
    count = np.diff(routine.first_operand)
    columns: list[np.ndarray[Any, Any]] = [routine.opcode, routine.attr, routine.engine, routine.queue, count]
    for k in range(int(count.max())):
        there = k < count
        row = np.where(there, routine.first_operand[:-1] + k, 0)
        columns.append(np.where(there, operand[row] + 1, 0) if len(operand) else np.zeros(len(routine)))
    code, examples = _codes(columns)
    return [_line_of(routine, i) for i in examples.tolist()], code


def _codes(columns: Sequence[np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Numbers that are equal where all columns are, from zero on, and for each number the first row that has it."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = column.astype(np.int64) - int(column.min(initial=0))
        span = int(values.max(initial=0)) + 1
        if (int(code.max(initial=0)) + 1) * span > _LARGEST:
            code = np.unique(code, return_inverse=True)[1].astype(np.int64)
        code = code * span + values
    _, examples, code = np.unique(code, return_index=True, return_inverse=True)
    return code, examples


def _line_of(routine: Routine, i: int) -> str:
    first, last = routine.first_operand[i : i + 2].tolist()
    row = [int(column[i]) for column in (routine.opcode, routine.attr, routine.engine, routine.queue)]
    operands = routine.operands[first:last].tolist()
    shapes = tuple((o[COL["role"]], o[COL["buffer"]], o[COL["dtype"]], *_shape(o)) for o in operands)
    return _line(routine, row, shapes)


def _shape(operand: list[int]) -> list[int]:
    """[P, F...], without the dimensions that pad the record."""
    free = [operand[c] for c in _COUNTS]
    while len(free) > 1 and free[0] == 1:
        del free[0]
    return [operand[COL["partitions"]], *free]


def _line(routine: Routine, row: list[int], shapes: tuple[tuple[int, ...], ...]) -> str:
    """Such as `acc[128,512] float32 = nc_matmul(stationary=w[128,128] bfloat16, moving=x[128,512] bfloat16)`."""
    opcode, attr, engine, queue = row
    instr = isa.BY_OPCODE[opcode]
    results, arguments = [], []
    for role, buffer, code, *shape in shapes:
        spec = instr.operands[role]
        text = f"{routine.buffers[buffer].name}[{','.join(map(str, shape))}] {BY_CODE[code].name}"
        if spec.role == "dst":
            results.append(text)
        else:
            arguments.append(f"{spec.name}={text}")
    for name, value in routine.attr_table[attr]:
        if name not in instr.attrs or instr.attrs[name] != value:
            arguments.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
    if engine != instr.engines[0]:
        arguments.append(f"engine={ENGINE_NAMES[Engine(engine)]}")
    if queue >= 0:
        arguments.append(f"queue={queue}")
    return f"{', '.join(results)} = {instr.name}({', '.join(arguments)})"
