# SPDX-License-Identifier: Apache-2.0
"""What the in-order pass needs of a routine: a cost row per distinct kind of work, slots and access of operands.

A plan is made once per routine and chip and kept with the routine, so that calls of it share everything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine, Work
from trnlab.isa.elementwise.tensor_scalar import ON_SCALAR
from trnlab.loops import compiled
from trnlab.numerics import dtypes
from trnlab.program.routine import Routine
from trnlab.sim.timing import layout
from trnlab.sim.timing.cost import by_software, dma_cost, in_fast_mode, work_cost
from trnlab.sim.timing.layout import Array, Ints
from trnlab.timeline import OpInfo
from trnlab.units import PS_PER_NS

_QUEUES = 16
_PART = 32  # rows or columns of the PE array
_READ_IF_ASKED = 4  # an rw destination: read when the instruction's attributes say so
SRC_IN_HBM, DST_IN_HBM = 1, 2


@dataclass(frozen=True)
class TimingPlan:
    """Per instruction: its row, its operands first_operand[i] .. first_operand[i+1]. Per operand: slots, access."""

    rows: Ints  # [distinct, layout.ROW]
    ops: tuple[OpInfo, ...]  # what each row is, for people
    row_of: Array
    first_operand: Array
    uses: Ints  # packed as `order` says
    beside: Ints  # before which operands of the routine `uses` has one more, see `_with_dependencies`
    sbuf_cuts: Ints  # bytes at which the SBUF slots begin
    scratch: tuple[int, ...]  # scratch buffers
    keys: tuple[_Key, ...]  # of the rows
    visit: Array  # in which order the instructions are taken; empty: as they are written

    @cached_property
    def engine(self) -> Array:
        """The engine of each instruction."""
        return self.rows[:, layout.ENGINE].astype(np.int8)[self.row_of]

    @cached_property
    def uses_engine(self) -> Array:
        """Which engines have instructions."""
        return np.isin(np.arange(layout.ENGINES), self.engine)


def plan(routine: Routine, chip: Chip) -> TimingPlan:
    """The plan of a routine on a chip, from the routine's memo when it was made before."""
    plans: dict[Chip, TimingPlan] = routine._memo.setdefault("timing", {})
    if chip not in plans:
        plans[chip] = _make(routine, chip)
    return plans[chip]


def forget(routine: Routine, chip: Chip) -> None:
    """Drop the plan of a routine on a chip that will not be asked for again."""
    routine._memo.get("timing", {}).pop(chip, None)
    scheduled = routine._memo.get("scheduled", {})
    for key in [key for key in scheduled if key[0] is chip]:
        del scheduled[key]


def _make(routine: Routine, chip: Chip) -> TimingPlan:
    roles, is_dma = _opcode_tables()
    operands = routine.operands
    row_of = np.empty(len(routine), np.int32)
    uses = np.empty(len(operands), np.int64)
    keys = np.empty(max(len(routine), 1), np.int64)
    count = _scan(
        routine.opcode,
        routine.engine,
        routine.queue,
        routine.work,
        routine.attr,
        routine.first_operand,
        operands,
        roles,
        is_dma,
        _accesses_of_destinations(routine),
        len(routine.attr_table),
        np.array([b.first_partition for b in routine.buffers], np.int64),
        _itemsize_codes(),
        int(chip.dma.partitions_per_engine.value),
        row_of,
        uses,
        keys,
    )
    parts = [_split(int(key)) for key in keys[:count]]
    rows = np.array([_row(part, routine.works[part.work], chip) for part in parts], np.int64)
    return TimingPlan(
        rows.reshape(count, layout.ROW),
        tuple(_info(part, routine.works[part.work], row, chip) for part, row in zip(parts, rows)),
        row_of,
        *_with_dependencies(routine, uses),
        routine.sbuf_cuts,
        tuple(b.id for b in routine.buffers if b.kind == "scratch"),
        tuple(parts),
        np.empty(0, np.int32),
    )


