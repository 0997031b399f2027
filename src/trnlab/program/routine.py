# SPDX-License-Identifier: Apache-2.0
"""Routines and programs: the instructions that one NeuronCore executes.

A `Routine` is a straight run of instructions over its own tiles and its HBM parameters, held in columns so that a
million instructions cost megabytes and the simulators run over them without Python. A `Program` is a list of calls
of routines over HBM tensors: layers that repeat share one routine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnlab.errors import Location
from trnlab.isa.base import Engine, Work
from trnlab.isa.collectives.meeting import CorePlace
from trnlab.numerics.dtypes import DType
from trnlab.program.access import Buffer
from trnlab.program.changes import PassChange, Spill

# Columns of one operand record. role: index in the instruction's operand list. step/count: free dims, outermost
# first, padded in front with (0, 1). partition_step: bytes (HBM only). offset: bytes. is_hbm: 1 for HBM buffers.
# first/last: while recording, the first and last byte touched within the buffer; in a Routine, the slots touched.
OPERAND_COLUMNS = (
    "role",
    "buffer",
    "dtype",
    "start_partition",
    "partitions",
    "partition_step",
    "offset",
    "step0",
    "count0",
    "step1",
    "count1",
    "step2",
    "count2",
    "step3",
    "count3",
    "first",
    "last",
    "is_hbm",
)
COL = {name: i for i, name in enumerate(OPERAND_COLUMNS)}

OPEN_ENGINE, OPEN_ORDER, OPEN_PLACE = 1, 2, 4  # bits of `Routine.left_open`

Attrs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Print:
    """The elements of an operand, shown before instruction `at` when the routine runs."""

    at: int
    prefix: str
    operand: tuple[int, ...]  # columns as in `OPERAND_COLUMNS`
    shape: tuple[int, ...]  # of the tensor, for people


@dataclass(frozen=True)
class Routine:
    """Straight-line code of one core. Array columns have one row per instruction, `operands` one per operand.

    opcode int16, engine int8, queue int8 (DMA queue id, -1 for engine instructions), work/attr/loc int32 indices into
    `works`, `attr_table`, `locs`; operands of instruction i are rows first_operand[i] .. first_operand[i+1].

    Slots are the units of dependency, numbered per routine: 0..num_psum-1 are the PSUM banks; then come the SBUF
    slots, the elementary byte intervals that the tile boundaries cut SBUF into (so tiles that reuse bytes share
    slots), one from each of `sbuf_cuts` on; tiles of kernels are cut where their accesses begin and end, too; then
    every HBM buffer's slots, from `hbm_slot[buffer id]` on (-1 for on-chip buffers), one per `slot_bytes` bytes,
    or as its `grid` says.

    left_open: what the hardware's compiler decides of each instruction: which of several engines takes it
    (OPEN_ENGINE), when (OPEN_ORDER, past others that do not depend on it), and in which bank of PSUM its tiles lie
    (OPEN_PLACE); empty where it decides nothing.
    """

    name: str
    target: str
    buffers: tuple[Buffer, ...]
    params: tuple[int, ...]  # buffer ids of the HBM parameters, in call order
    opcode: np.ndarray[Any, np.dtype[np.int16]]
    engine: np.ndarray[Any, np.dtype[np.int8]]
    queue: np.ndarray[Any, np.dtype[np.int8]]
    work: np.ndarray[Any, np.dtype[np.int32]]
    attr: np.ndarray[Any, np.dtype[np.int32]]
    loc: np.ndarray[Any, np.dtype[np.int32]]
    first_operand: np.ndarray[Any, np.dtype[np.int32]]
    operands: np.ndarray[Any, np.dtype[np.int64]]  # [operands, RECORD]
    works: tuple[Work, ...]
    attr_table: tuple[Attrs, ...]
    locs: tuple[Location | None, ...]
    sbuf_bytes: int  # peak bytes per partition
    scratch_bytes: int = 0  # HBM scratch that every call needs
    num_slots: int = 0
    num_psum: int = 8
    hbm_slot: tuple[int, ...] = ()
    sbuf_cuts: np.ndarray[Any, np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(1, np.int64))
    prints: tuple[Print, ...] = ()  # in order
    after: tuple[tuple[int, int], ...] = ()  # (done first, then started) that share no memory
    left_open: np.ndarray[Any, np.dtype[np.int8]] = field(default_factory=lambda: np.empty(0, np.int8))
    changes: tuple[PassChange, ...] = field(default=(), compare=False, repr=False)  # what passes did, for reports
    spills: tuple[Spill, ...] = field(default=(), compare=False, repr=False)
    _memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # plans of the simulators

    def __len__(self) -> int:
        return len(self.opcode)


@dataclass(frozen=True, slots=True)
class ProgramTensor:
    """A run of HBM bytes that calls pass to routines. kind: "input", "output", "constant", "temp"."""

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: DType
    nbytes: int
    kind: str
    address: int = -1  # byte offset in the program's HBM arena; inputs and outputs may be bound elsewhere


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of a routine: its HBM parameters are bound to `args` (tensor ids)."""

    routine: int
    args: tuple[int, ...]
    sbuf_base: int = 0  # bytes added to every SBUF address of the routine, so that neighbouring calls overlap
    label: str = ""
    loc: Location | None = None
    # for each argument the byte where the parameter begins within the tensor, which may be longer; empty:
    # parameters are whole tensors
    offsets: tuple[int, ...] = ()
    purpose: str = ""  # of a collective, one of `collectives.PURPOSES`
    core: int = 0  # which of a rank's cores executes it; cores share tensors, and nothing else
    # at the same time as the call before it, neither waits for the other but where both meet (`gang`)
    concurrent: bool = False
    rank: int = 0  # whose core, of ranks that one program is for, in one process

    @property
    def place(self) -> CorePlace:
        """The core that executes it."""
        return CorePlace(self.rank, self.core)


