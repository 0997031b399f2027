# SPDX-License-Identifier: Apache-2.0
"""Two host threads for one core, which share its instructions.

Which thread takes an instruction is decided once per routine, in program order: the one that, by an estimate of what
instructions cost on the host, will have finished it first. Each thread takes its instructions in program order and
waits, before each, until the other has finished the last one that this one depends on. Dependencies are those of the
timing simulator (slots), so whatever the threads' speeds the bits are those of program order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.program.access import MAX_FREE_DIMS
from trnlab.program.routine import COL, Routine
from trnlab.sim.functional import kernels as k
from trnlab.sim.functional.elementwise import CHEAP_FUNCTIONS
from trnlab.sim.functional.linking import entry
from trnlab.sim.functional.plan import DispatchTable, plan_of

Array = np.ndarray[Any, Any]
PROGRESS_STRIDE, ABORT = 8, 16  # int64 apart, so that the threads' counters share no cache line
_MEMO = "sim.functional.pace"
_COUNTS = [COL[f"count{d}"] for d in range(MAX_FREE_DIMS)]

# What instructions cost on a host of 2024, in nanoseconds; only the ratios matter. Per instruction, element of its
# largest operand and partition; for a matmul per multiplication and per element that is packed; for what Python does.
_START, _ELEMENT, _FUNCTION, _PARTITION = 600.0, 0.15, 0.6, 15.0
_PRODUCT, _PACKED, _BY_MEANING = 0.007, 0.17, 100_000.0
_HANDOVER = 150.0  # until the other thread sees that an instruction has finished
_TOGETHER = 40_000.0  # to start the other thread, and to wait for its end


@dataclass(frozen=True)
class Pace:
    """Who does what and waits for what. orders: the instructions of each thread, in program order.

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
    cost, written = costs(routine, plan_of(routine)), _written(routine)
    alone = float(cost.sum())
    if alone < 2 * _TOGETHER:
        return NO_PACE
    thread = np.zeros(len(routine), np.int64)
    slots = np.zeros((2, 2, routine.num_slots))
    together = share(cost, _HANDOVER, thread, routine.first_operand, written, routine.operands, slots)
    if together + _TOGETHER > alone:
        return NO_PACE
    need = np.full(len(routine), -1, np.int64)
    writer = np.full((len(routine), 2), -1, np.int64)
    find_waits(
        thread,
        routine.first_operand,
        written,
        routine.operands,
        need,
        writer,
        np.full((2, routine.num_slots), -1, np.int64),
        np.full((2, routine.num_slots), -1, np.int64),
    )
    return Pace((np.flatnonzero(thread == 0), np.flatnonzero(thread == 1)), need, writer)


def costs(routine: Routine, plan: DispatchTable) -> Array:
    """Estimated nanoseconds of each instruction on the host."""
    count = len(routine)
    owner = np.repeat(np.arange(count), np.diff(routine.first_operand))
    partitions = routine.operands[:, COL["partitions"]]
    elements = routine.operands[:, _COUNTS].prod(axis=1) * partitions
    largest, rows = np.zeros(count), np.zeros(count)
    np.maximum.at(largest, owner, elements)
    np.maximum.at(rows, owner, partitions)
    calls_function = (plan.kind == k.ACTIVATION) & ~np.isin(plan.ints[plan.form, k.OP0], list(CHEAP_FUNCTIONS))
    cost = _START + np.where(calls_function, _FUNCTION, _ELEMENT) * largest + _PARTITION * rows
    cost[plan.kind == k.COPY] -= (_PARTITION * rows)[plan.kind == k.COPY]
    cost[plan.kind == k.MEANING] = _BY_MEANING
    products = np.flatnonzero(plan.kind == k.MATMUL)
    left, right = (plan.slots[products, slot] for slot in (k.A, k.B))
    columns = elements[right] / partitions[right]
    cost[products] = _START + _PRODUCT * elements[left] * columns + _PACKED * (elements[left] + elements[right])
    return cost


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
def share(cost, handover, thread, first_operand, written, operands, done):
    """Fill `thread` with 0 or 1 for each instruction; returns when both have ended.

    done [2, 2, slots]: when each thread has last read (0) or written (1) a slot.
    """
    free = np.zeros(2)
    for i in range(len(cost)):
        first, last = first_operand[i], first_operand[i + 1]
        ready = np.zeros(2)
        for row in range(first, last):
            for slot in range(operands[row, _FIRST], operands[row, _LAST] + 1):
                for mine in range(2):
                    other = done[1 - mine, 1, slot]
                    if written[row]:
                        other = max(other, done[1 - mine, 0, slot])
                    if other > 0:
                        ready[mine] = max(ready[mine], other + handover)
        ends = np.maximum(free, ready) + cost[i]
        taker = 0 if ends[0] <= ends[1] else 1
        thread[i], free[taker] = taker, ends[taker]
        for row in range(first, last):
            for slot in range(operands[row, _FIRST], operands[row, _LAST] + 1):
                done[taker, 1 if written[row] else 0, slot] = ends[taker]
    return max(free[0], free[1])


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
        threading.Thread(target=self._serve, daemon=True, name="trnlab core").start()

    def _serve(self) -> None:
        while True:
            self._start.acquire()
            assert self._job is not None
            try:
                self._job()
            except BaseException as error:  # it belongs to the owner, who is told in `run_both`
                self._error = error
            self._job = None
            self._done.release()

    def run_both(self, theirs: Callable[[], None], mine: Callable[[], None]) -> None:
        """Run both at the same time; returns when both have ended. Raises what the first of them raised."""
        self._job, self._error = theirs, None
        self._start.release()
        try:
            mine()
        finally:
            self._done.acquire()
        if self._error is not None:
            raise self._error