def _with_dependencies(routine: Routine, uses: Ints) -> tuple[Array, Ints, Ints]:
    """First operands and uses with the dependencies that share no memory: one writes a slot that the other reads.

    The slots are the routine's last. Also returns where these uses went in.
    """
    pairs = np.array(routine.after, np.int64).reshape(-1, 2)
    if not len(pairs):
        return routine.first_operand, uses, np.empty(0, np.int64)
    slot = routine.num_slots - len(pairs) + np.arange(len(pairs))
    owner = pairs.T.ravel()
    access = np.repeat([layout.WRITE, layout.READ], len(pairs)) << layout.READ_SHIFT | np.tile(slot, 2)
    at = routine.first_operand[owner + 1].astype(np.int64)
    before = np.cumsum(np.bincount(owner, minlength=len(routine)))
    first = routine.first_operand + np.concatenate([[0], before]).astype(np.int32)
    return first, np.insert(uses, at, access), at


def alternatives(routine: Routine, p: TimingPlan, chip: Chip) -> tuple[Ints, tuple[OpInfo, ...], Array]:
    """The plan's rows and more: what they would be on another engine that can do the same; and which is whose."""
    rows, ops = p.rows.tolist(), list(p.ops)
    other = np.full(len(rows), -1, np.int32)
    for number, key in enumerate(p.keys):
        work = routine.works[key.work]
        kind = _ELSEWHERE.get(work.kind)
        if kind is None or (kind[0] is Engine.GPSIMD and (work.psum or not chip.has("parallel_ports"))):
            continue
        if work.kind == "vector.tensor_scalar" and work.m != ON_SCALAR:
            continue
        moved, work = key._replace(engine=kind[0]), replace(work, kind=kind[1])
        other[number] = len(rows)
        rows.append(_row(moved, work, chip))
        ops.append(_info(moved, work, np.array(rows[-1], np.int64), chip))
    return np.array(rows, np.int64).reshape(-1, layout.ROW), tuple(ops), other


def triggered_by(
    routine: Routine, p: TimingPlan, chip: Chip, chosen: Array, engine: Array, queue: Array
) -> TimingPlan:
    """The plan with the transfers `chosen` triggered by other engines, on other queues."""
    rows, ops, keys, row_of = p.rows.tolist(), list(p.ops), list(p.keys), p.row_of.copy()
    wanted = np.stack([p.row_of[chosen], engine[chosen], queue[chosen]], axis=1)
    distinct, which = np.unique(wanted, axis=0, return_inverse=True)
    row_of[chosen] = len(rows) + which.ravel()
    for number, by, on in distinct.tolist():
        key = keys[number]._replace(engine=Engine(by), queue=on)
        keys.append(key)
        rows.append(_row(key, routine.works[key.work], chip))
        ops.append(_info(key, routine.works[key.work], np.array(rows[-1], np.int64), chip))
    made = np.array(rows, np.int64).reshape(-1, layout.ROW)
    return replace(p, rows=made, ops=tuple(ops), keys=tuple(keys), row_of=row_of)


# Who else can do the same work: of the instructions that leave their engine open (nki.isa.tensor_copy, memset,
# tensor_scalar). GpSimdE saves nothing where VectorE waits for the port that they share, see `_ports`.
_ELSEWHERE = {
    "vector.tensor_scalar": (Engine.SCALAR, "scalar.tensor_scalar"),
    "vector.tensor_copy": (Engine.SCALAR, "scalar.tensor_copy"),
    "vector.memset": (Engine.GPSIMD, "gpsimd.memset"),
}


@lru_cache(maxsize=1)
def _opcode_tables() -> tuple[Array, Array]:
    """Access of each operand role, and which opcodes are DMA, by opcode."""
    top = max(isa.BY_OPCODE) + 1
    widest = max(len(instr.operands) for instr in isa.BY_OPCODE.values())
    roles, is_dma = np.zeros((top, widest), np.uint8), np.zeros(top, np.bool_)
    for code, instr in isa.BY_OPCODE.items():
        is_dma[code] = instr.is_dma
        for i, spec in enumerate(instr.operands):
            roles[code, i] = layout.WRITE if spec.role == "dst" else layout.READ
            if spec.rw:
                roles[code, i] |= _READ_IF_ASKED
            if spec.state:
                roles[code, i] = 0  # registers of the engine, used in its own order
    return roles, is_dma


@lru_cache(maxsize=1)
def _itemsize_codes() -> Array:
    """Logarithm of the bytes of each format, by its code."""
    return np.array([dtypes.BY_CODE[code].itemsize.bit_length() - 1 for code in range(len(dtypes.BY_CODE))], np.int64)


