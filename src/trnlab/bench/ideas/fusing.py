# SPDX-License-Identifier: Apache-2.0
"""Two operators in one pass: what one instruction computes for one other, the other computes itself.

    t = nisa.tensor_scalar(x, nl.multiply, 0.9)         y = nisa.scalar_tensor_tensor(
    y = nisa.tensor_tensor(t, g, nl.add)                    x, nl.multiply, 0.9, nl.add, g)

Both round to float32 in between, so that the bits are the same where the tile between them is float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.bench.ideas.change import PERF_GUIDE, KernelChange, placed
from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError
from trnlab.isa.alu import alu_op
from trnlab.isa.base import Engine, Memory
from trnlab.program.access import AP
from trnlab.program.lifting import lifted
from trnlab.program.passes.draft import ENGINE, LEFT_OPEN, OPCODE, READS, WRITES, Draft
from trnlab.program.routine import OPEN_ENGINE, Routine
from trnlab.program.text import operands_of

_SCALAR, _TENSOR = (isa.REGISTRY[name].opcode for name in ("tensor_scalar", "tensor_tensor"))
_FUSED = Engine.VECTOR
LINES = 8  # pairs of lines that are tried by themselves


Lines = tuple[int, int]  # numbers of the locations of a pair


def changes(routine: Routine, chip: Chip) -> list[KernelChange]:
    """All pairs at once, and those of each pair of lines, those with most instructions first."""
    if routine.prints or routine.after:
        return []
    pairs = _Pairs(Draft(lifted(routine, chip), on_chip_of(routine)), routine)
    lines = Counter((int(routine.loc[one]), int(routine.loc[other])) for one, other, _ in pairs.found())
    some = [each for each, _ in lines.most_common(LINES)] if len(lines) > 1 else []
    return [_change(routine, each) for each in ([None] if lines else []) + some]


def _change(routine: Routine, lines: Lines | None) -> KernelChange:
    places = [routine.locs[line] for line in lines or ()]
    names = "+".join(str(where.line) if where is not None else "0" for where in places)
    of = f" of lines {names.replace('+', ' and ')}" if lines else ""
    return KernelChange(
        f"fuse:{names}" if lines else "fuse",
        f"an operator with a number, and the operator that reads its result, are one instruction{of}",
        "each instruction streams its tile through VectorE once more",
        f"{PERF_GUIDE}:547 (combine instructions); nki.isa.tensor_scalar, nki.isa.scalar_tensor_tensor",
        "nisa.tensor_scalar(data, op0, operand0, op1=..., operand1=...) for two numbers, "
        "nisa.scalar_tensor_tensor(data=..., op0=..., operand0=..., op1=..., operand1=...) for a number and a tile",
        make=partial(fuse, lines=lines),
    )


def fuse(routine: Routine, chip: Chip, *, lines: Lines | None = None) -> Routine | None:
    """Fuse the pairs of these lines, or all; what is fused is not looked at again. None where there are none."""
    draft = Draft(lifted(routine, chip), on_chip_of(routine))
    return placed(draft) if _Pairs(draft, routine).fused(lines) else None


def on_chip_of(routine: Routine) -> frozenset[int]:
    """The tiles of a routine, by number."""
    return frozenset(b.id for b in routine.buffers if b.memory is not Memory.HBM)


@dataclass
class _Uses:
    """The operands that write and that read each buffer, in order."""

    writers: dict[int, list[int]]
    readers: dict[int, list[int]]


class _Pairs:
    """Pairs of instructions of a draft that can be one. The draft numbers instructions as the routine does."""

    def __init__(self, draft: Draft, routine: Routine) -> None:
        self.draft, self.routine, self.count = draft, routine, len(routine)
        self.of, self.first = list(draft.of_list), list(draft.first_list)
        self.owner, self.access = draft.owner.tolist(), draft.access.tolist()
        self.uses = _Uses({}, {})
        for k, buffer in enumerate(self.owner):
            if self.access[k] & WRITES:
                self.uses.writers.setdefault(buffer, []).append(k)
            if self.access[k] & READS:
                self.uses.readers.setdefault(buffer, []).append(k)
        self.taken: set[int] = set()

    def fused(self, lines: Lines | None) -> int:
        """Fuse what can be, in order; returns how many pairs."""
        made: list[tuple[int, int]] = []
        for one, other, arguments in self.found():
            if lines not in (None, (int(self.routine.loc[one]), int(self.routine.loc[other]))):
                continue
            if {one, other} & self.taken:
                continue
            try:
                self.draft.b.append(isa.REGISTRY[arguments.pop("instruction")], _FUSED, None, arguments)
            except ConstraintError:
                continue  # what the chip does not take, such as two operands in PSUM
            self.taken |= {one, other}
            made.append((one, other))
        if not made:
            return 0
        draft = self.draft
        draft.take_in()
        place = np.arange(self.count, dtype=np.int64)
        for number, (one, other) in enumerate(made):
            draft.deleted[[one, other]] = True
            place[other] = self.count + number
            same_order = draft.rows[other, LEFT_OPEN] & ~OPEN_ENGINE
            draft.rows[self.count + number, LEFT_OPEN] = same_order
            draft.rows[self.count + number, _LINE] = draft.rows[other, _LINE]
            draft.deleted[self.count + number] = False
        draft.order = place
        return len(made)

    def found(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Pairs, and what the instruction of both is given; one may be in several."""
        opcode, engine = self.draft.rows[:, OPCODE].tolist(), self.draft.rows[:, ENGINE].tolist()
        open_ = (self.draft.rows[:, LEFT_OPEN] & OPEN_ENGINE != 0).tolist()
        for one in range(self.count):
            if opcode[one] != _SCALAR or not (engine[one] == Engine.VECTOR or open_[one]):
                continue
            other = self._only_reader(one)
            if other is None or opcode[other] not in (_SCALAR, _TENSOR):
                continue
            if not (engine[other] == Engine.VECTOR or open_[other]):
                continue
            arguments = self._arguments(one, other)
            if arguments is not None and not self._changes(one, other):
                yield one, other, arguments

    def _only_reader(self, one: int) -> int | None:
        """The instruction that reads all of what `one` wrote, where it alone does and nobody else writes there."""
        dst = self.first[one]
        tile = self.owner[dst]
        buffer = self.draft.buffers[tile]
        writers, readers = self.uses.writers.get(tile, []), self.uses.readers.get(tile, [])
        if buffer.dtype.name != "float32" or buffer.memory is Memory.HBM or len(writers) != 1 or len(readers) != 1:
            return None
        written, read = self.draft.references[dst], self.draft.references[readers[0]]
        other = self.of[readers[0]]
        return other if other > one and (written[1:] == read[1:]).all() else None

    def _changes(self, one: int, other: int) -> bool:
        """Whether somebody writes between the two to what the first reads. Which bytes does not matter."""
        read = {self.owner[k] for k in range(self.first[one], self.first[one + 1]) if self.access[k] & READS}
        return any(one < self.of[k] < other for tile in read for k in self.uses.writers.get(tile, ()))

    def _arguments(self, one: int, other: int) -> dict[str, Any] | None:
        """What the fused instruction is given; None for operators that cannot be in one."""
        a, b = self._given(one), self._given(other)
        if a.get("op1") is not None or alu_op(a["op0"]).bitvec or set(a) & _INDEXED or set(b) & _INDEXED:
            return None
        first = {"data": a["data"], "op0": a["op0"], "reverse0": a["reverse0"], "operand0": a.get("operand0")}
        if self.draft.rows[other, OPCODE] == _SCALAR:
            if b.get("op1") is not None or alu_op(b["op0"]).bitvec:
                return None
            second = {"op1": b["op0"], "reverse1": b["reverse0"], "operand1": b.get("operand0")}
            return {"instruction": "tensor_scalar", "dst": b["dst"], **first, **second}
        if alu_op(b["op"]).bitvec or not b["data1"].dtype.is_float or not b["data2"].dtype.is_float:
            return None
        tile = self.owner[self.first[one]]
        second_side = b["data2"].buffer.id == tile
        if second_side and b["data1"].buffer.id == tile:
            return None
        tensor = {"op1": b["op"], "reverse1": second_side, "operand1": b["data1" if second_side else "data2"]}
        return {"instruction": "scalar_tensor_tensor", "dst": b["dst"], **first, **tensor}

    def _given(self, i: int) -> dict[str, Any]:
        instr = isa.BY_OPCODE[int(self.routine.opcode[i])]
        found: dict[str, Any] = dict(self.routine.attr_table[int(self.routine.attr[i])])
        operands: list[tuple[int, AP]] = operands_of(self.routine, i)
        return found | {instr.operands[role].name: ap for role, ap in operands}


_INDEXED = frozenset(
    spec.name for code in (_SCALAR, _TENSOR) for spec in isa.BY_OPCODE[code].operands if spec.index_of
)
_LINE = 5  # column of `Draft.rows`