@dataclass(frozen=True)
class Program:
    """All that one rank executes in one step, on one core or on several; of a kernel on simulated ranks, what all of
    them do. An output that updates an input in place has that input's tensor id."""

    name: str
    target: str
    routines: tuple[Routine, ...]
    tensors: tuple[ProgramTensor, ...]
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    hbm_bytes: int = 0  # peak of the arena
    # cluster, ranks: of a program that so many ranks execute together, each its own (`communication`): where they
    # are, as `fabric.cluster.parse` reads it
    cluster: str = ""
    ranks: int = 1
    waits: bool = False  # the ranks do nothing else while a collective is on its way
    faults: tuple[str, ...] = ()  # of the network between them (`fabric.faults`)
    # how many of their collectives are on their way at once; these decide times alone, and are set where a
    # program is run
    streams: int = 1
    changes: tuple[str, ...] = ()  # what else is otherwise (`fabric.world`)

    def __iter__(self) -> Iterator[tuple[Call, Routine]]:
        for call in self.calls:
            yield call, self.routines[call.routine]

    @property
    def places(self) -> list[CorePlace]:
        """The cores that execute it, in order of rank and core; the first one always."""
        return sorted({CorePlace(0, 0), *(call.place for call in self.calls)})

    @property
    def cores(self) -> int:
        """How many cores execute it."""
        return len(self.places)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of HBM scratch that its calls share: as many as the one that needs most."""
        return max((routine.scratch_bytes for routine in self.routines), default=0)

    @property
    def arena_bytes(self) -> int:
        """Bytes of HBM beside inputs, outputs and constants: temporary tensors at their peak, and scratch."""
        return self.hbm_bytes + self.scratch_bytes

    @property
    def sbuf_bytes(self) -> int:
        """Bytes of each partition that its calls reach to."""
        return max((call.sbuf_base + routine.sbuf_bytes for call, routine in self), default=0)

    def together(self) -> Iterator[list[Call]]:
        """The calls in order, those that run beside each other at once."""
        found: list[Call] = []
        for call in self.calls:
            if found and not call.concurrent:
                yield found
                found = []
            found.append(call)
        if found:
            yield found

    @property
    def num_instructions(self) -> int:
        """Instructions executed in one step."""
        return sum(len(routine) for _, routine in self)


ENGINE_NAMES = {e: e.name.lower() for e in Engine}