def _accesses_of_destinations(routine: Routine) -> Array:
    """What opcode x attributes does to its rw destination: it reads what it leaves, or the last write alone counts.
    The PE array adds in PSUM, in its own order, so it never reads. Scatters that fill a tensor between them write
    each row once, or in the order of their queue: nobody waits for the one before."""
    width = max(len(routine.attr_table), 1)
    found = np.full((max(isa.BY_OPCODE) + 1) * width, layout.WRITE, np.int8)
    used = np.bincount(routine.opcode.astype(np.int64) * width + routine.attr, minlength=1)
    for pair in np.flatnonzero(used):
        instr, attrs = isa.BY_OPCODE[int(pair) // width], dict(routine.attr_table[int(pair) % width])
        if instr.engines[0] is not Engine.TENSOR and instr.reads_destination(attrs):
            found[pair] |= layout.READ
        elif attrs.get("fills"):
            found[pair] |= layout.FILL
    return found


class _Key(NamedTuple):
    """What tells two cost rows apart. queue is -1 for engine instructions; the rest is for DMA."""

    work: int
    engine: Engine
    queue: int
    in_hbm: int  # SRC_IN_HBM | DST_IN_HBM
    dst_item: int  # bytes
    src_item: int
    lane: int


def _split(key: int) -> _Key:
    """The parts of a key of `_scan`."""
    rest, lane = divmod(key, layout.LANES)
    rest, src = divmod(rest, 3)
    rest, dst = divmod(rest, 3)
    rest, in_hbm = divmod(rest, 4)
    rest, queue = divmod(rest, _QUEUES + 1)
    work, engine = divmod(rest, layout.ENGINES)
    return _Key(work, Engine(engine), -1 if queue == _QUEUES else queue, in_hbm, 1 << dst, 1 << src, lane)


def _row(key: _Key, work: Work, chip: Chip) -> list[int]:
    if key.queue < 0:
        cost = work_cost(work, chip)
        ports = _ports(key.engine, work, chip)
        mask, side_by_side = _parts(work.part)
        gap = cost.busy // side_by_side
        issue = [key.engine, cost.busy, cost.latency, cost.exposed, cost.table, ports, mask, gap]
        return [*issue, -1, 0, 0, 0, 0, 0, cost.slow, 0, 0, 0]
    dma = dma_cost(
        work, chip, key.engine, from_hbm=bool(key.in_hbm & SRC_IN_HBM), to_hbm=bool(key.in_hbm & DST_IN_HBM)
    )
    ring = key.engine * _QUEUES + key.queue
    first = min(key.lane, layout.LANES - dma.lanes)
    issue = [key.engine, dma.trigger, dma.start, 0, 0, 0, 0, dma.trigger]
    way = {SRC_IN_HBM: layout.LOAD, DST_IN_HBM: layout.STORE}.get(key.in_hbm, 0)
    return [*issue, ring, dma.share, first, dma.lanes, dma.stagger, dma.interval, 0, dma.wake, way, dma.turn]


def _parts(part: tuple[int, ...]) -> tuple[int, int]:
    """The parts of the PE array that an instruction uses, as bits, and how many like it run side by side.

    Source: nki.isa.nc_matmul (tiles of the array run concurrently).
    """
    if not part:
        return 0, 1
    row, column, rows, columns = (length // _PART for length in part)
    mask = sum(1 << 4 * r + c for r in range(row, row + rows) for c in range(column, column + columns))
    return mask, layout.PARTS_OF_ARRAY // (rows * columns)


def _ports(engine: Engine, work: Work, chip: Chip) -> int:
    """The memory ports that an instruction shares with another engine, which takes turns with it.

    Without parallel_ports, VectorE and GpSimdE share one of SBUF, VectorE and ScalarE one of PSUM
    (trainium_inferentia2_arch.rst:596-597, 766-767). With it, VectorE takes GpSimdE's port of SBUF in its fast modes
    only (trainium2_arch.rst:268-270), and it and ScalarE wait for each other at the same bank of PSUM only (271-273).
    """
    sbuf, psum = layout.SBUF_PORT, layout.PSUM_PORT
    if chip.has("parallel_ports"):
        sbuf = 0 if engine is Engine.VECTOR and not in_fast_mode(work, chip) else sbuf
        psum = layout.PSUM_BANK
    bits = sbuf if engine in (Engine.VECTOR, Engine.GPSIMD) else 0
    return bits | (psum if engine in (Engine.VECTOR, Engine.SCALAR) and work.psum else 0)


def _info(key: _Key, work: Work, row: Ints, chip: Chip) -> OpInfo:
    elements = work.nbytes // work.itemsize
    software = key.queue >= 0 and by_software(work, key.engine)
    return OpInfo(
        name=_NAMES.get(work.kind, work.kind.partition(".")[2]),
        kind=work.kind,
        n=work.n,
        m=work.m,
        k=work.k,
        dtype=work.dtype,
        flops=work.flops,
        hbm_read=elements * key.src_item if key.in_hbm & SRC_IN_HBM else 0,
        hbm_write=elements * key.dst_item if key.in_hbm & DST_IN_HBM else 0,
        queue=key.queue,
        first_lane=int(row[layout.FIRST_LANE]),
        lanes=int(row[layout.NUM_LANES]),
        lane_time=int(row[layout.SHARE]),
        active=round(chip.dma.active_gpsimd.value * PS_PER_NS) if software else 0,
    )


_NAMES = {
    "pe.matmul": "nc_matmul",
    "pe.matmul_onezero": "nc_matmul",
    "pe.matmul_mx": "nc_matmul_mx",
    "pe.transpose": "nc_transpose",
    "dma.copy": "dma_copy",
    "dma.ring": "dma_copy",
    "dma.gather": "dma_gather",
    "dma.transpose": "dma_transpose",
    "dma.compute": "dma_compute",
    "dma.sendrecv": "sendrecv",
}


@compiled
def _scan(
    opcode: Array,
    engine: Array,
    queue: Array,
    work: Array,
    attr: Array,
    first_operand: Array,
    operands: Ints,
    roles: Array,
    is_dma: Array,
    of_destination: Array,
    attrs: int,
    buffer_partition: Ints,
    itemsize_code: Ints,
    rows_per_lane: int,
    row_of: Array,
    uses: Ints,
    keys: Ints,
) -> int:
    """Slots and access of every operand, the cost row of every instruction; `keys` gets the distinct rows, counted.

    A row's key is the fields of `_Key` in mixed radix; queue 16 stands for none. Column numbers are those of
    `routine.OPERAND_COLUMNS`: 0 role, 1 buffer, 2 dtype, 3 start_partition, 15 first, 16 last, 17 is_hbm.
    """
    size = 1024
    table = np.full(size, -1, np.int64)  # open addressing: row by hash of its key
    count = 0
    for i in range(opcode.shape[0]):
        code = opcode[i]
        in_hbm, lane, dst_item, src_item = 0, 0, 0, 0
        for k in range(first_operand[i], first_operand[i + 1]):
            flags = roles[code, operands[k, 0]]
            if flags & 4:
                flags = of_destination[code * max(attrs, 1) + attr[i]]
            more = operands[k, 16] - operands[k, 15]
            uses[k] = np.int64(flags) << layout.READ_SHIFT | more << layout.MORE_SHIFT | operands[k, 15]
            if is_dma[code] and operands[k, 0] < 2:
                item = itemsize_code[operands[k, 2]]
                if flags & 2:
                    dst_item = item
                else:
                    src_item = item
                if operands[k, 17]:
                    in_hbm |= 2 if flags & 2 else 1
                else:
                    lane = (buffer_partition[operands[k, 1]] + operands[k, 3]) // rows_per_lane % 16
        key = np.int64(work[i]) * 6 + engine[i]
        key = key * 17 + (max(queue[i], 0) if is_dma[code] else 16)
        key = (((key * 4 + in_hbm) * 3 + dst_item) * 3 + src_item) * 16 + lane
        h = (key * 2654435761 >> 7) & (size - 1)
        while table[h] >= 0 and keys[table[h]] != key:
            h = (h + 1) & (size - 1)
        if table[h] < 0:
            table[h], keys[count] = count, key
            count += 1
        row_of[i] = table[h]
        if 2 * count > size:
            size, table = _grow(keys, count, size)
    return count


@compiled
def _grow(keys: Ints, count: int, size: int) -> Any:
    """The hash table of `_scan`, four times as large."""
    size *= 4
    table = np.full(size, -1, np.int64)
    for row in range(count):
        h = (keys[row] * 2654435761 >> 7) & (size - 1)
        while table[h] >= 0:
            h = (h + 1) & (size - 1)
        table[h] = row
    return size, table
