# SPDX-License-Identifier: Apache-2.0
"""Two host threads for one core: the PE array's instructions on one, everything else on the other.

Each thread takes its instructions in program order and waits, before each, until the other has finished the last one
that this one depends on. Dependencies are those of the timing simulator (slots), so whatever the threads' speeds the
bits are those of program order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.isa.base import Engine
from trnlab.program.routine import COL, Routine
from trnlab.sim.functional.linking import entry

Array = np.ndarray[Any, Any]
PE, REST = 0, 1
PROGRESS_STRIDE, ABORT = 8, 16  # int64 apart, so that the threads' counters share no cache line
_MEMO = "sim.functional.pace"
_FEW = 8  # instructions of the PE array below which a second thread costs more than it saves


@dataclass(frozen=True)
class Pace:
    """Who does what and waits for what. orders: instructions of the PE array, and the rest, in program order.

    need[i]: the last instruction of the other thread that i must wait for, or -1. writer[i]: the last one that wrote
    its first and second source operand, which tells whether a packed operand is still what lies in memory.
    """

    orders: tuple[Array, Array]
    need: Array
    writer: Array


NO_PACE = Pace((np.zeros(0, np.int64),) * 2, np.zeros(0, np.int64), np.zeros((0, 2), np.int64))


def pace_of(routine: Routine) -> Pace:
    """The pace of a routine, NO_PACE when it is not worth a second thread; made once per routine."""
    if _MEMO not in routine._memo:
        routine._memo[_MEMO] = _make(routine)
    pace: Pace = routine._memo[_MEMO]
    return pace


def _make(routine: Routine) -> Pace:
    on_pe = routine.engine == Engine.TENSOR
    if on_pe.sum() < _FEW or on_pe.all():
        return NO_PACE
    thread = np.where(on_pe, PE, REST).astype(np.int64)
    need = np.full(len(routine), -1, np.int64)
    writer = np.full((len(routine), 2), -1, np.int64)
    find_waits(
        thread, routine.first_operand, _written(routine), routine.operands, need, writer,
        np.full((2, routine.num_slots), -1, np.int64), np.full((2, routine.num_slots), -1, np.int64),
    )  # fmt: skip
    return Pace((np.flatnonzero(on_pe), np.flatnonzero(~on_pe)), need, writer)


def _written(routine: Routine) -> Array:
    """For each operand whether the instruction writes it."""
    table = np.zeros((max(isa.BY_OPCODE) + 1, max(len(i.operands) for i in isa.BY_OPCODE.values())), np.bool_)
    for opcode, instr in isa.BY_OPCODE.items():
        for role, spec in enumerate(instr.operands):
            table[opcode, role] = spec.role == "dst"
    opcodes = np.repeat(routine.opcode, np.diff(routine.first_operand))
    return table[opcodes, routine.operands[:, COL["role"]]]


_ROLE, _FIRST, _LAST = COL["role"], COL["first"], COL["last"]


@entry
def find_waits(thread, first_operand, written, operands, need, writer, wrote, read):
    """One pass in program order. wrote, read [2, slots]: the last instruction of each thread that did so."""
    for i in range(len(thread)):
        mine, other = thread[i], 1 - thread[i]
        last = -1
        for row in range(first_operand[i], first_operand[i + 1]):
            source = operands[row, _ROLE] - 1
            for slot in range(operands[row, _FIRST], operands[row, _LAST] + 1):
                last = max(last, wrote[other, slot])
                if written[row]:
                    last = max(last, read[other, slot])
                elif 0 <= source < 2:
                    writer[i, source] = max(writer[i, source], wrote[other, slot])
        need[i] = last
        for row in range(first_operand[i], first_operand[i + 1]):
            table = wrote if written[row] else read
            for slot in range(operands[row, _FIRST], operands[row, _LAST] + 1):
                table[mine, slot] = i


class Partner:
    """A second thread that runs one job at a time beside its owner."""

    def __init__(self) -> None:
        self._start, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._job: Callable[[], None] | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._serve, daemon=True, name="trnlab PE array").start()

    def _serve(self) -> None:
        while True:
            self._start.acquire()
            assert self._job is not None
            try:
                self._job()
            except BaseException as error:  # it belongs to the owner, who is told in `beside`
                self._error = error
            self._job = None
            self._done.release()

    def beside(self, theirs: Callable[[], None], mine: Callable[[], None]) -> None:
        """Run both at the same time; returns when both have ended. Raises what the first of them raised."""
        self._job, self._error = theirs, None
        self._start.release()
        try:
            mine()
        finally:
            self._done.acquire()
        if self._error is not None:
            raise self._error
