# SPDX-License-Identifier: Apache-2.0
"""Programs in, timelines out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.errors import Location
from trnlab.isa.base import Engine
from trnlab.program.routine import Call, Program, Routine, Tensor
from trnlab.sim.timing import order
from trnlab.sim.timing.memory import Memories
from trnlab.sim.timing.plan import Plan, plan
from trnlab.timeline import CallInfo, Timeline
from trnlab.units import PS_PER_NS


def time_program(
    program: Program, chip: Chip, *, profiled: bool = False, window_phase: int | None = None
) -> Timeline:
    """When each instruction of one run of `program` starts and ends on one core of `chip`.

    The same arguments give the same timeline, always. Raises KeyError for a cost class without a rule.
    profiled: under the profiler, which lengthens the start. window_phase: when some half-rate window of the PE array
    begins, in picoseconds from the start of the program; without it the array always runs at full rate.
    """
    plans = [plan(routine, chip) for routine in program.routines]
    out = Columns(program.num_instructions)
    startup = startup_of(chip, profiled)
    clocks = order.Clocks(startup)
    clocks.engine_free[Engine.GPSIMD] += to_ps(chip.sync.gpsimd_start.value)
    rate = HalfRate.of(chip, window_phase)
    clocks.window[order.WINDOW_END] = window_phase or 0
    memories = Memories(program, plans, chip)
    first = 0
    for call, routine in program:
        slots = memories.enter(call, routine)
        run(plans[call.routine], first, clocks, slots, out, chip, rate)
        memories.leave(call, routine, slots)
        first += len(routine)
    return _timeline(program, chip, plans, out, startup)


def time_routine(
    routine: Routine, chip: Chip, *, profiled: bool = False, window_phase: int | None = None
) -> Timeline:
    """The timeline of one call of a routine whose parameters are at rest in HBM; see `time_program`."""
    tensors = []
    for index in routine.params:
        b = routine.buffers[index]
        tensors.append(Tensor(b.id, b.name, b.shape, b.dtype, b.nbytes, "input"))
    call = Call(0, tuple(t.id for t in tensors), label=routine.name)
    inputs = tuple(t.id for t in tensors)
    program = Program(routine.name, routine.target, (routine,), tuple(tensors), (call,), inputs, ())
    return time_program(program, chip, profiled=profiled, window_phase=window_phase)


class HalfRate(NamedTuple):
    """The clock control of the PE array in picoseconds; all zero when it is not modelled."""

    window: int = 0
    warm_above: int = 0
    cool_below: int = 0

    @classmethod
    def of(cls, chip: Chip, phase: int | None) -> HalfRate:
        """That of a chip."""
        if phase is None:
            return cls()
        pe = chip.tensor
        window = pe.rate_window.value
        return cls(to_ps(window), to_ps(window * pe.warm_above.value), to_ps(window * pe.cool_below.value))


class Columns:
    """The columns that the pass fills."""

    def __init__(self, count: int) -> None:
        self.start, self.end, self.begin, self.done = (np.empty(count, np.int64) for _ in range(4))
        self.blocker, self.held = np.empty(count, np.int32), np.empty(count, np.int32)
        self.cause = np.empty(count, np.int8)


def run(
    p: Plan, first: int, clocks: order.Clocks, slots: order.Slots, out: Columns, chip: Chip, rate: HalfRate
) -> None:
    """Time the instructions of `p`, whose rows of the timeline begin at `first`."""
    here = slice(first, first + len(p.row_of))
    order.run(
        p.rows,
        p.row_of,
        p.first_operand,
        p.slot_first,
        p.slot_last,
        p.access,
        first,
        to_ps(chip.sync.semaphore.value),
        to_ps(chip.dma.queue_interval.value),
        to_ps(chip.dma.completion.value),
        to_ps(chip.scalar.table_load.value),
        rate.window,
        rate.warm_above,
        rate.cool_below,
        clocks.window,
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


def startup_of(chip: Chip, profiled: bool) -> int:
    """When the first instruction may start."""
    return to_ps(chip.sync.program_start.value + (chip.sync.profiler.value if profiled else 0))


def _timeline(program: Program, chip: Chip, plans: list[Plan], out: Columns, startup: int) -> Timeline:
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
        total=last + to_ps(chip.sync.program_end.value),
        startup=startup,
        completion=to_ps(chip.dma.completion.value),
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
        meta=about(chip),
        call=np.repeat(np.arange(len(calls), dtype=np.int32), [c.count for c in calls]),
    )


def about(chip: Chip) -> dict[str, Any]:
    """What a timeline says of its chip: the name, and figures for rooflines."""
    return {
        "chip": chip.title,
        "peak_flops": {name: chip.peak_flops(name) for name in ("bfloat16", "float32")},
        "hbm_bandwidth": chip.hbm.bandwidth.value,
    }


def _place(loc: Location | None) -> str:
    return "" if loc is None else str(loc)


def to_ps(ns: float) -> int:
    """Whole picoseconds."""
    return round(ns * PS_PER_NS)
