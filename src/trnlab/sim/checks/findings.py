# SPDX-License-Identifier: Apache-2.0
"""Findings in words: what is wrong, at which line of the user's, how much, and the way out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError, Location, TrnlabError
from trnlab.isa.base import Instruction, Memory
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import Buffer
from trnlab.program.routine import COL, Routine
from trnlab.program.spans import Spans
from trnlab.sim.checks import shadow_memory as w
from trnlab.sim.checks.usage import zeroes

_DEFAULT = re.compile(r"(sbuf|psum)\d+$")  # names that the recorder gives
_VARIABLE = re.compile(r"(\w+)(?:\[.*\])?\s*[-+*/]?=[^=]")


@dataclass(frozen=True)
class CheckFinding:
    """The error, and the name of the check that found it; `trnlab.checks.report` decides what becomes of it.

    harmless: what is computed does not depend on it, so that it is a warning at most.
    """

    check: str
    error: TrnlabError
    harmless: bool = False


@dataclass(frozen=True)
class Gaps:
    """What an operand reads that nothing wrote: bytes, of all it touches, and where they lie (ends excluded)."""

    nbytes: int
    touched: int
    partitions: tuple[int, int]
    bytes: tuple[int, int]


class About:
    """Looks things up in a routine and puts them into sentences."""

    def __init__(
        self, routine: Routine, chip: Chip, spans: Spans, lines: Callable[[], Mapping[int, Location]] = dict
    ) -> None:
        self.routine, self.chip, self.spans, self._lines = routine, chip, spans, lines

    # -- looking up ---------------------------------------------------------------------------------------------
    def buffer(self, operand: int) -> Buffer:
        """The buffer of an operand record."""
        return self.routine.buffers[int(self.routine.operands[operand, COL["buffer"]])]

    def instruction(self, operand: int) -> int:
        """The instruction that an operand record belongs to."""
        return int(self.routine.first_operand.searchsorted(operand, side="right")) - 1

    def line(self, instruction: int) -> Location | None:
        """The user's line of an instruction."""
        return self.routine.locs[int(self.routine.loc[instruction])] if instruction >= 0 else None

    def instr(self, instruction: int) -> Instruction:
        """What an instruction is."""
        return isa.BY_OPCODE[int(self.routine.opcode[instruction])]

    def key(self, kind: int, operand: int, other: int) -> Any:
        """Findings with equal keys are one to the reader."""
        i = self.instruction(operand)
        where = self.line(i)
        return kind, where.file if where else "", where.line if where else i, self.buffer(operand).name

    def _name(self, buffer: Buffer) -> str:
        """What a reader calls it: its name, or that of the variable that it was made for."""
        kind = {Memory.HBM: "the HBM tensor", Memory.SBUF: "the SBUF tile", Memory.PSUM: "the PSUM tile"}[
            buffer.memory
        ]
        line = self._lines().get(buffer.id) if _DEFAULT.match(buffer.name) else None
        variable = _VARIABLE.match(line.text) if line else None
        if line is None or variable is None:
            return f"{kind} {buffer.name!r} {list(buffer.shape)}"
        return f"{kind} {variable[1]!r} {list(buffer.shape)} of line {line.line}"

    # -- findings -----------------------------------------------------------------------------------------------
    def missing(self, operand: int, gaps: Gaps, reached: int, *, masks: bool = False) -> CheckFinding:
        """A read of what nothing wrote; instruction `reached` is where it matters.

        Where masks leave parts of tiles undefined, storing such a tile leaves the same part of the result undefined.
        """
        i, buffer = self.instruction(operand), self.buffer(operand)
        item = max(BY_CODE[int(self.routine.operands[operand, COL["dtype"]])].itemsize, 1)
        name, instr = self._name(buffer), self.instr(i).name
        adds = instr in ("nc_matmul", "nc_matmul_mx") and int(self.routine.operands[operand, COL["role"]]) == 0
        whole = gaps.nbytes == gaps.touched
        amount = f"{gaps.nbytes // item} of {gaps.touched // item} elements ({gaps.nbytes} bytes)"
        got = f"{amount} unwritten, in {_range(buffer, gaps)}"
        if reached not in (i, -1):
            got += f"; what comes of it is used at {_short(self.line(reached))}"
        if adds:
            what = f"{instr} accumulates onto {name}, where no matmul has started a sum"
            limit = "a first matmul with accumulate=False"
            remedy = "pass accumulate=(k > 0) for the k-th matmul of a sum, or leave accumulate out"
        else:
            part = "to which nothing has been written" if whole else "of which a part was never written"
            what = f"{instr} reads {name}, {part}"
            limit = "memory that an earlier instruction wrote"
            remedy = _fill(buffer, whole=whole)
        stored = masks and reached == i and self.instr(i).is_dma and not whole
        check = "unwritten-output" if stored else "uninitialised-read"
        return self._finding(check, what, "TRN430", i, limit=limit, got=got, remedy=remedy)

    def unwritten(self, buffer: int, missing: int, total: int) -> CheckFinding:
        """A result that is not complete."""
        name = self.routine.buffers[buffer].name
        none = missing == total
        what = f"the kernel returns {name!r} but writes " + ("nothing to it" if none else "only part of it")
        remedy = (
            "store the result before returning it; a loop may have run zero times (-(-n // tile) rounds up)"
            if none
            else "check the bounds of the loops that store it: a last, smaller tile is often left out"
        )
        error = ConstraintError(
            what,
            code="TRN431",
            limit=f"{total} elements",
            got=f"{missing} elements never written",
            chip=self.chip.name,
            remedy=remedy,
        )
        return CheckFinding("unwritten-output", error)

    def finding(self, kind: int, operand: int, cells: int, other: int, loop: int) -> CheckFinding:
        """Any other finding."""
        if kind == w.CLOBBERED:
            return self._clobbered(operand, other)
        if kind in (w.FOREIGN, w.MIXED):
            return self._accumulation(kind, operand, other)
        return self._race(kind, operand, other, loop)

    def _clobbered(self, operand: int, other: int) -> CheckFinding:
        i, buffer = self.instruction(operand), self.buffer(operand)
        by = self._written_buffer(other, buffer)
        return self._finding(
            "overlap",
            f"{self.instr(i).name} reads {self._name(buffer)} after {self._name(by)} was written over it: the "
            "kernel gave both their addresses, and they overlap",
            "TRN432",
            i,
            limit=f"{_extent(buffer)} while {buffer.name!r} is in use",
            got=f"{_extent(by)} for {by.name!r}, written at {_short(self.line(other))}",
            remedy=f"move one of them (the next free address after {buffer.name!r} is "
            f"{buffer.address + buffer.nbytes}), or finish with {buffer.name!r} first",
        )

    def _written_buffer(self, instruction: int, near: Buffer) -> Buffer:
        first, last = self.routine.first_operand[instruction : instruction + 2]
        found = [self.buffer(k) for k in range(first, last)]
        others = [b for b in found if b.id != near.id and b.memory is near.memory and _overlap(b, near)]
        return (others or found)[0]

    def _accumulation(self, kind: int, operand: int, other: int) -> CheckFinding:
        i, buffer = self.instruction(operand), self.buffer(operand)
        if kind == w.FOREIGN:
            return self._onto_foreign(i, buffer, other)
        return self._finding(
            "accumulation",
            f"a matmul adds to parts of {self._name(buffer)} that belong to different sums",
            "TRN433",
            i,
            limit="one sum, started by one matmul over the same region",
            got=f"a part was started anew at {_short(self.line(other))} before the sum in it was read",
            remedy="give every sum a region of its own, and copy it out before the next one starts there",
        )

    def _onto_foreign(self, i: int, buffer: Buffer, other: int) -> CheckFinding:
        """accumulate=True onto what another engine wrote.

        Release 2.29 of the vendor's documentation has products added to whatever is there, 2.32 leaves that undefined
        before NeuronCore-v4 (`nki.isa.nc_matmul`). Zeros may be overwritten or added to: the sum is the same.
        """
        zero = zeroes(self.instr(other), dict(self.routine.attr_table[int(self.routine.attr[other])]))
        found = self._finding(
            "accumulation",
            f"accumulate=True onto {self._name(buffer)}, "
            + ("which is zeroed and not started by a matmul" if zero else "whose contents no matmul made"),
            "TRN433",
            i,
            limit="a sum that a matmul with accumulate=False started",
            got=f"written by {self.instr(other).name} at {_short(self.line(other))}",
            remedy="leave the zeros out, and accumulate out or accumulate=(k > 0) for the k-th product"
            if zero
            else "start with accumulate=False, and add the other values with tensor_tensor afterwards",
        )
        return replace(found, harmless=zero)

    def _race(self, kind: int, operand: int, other: int, loop: int) -> CheckFinding:
        i, buffer = self.instruction(operand), self.buffer(operand)
        verb = {w.CARRIED: "reads", w.REWRITTEN: "writes", w.OVERTAKEN: "writes"}[kind]
        if kind == w.OVERTAKEN or (loop >= 0 and self.spans.loops[loop].kind == "grid"):
            earlier = "reads" if kind == w.OVERTAKEN else "writes"
            where = f" at {_short(self.line(other))}" if other >= 0 else ""
            return self._finding(
                "race",
                f"a program of the launch grid {verb} elements of {self._name(buffer)} that another one {earlier}",
                "TRN435",
                i,
                limit="programs of a grid run in any order, or at the same time",
                got=f"{self.instr(i).name} here, the other access{where}",
                remedy="index with nl.program_id so that each program has its own part, or loop inside one program",
            )
        earlier = "wrote" if kind == w.CARRIED else "wrote, too"
        found = self.spans.loops[loop].where
        return self._finding(
            "race",
            f"an iteration of affine_range {verb} elements of {self._name(buffer)} that another iteration {earlier}",
            "TRN434",
            i,
            limit=f"independent iterations (loop at {_short(found)}), but for sums with +=",
            got=f"{self.instr(i).name} here, written in an earlier iteration at {_short(self.line(other))}",
            remedy="use nl.sequential_range, make the tile inside the loop, or index it with the loop's variable",
        )

    def _finding(
        self, check: str, what: str, code: str, i: int, *, limit: str, got: str, remedy: str
    ) -> CheckFinding:
        error = ConstraintError(
            what,
            code=code,
            where=self.line(i),
            limit=limit,
            got=got,
            chip=self.chip.name,
            remedy=f"{remedy} (check: {check})",
        )
        return CheckFinding(check, error)


def _short(where: Location | None) -> str:
    if where is None:
        return "an unknown line"
    return f"{where.file.rsplit('/', 1)[-1]}:{where.line}"


def _range(buffer: Buffer, gaps: Gaps) -> str:
    rows = f"partitions {gaps.partitions[0]}..{gaps.partitions[1] - 1}, " if buffer.memory is not Memory.HBM else ""
    return f"{rows}bytes {gaps.bytes[0]}..{gaps.bytes[1] - 1}"


def _extent(buffer: Buffer) -> str:
    last = buffer.address + buffer.nbytes - 1
    return f"bytes {buffer.address}..{last} of partitions {buffer.first_partition}.." + str(
        buffer.first_partition + buffer.partitions - 1
    )


def _overlap(a: Buffer, b: Buffer) -> bool:
    return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes


def _fill(buffer: Buffer, *, whole: bool) -> str:
    if buffer.memory is Memory.HBM:
        return "store to it first; memory from nl.ndarray holds nothing in particular"
    if whole:
        return "load or compute into it first; nl.ndarray only reserves memory (nl.zeros and nisa.memset fill it)"
    return "slice to the part that is written (a last tile is often smaller), or fill the rest with nisa.memset first"
