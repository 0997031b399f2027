# SPDX-License-Identifier: Apache-2.0
"""Programs in, timelines out."""

from __future__ import annotations

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.errors import Location
from trnlab.program.routine import Call, Program, Routine, Tensor
from trnlab.sim.timing import order
from trnlab.sim.timing.memory import Memories
from trnlab.sim.timing.plan import Plan, plan
from trnlab.timeline import CallInfo, Timeline
from trnlab.units import PS_PER_NS


def time_program(program: Program, chip: Chip) -> Timeline:
    """When each instruction of one run of `program` starts and ends on one core of `chip`.

    The same program and chip give the same timeline, always. Raises KeyError for a cost class without a rule.
    """
    plans = [plan(routine, chip) for routine in program.routines]
    out = _Columns(program.num_instructions)
    clocks = order.Clocks(_ps(chip.sync.program_start.value))
    memories = Memories(program, plans, chip)
    first = 0
    for call, routine in program:
        slots = memories.enter(call, routine)
        _run(plans[call.routine], first, clocks, slots, out, chip)
        memories.leave(call, routine, slots)
        first += len(routine)
    return _timeline(program, chip, plans, out)


def time_routine(routine: Routine, chip: Chip) -> Timeline:
    """The timeline of one call of a routine whose parameters are at rest in HBM."""
    tensors = []
    for index in routine.params:
        b = routine.buffers[index]
        tensors.append(Tensor(b.id, b.name, b.shape, b.dtype, b.nbytes, "input"))
    call = Call(0, tuple(t.id for t in tensors), label=routine.name)
    inputs = tuple(t.id for t in tensors)
    return time_program(Program(routine.name, routine.target, (routine,), tuple(tensors), (call,), inputs, ()), chip)


class _Columns:
    """The columns that the pass fills."""

    def __init__(self, count: int) -> None:
        self.start, self.end, self.begin, self.done = (np.empty(count, np.int64) for _ in range(4))
        self.blocker, self.held = np.empty(count, np.int32), np.empty(count, np.int32)
        self.cause = np.empty(count, np.int8)


def _run(p: Plan, first: int, clocks: order.Clocks, slots: order.Slots, out: _Columns, chip: Chip) -> None:
    here = slice(first, first + len(p.row_of))
    order.run(
        p.rows,
        p.row_of,
        p.first_operand,
        p.slot_first,
        p.slot_last,
        p.access,
        first,
        _ps(chip.sync.semaphore.value),
        _ps(chip.dma.queue_interval.value),
        _ps(chip.dma.completion.value),
        _ps(chip.scalar.table_load.value),
        clocks.engine_free,
        clocks.engine_last,
        clocks.table,
        clocks.ring_begin,
        clocks.ring_free,
        clocks.ring_last,
        clocks.lane_free,
        clocks.lane_last,
        clocks.gaps,
        clocks.gap_end,
        clocks.num_gaps,
        clocks.port,
        clocks.port_count,
        slots.write,
        slots.writer,
        slots.write_index,
        slots.read,
        slots.read_index,
        out.start[here],
        out.end[here],
        out.begin[here],
        out.done[here],
        out.blocker[here],
        out.cause[here],
        out.held[here],
    )


def _timeline(program: Program, chip: Chip, plans: list[Plan], out: _Columns) -> Timeline:
    startup = _ps(chip.sync.program_start.value)
    last = int(out.done.max()) if len(out.done) else startup
    base = np.cumsum([0, *(len(p.ops) for p in plans)])
    calls, engines, ops, first = [], [], [], 0
    for call, routine in program:
        calls.append(CallInfo(call.label or routine.name, routine.name, first, len(routine), _place(call.loc)))
        engines.append(routine.engine)
        ops.append(plans[call.routine].row_of + np.int32(base[call.routine]))
        first += len(routine)
    return Timeline(
        name=program.name,
        target=chip.name,
        total=last + _ps(chip.sync.program_end.value),
        startup=startup,
        completion=_ps(chip.dma.completion.value),
        ops=tuple(op for p in plans for op in p.ops),
        calls=tuple(calls),
        start=out.start,
        end=out.end,
        begin=out.begin,
        done=out.done,
        blocker=out.blocker,
        cause=out.cause,
        held=out.held,
        engine=np.concatenate(engines) if engines else np.empty(0, np.int8),
        op=np.concatenate(ops) if ops else np.empty(0, np.int32),
        meta={
            "chip": chip.title,
            "peak_flops": {name: chip.peak_flops(name) for name in ("bfloat16", "float32")},
            "hbm_bandwidth": chip.hbm.bandwidth.value,
        },
        call=np.repeat(np.arange(len(calls), dtype=np.int32), [c.count for c in calls]),
    )


def _place(loc: Location | None) -> str:
    return "" if loc is None else str(loc)


def _ps(ns: float) -> int:
    return round(ns * PS_PER_NS)
