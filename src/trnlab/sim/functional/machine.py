# SPDX-License-Identifier: Apache-2.0
"""One simulated NeuronCore: byte-true SBUF and PSUM, and the execution of routines and programs on them.

    machine = Machine(chip)
    machine.call(routine, [x, y])          # HBM parameters are host arrays, read and written in place

HBM tensors are C-contiguous host arrays bound by address: nothing is copied. Fresh memory holds 0xFF bytes, which
are NaN in every float format, so that a read of something never written shows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.errors import NumericsError, RunError
from trnlab.isa.base import Memory
from trnlab.isa.collectives.meeting import CorePlace
from trnlab.numerics.dtypes import DType
from trnlab.numerics.rounding import narrow
from trnlab.program.access import AP, Buffer
from trnlab.program.routine import Program, Routine
from trnlab.program.text import instruction_text
from trnlab.sim.functional import kernels as k
from trnlab.sim.functional.finite import NAN, WRITTEN, WRITTEN_AFTER_INFINITY
from trnlab.sim.functional.formats import store_array
from trnlab.sim.functional.helper_thread import (
    ABORT,
    NO_PACE,
    PROGRESS_STRIDE,
    Pace,
    Partner,
    pace_of,
)
from trnlab.sim.functional.interpreter import BAD_ROW, DONE, NOT_FINITE, TO_PYTHON, run
from trnlab.sim.functional.linking import check_linked, from_python
from trnlab.sim.functional.matmul import PANELS
from trnlab.sim.functional.meaning import Rounder, array_at, execute_meaning, operand_array
from trnlab.sim.functional.microscaling import nc_matmul_mx, quantize_mx
from trnlab.sim.functional.plan import PSUM, SBUF, SCRATCH, DispatchTable, homes_of, plan_of
from trnlab.sim.functional.views import VIEW

Array = np.ndarray[Any, Any]
POISON = 0xFF
_PAGE = 4096
# Bytes added to each partition's row, so that rows do not meet in the same sets of the host's caches.
_ROW_SKEW = 2048 + 64
_VALUES = 3 * 128  # float32 per partition, behind the blocks of scratch


def own_cpus() -> int:
    """Processors for this process, which may be one of several ranks of a job on this machine."""
    return max(1, cpu_count() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1)))


def cpu_count() -> int:
    """CPUs that this process may use; all of the machine where the system cannot say which."""
    allowed = getattr(os, "sched_getaffinity", None)  # macOS and Windows lack it
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


@dataclass(frozen=True)
class RunOptions:
    """How to execute. seed: of stochastic rounding. check_nan: stop where a NaN is first written or an
    infinity made (see `finite`).

    by_definition: run every instruction through its `meaning`, thousands of times slower; what the kernels are
    tested against. Stochastic rounding is a function of seed, instruction and element: the same bits in any legal
    order. threads: 2 shares them between two threads of the host. measure: keep in `Machine.measured`,
    for each call, how many cycles of the host's counter each instruction took (0: left to its `meaning`). quiet: what
    a kernel prints is left out.
    """

    stochastic_rounding: bool = False
    seed: int = 0
    check_nan: bool = False
    by_definition: bool = False
    threads: int = field(default_factory=lambda: min(2, own_cpus()))
    measure: bool = False
    quiet: bool = False


class ThreadMemory:
    """The private memory of one thread that executes instructions."""

    def __init__(self) -> None:
        self.views = np.zeros((k.SLOTS, VIEW), np.int64)
        self.packed = np.zeros((2, VIEW), np.int64)
        self.walks = np.zeros((2, 5, 3), np.int64)
        self.report = np.zeros(4, np.int64)
        self.panels = np.zeros(PANELS + _PAGE, np.uint8)
        self.scratch, self.block = np.zeros(0, np.float32), 0

    def reserve(self, longest: int) -> None:
        """Have scratch for rows of `longest` elements, and nothing packed."""
        self.packed[:] = 0
        block = max(k.BLOCK, -(-longest // 16) * 16)
        if block > self.block:
            self.block = block
            self.scratch = np.zeros(k.VALUES * block + _VALUES + _PAGE, np.float32)


@dataclass
class RoutineFrame:
    """One execution of a routine: what all its instructions share."""

    routine: Routine
    plan: DispatchTable
    base: Array  # per buffer: absolute address
    pitch: Array  # per buffer: bytes from one partition to the next
    pace: Pace
    progress: Array
    cycles: Array  # per instruction, or empty
    memory: tuple[Array | None, ...]  # what `base` points to lives as long as this
    printed: int = 0  # of what the routine prints, how much has been: stretches that meet share the place in between


_ALIGNED = 64  # bytes
# In place of the definition, where the interpreter has no loop.
_COMPILED = {"nc_matmul_mx": nc_matmul_mx, "quantize_mx": quantize_mx}


class Machine:
    """The memories of one core. `executed` counts instructions, `by_meaning` those that had no compiled kernel.

    sbuf_bytes: how much of each partition there is to be, for callers that know what will run; all of it by default.
    """

    def __init__(self, chip: Chip, options: RunOptions | None = None, *, sbuf_bytes: int | None = None) -> None:
        self.chip, self.options = chip, options or RunOptions()
        whole = int(chip.sbuf.bytes_per_partition.value)
        wanted = whole if sbuf_bytes is None else -(-sbuf_bytes // _ALIGNED) * _ALIGNED  # partitions start aligned
        self.sbuf = poisoned(chip.num_partitions, min(wanted, whole))
        self.psum = poisoned(chip.num_partitions, chip.psum.num_banks * chip.psum.bank_bytes_per_partition)
        self.executed = self.by_meaning = 0
        self.measured: list[tuple[Routine, Array]] = []
        self._bound: dict[tuple[int, int], tuple[Routine, Array, Array, Array, Array]] = {}
        self._checked: dict[int, Program] = {}
        self._lanes = (ThreadMemory(), ThreadMemory())
        self._partner: Partner | None = None
        self._hbm = np.zeros(0, np.uint8)
        self._others: dict[CorePlace, Machine] = {}

    def other_core(self, place: CorePlace, sbuf_bytes: int) -> Machine:
        """Another core of a program that this one executes, with so much of SBUF at least."""
        other = self._others.get(place)
        if other is None or other.sbuf.shape[1] < sbuf_bytes:
            other = self._others[place] = Machine(self.chip, self.options, sbuf_bytes=sbuf_bytes)
        return other

    def call(
        self,
        routine: Routine,
        args: Sequence[Array],
        *,
        sbuf_base: int = 0,
        scratch: Array | None = None,
        order: Array | None = None,
    ) -> None:
        """Execute a routine over HBM tensors, one C-contiguous array per parameter, in the parameters' order.

        sbuf_base: bytes added to its SBUF addresses. scratch: memory for HBM scratch, at least routine.scratch_bytes.
        order: a permutation of the instructions that keeps every dependency, to execute in instead of program order.
        Raises RunError for arguments that do not match and for a gather outside of its table, NumericsError as
        `RunOptions.check_nan` asks.
        """
        self._check(routine, args, sbuf_base)
        self.call_at(routine, _addresses(args), sbuf_base, scratch, args, order)

    def call_at(
        self,
        routine: Routine,
        addresses: Array,
        sbuf_base: int,
        scratch: Array | None,
        memory: Sequence[Array],
        order: Array | None = None,
    ) -> None:
        """As `call`, with the addresses of the arguments, whose memory lives on in `memory`; they are checked."""
        plain = self.options.threads > 1 and not (self.options.check_nan or self.options.by_definition)
        alone = not plain or order is not None or bool(routine.prints)
        pace = NO_PACE if alone else pace_of(routine)
        frame = self._frame(routine, addresses, sbuf_base, scratch, memory, pace)
        if frame.pace is NO_PACE:
            if order is None:
                self._in_order(frame, 0, len(routine))
            else:
                self._execute(frame, self._lanes[0], np.ascontiguousarray(order, np.int64))
        else:
            self._partner = self._partner or Partner()
            lanes, orders = self._lanes, frame.pace.orders
            self._partner.run_both(
                lambda: self._execute(frame, lanes[0], orders[0], 0),
                lambda: self._execute(frame, lanes[1], orders[1], 1),
            )
        self.executed += len(routine)

    def begin(
        self, routine: Routine, args: Sequence[Array], *, sbuf_base: int = 0, scratch: Array | None = None
    ) -> RoutineFrame:
        """A call that `advance` executes piece by piece. Raises RunError for arguments that do not match."""
        self._check(routine, args, sbuf_base)
        return self._frame(routine, _addresses(args), sbuf_base, scratch, args, NO_PACE)

    def advance(self, frame: RoutineFrame, first: int, last: int) -> None:
        """Execute instructions [first, last) of a frame from `begin`. Raises what `call` raises."""
        self._in_order(frame, first, last)
        if last == len(frame.routine):
            self.executed += last

    def _in_order(self, frame: RoutineFrame, first: int, last: int) -> None:
        """Instructions [first, last), and what is printed between them."""
        for shown in () if self.options.quiet else frame.routine.prints[frame.printed :]:
            if first <= shown.at <= last:
                frame.printed += 1
                self._execute(frame, self._lanes[0], frame.plan.order[first : shown.at])
                first = shown.at
                array, _ = operand_array(np.array(shown.operand), frame.base, frame.pitch)
                print(shown.prefix, array.reshape(shown.shape))
        self._execute(frame, self._lanes[0], frame.plan.order[first:last])

    def _frame(
        self,
        routine: Routine,
        addresses: Array,
        sbuf_base: int,
        scratch: Array | None,
        memory: Sequence[Array],
        pace: Pace,
    ) -> RoutineFrame:
        if routine.scratch_bytes and scratch is None:
            scratch = np.full(routine.scratch_bytes, POISON, np.uint8)
        plan = plan_of(routine)
        base, pitch = self._bind(routine, addresses, sbuf_base, scratch)
        if self.options.by_definition:
            plan = replace(plan, kind=np.full_like(plan.kind, k.MEANING))
        cycles = np.zeros(len(routine) if self.options.measure else 0, np.int64)
        if self.options.measure:
            self.measured.append((routine, cycles))
        frame = RoutineFrame(routine, plan, base, pitch, pace, np.full(24, -1, np.int64), cycles, (*memory, scratch))
        frame.progress[ABORT] = 0
        return frame

    def _execute(self, frame: RoutineFrame, lane: ThreadMemory, sequence: Array, thread: int = 0) -> None:
        """All instructions of a sequence, on the thread that calls. Whatever goes wrong, the other thread is told."""
        lane.reserve(frame.plan.longest)
        at, end = 0, len(sequence)
        try:
            while at < end:
                at = self._run(frame, lane, sequence, at, end, thread, int(self.options.check_nan))
                if at < end:
                    self._by_meaning(frame, lane, sequence, at, thread)
                    at += 1
        except BaseException:
            frame.progress[ABORT] = 1
            raise

    def view(self, ap: AP, *, sbuf_base: int = 0) -> Array:
        """The elements of an access pattern to on-chip memory, [P, F...], as a writable array in its NumPy format."""
        if ap.memory is Memory.HBM:
            raise RunError("only SBUF and PSUM belong to the machine", got=ap.buffer.name)
        memory, skip = (self.sbuf, sbuf_base) if ap.memory is Memory.SBUF else (self.psum, 0)
        address = address_of(memory) + ap.first_partition * memory.strides[0] + ap.buffer.address + skip + ap.offset
        strides = (memory.strides[0], *(step * ap.dtype.itemsize for step, _ in ap.dims))
        return array_at(address, ap.shape, strides, ap.dtype.numpy)

    def poisoned_hbm(self, nbytes: int) -> Array:
        """Device memory full of poison; the same memory at each call, which the host need not find anew."""
        if len(self._hbm) < nbytes:
            self._hbm = np.empty(nbytes, np.uint8)
        memory = self._hbm[:nbytes]
        memory.fill(POISON)
        return memory

    def _run(
        self, frame: RoutineFrame, lane: ThreadMemory, sequence: Array, at: int, end: int, thread: int, check: int
    ) -> int:
        lane.report[0] = DONE
        plan, pace = frame.plan, frame.pace
        progress = address_of(frame.progress) + 8 * PROGRESS_STRIDE * np.arange(2)
        stopped = run(
            at,
            end,
            sequence,
            plan.kind,
            plan.form,
            plan.slots,
            plan.ints,
            plan.floats,
            frame.routine.operands,
            frame.base,
            frame.pitch,
            lane.views,
            lane.packed,
            lane.walks,
            _aligned(lane.scratch),
            lane.block,
            _aligned(lane.panels),
            self._seed(),
            check,
            lane.report,
            pace.need,
            pace.writer,
            progress[thread],
            progress[1 - thread],
            progress[0] + 8 * ABORT,
            frame.cycles,
        )
        check_linked()
        if lane.report[0] not in (DONE, TO_PYTHON):
            self._fail(frame.routine, int(sequence[stopped]), lane.report)
        return int(stopped)

    def _by_meaning(self, frame: RoutineFrame, lane: ThreadMemory, sequence: Array, at: int, thread: int) -> None:
        routine, i = frame.routine, int(sequence[at])
        infinity_read = bool(lane.report[1])
        try:
            instead = {} if self.options.by_definition else _COMPILED
            execute_meaning(routine, i, frame.base, frame.pitch, self._rounder(i), instead)
        except IndexError as error:
            where = routine.locs[int(routine.loc[i])]
            raise RunError(
                f"{_label(routine, i)}: a gather reads a row that does not exist", where=where, got=error
            ) from None
        self.by_meaning += 1
        lane.packed[:] = 0
        if self.options.check_nan:
            check = WRITTEN_AFTER_INFINITY if infinity_read else WRITTEN
            self._run(frame, lane, sequence, at, at + 1, thread, check)
        frame.progress[PROGRESS_STRIDE * thread] = i

    def _seed(self) -> int:
        """Stream of the first instruction of this call, or -1 to round to nearest even."""
        if not self.options.stochastic_rounding:
            return -1
        return (self.options.seed << 32) % (1 << 62) + self.executed

    def _rounder(self, i: int) -> Rounder:
        """How results of instruction i become their format when Python computes them."""
        if not self.options.stochastic_rounding:
            return narrow
        stream = self._seed() + i

        def rounder(values: Array, dtype: DType) -> Array:
            values, out = np.ascontiguousarray(values), np.empty(values.shape, dtype.numpy)
            from_python(store_array)(address_of(out), dtype.code, values.size, address_of(values), stream)
            return out

        return rounder

    def _check(self, routine: Routine, args: Sequence[Array], sbuf_base: int) -> None:
        if len(args) != len(routine.params):
            raise RunError(f"routine {routine.name!r} takes {len(routine.params)} tensors", got=len(args))
        for buffer, array in zip((routine.buffers[p] for p in routine.params), args):
            if array.nbytes != buffer.nbytes or not array.flags.c_contiguous:
                raise _mismatch(routine, buffer, f"{array.nbytes} bytes, {array.dtype} {list(array.shape)}")
        self._check_sbuf(routine, sbuf_base)

    def check_calls(self, program: Program) -> None:
        """Raise RunError where a call does not match its routine, the first time that the program comes."""
        if id(program) in self._checked:
            return
        for call, routine in program:
            if len(call.args) != len(routine.params):
                raise RunError(f"routine {routine.name!r} takes {len(routine.params)} tensors", got=len(call.args))
            parts = call.offsets or (None,) * len(call.args)
            for buffer, tensor, offset in zip(
                (routine.buffers[p] for p in routine.params), map(program.tensors.__getitem__, call.args), parts
            ):
                room = tensor.nbytes == buffer.nbytes if offset is None else offset + buffer.nbytes <= tensor.nbytes
                if not room or (offset or 0) < 0:
                    raise _mismatch(routine, buffer, f"{tensor.nbytes} bytes, {tensor.dtype} {list(tensor.shape)}")
            self._check_sbuf(routine, call.sbuf_base)
        self._checked[id(program)] = program

    def _check_sbuf(self, routine: Routine, sbuf_base: int) -> None:
        top = sbuf_base + routine.sbuf_bytes
        if top > self.sbuf.shape[1]:
            raise RunError(
                f"routine {routine.name!r} reaches beyond SBUF",
                limit=self.sbuf.shape[1],
                got=top,
                chip=self.chip.name,
            )

    def _bind(self, routine: Routine, addresses: Array, sbuf_base: int, scratch: Array | None) -> tuple[Array, Array]:
        """Per buffer: its absolute address, and the bytes from one partition to the next."""
        key = (id(routine), sbuf_base)
        if key not in self._bound:
            self._bound[key] = (routine, *self._on_chip(routine, sbuf_base))
        _, base, pitch, params, scratches = self._bound[key]
        base = base.copy()
        base[params] = addresses
        if scratch is not None and len(scratches):
            base[scratches] += address_of(scratch)
        return base, pitch

    def _on_chip(self, routine: Routine, sbuf_base: int) -> tuple[Array, Array, Array, Array]:
        """Addresses without those of the call, pitches, which buffers are parameters, and which lie in scratch."""
        origin, step = np.zeros(4, np.int64), np.zeros(4, np.int64)
        origin[SBUF], step[SBUF] = address_of(self.sbuf) + sbuf_base, self.sbuf.strides[0]
        origin[PSUM], step[PSUM] = address_of(self.psum), self.psum.strides[0]
        homes = homes_of(routine)
        pitch = step[homes.home]
        base = origin[homes.home] + homes.lane * pitch + homes.offset
        return base, pitch, np.array(routine.params, np.int64), np.flatnonzero(homes.home == SCRATCH)

    def _fail(self, routine: Routine, i: int, report: Array) -> None:
        label, where = _label(routine, i), routine.locs[int(routine.loc[i])]
        first, second, third = (int(v) for v in report[1:])
        if report[0] == BAD_ROW:
            raise RunError(
                f"{label}: a gather reads a row that does not exist",
                where=where,
                limit=f"rows 0..{third - 1}",
                got=f"index {second} on partition {first}",
                chip=self.chip.name,
                remedy="check the indices (token ids, labels) against the table's number of rows",
            )
        assert report[0] == NOT_FINITE
        found = "wrote a NaN" if third == NAN else "made an infinity"
        raise NumericsError(
            f"{label}, {found}",
            where=where,
            got=f"partition {first}, element {second}, from {instruction_text(routine, i)}",
            chip=self.chip.name,
            remedy="look at its inputs: no instruction before it wrote a NaN",
        )


def _mismatch(routine: Routine, buffer: Buffer, got: str) -> RunError:
    return RunError(
        f"parameter {buffer.name!r} of routine {routine.name!r} does not match its tensor",
        limit=f"{buffer.nbytes} contiguous bytes ({buffer.dtype} {list(buffer.shape)})",
        got=got,
    )


def _addresses(arrays: Sequence[Array]) -> Array:
    return np.array([address_of(array) for array in arrays], np.int64)


def _label(routine: Routine, i: int) -> str:
    return f"{isa.BY_OPCODE[int(routine.opcode[i])].name}, instruction {i} of routine {routine.name!r}"


def address_of(array: Array) -> int:
    """Absolute address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def _aligned(memory: Array) -> int:
    return -(-address_of(memory) // 64) * 64


def poisoned(partitions: int, nbytes: int) -> Array:
    """[partitions, nbytes] of poison; the rows are a little further apart than that."""
    room = np.full(partitions * (nbytes + _ROW_SKEW) + 64, POISON, np.uint8)
    skip = _aligned(room) - address_of(room)
    return room[skip : skip + partitions * (nbytes + _ROW_SKEW)].reshape(partitions, -1)[:, :nbytes]
