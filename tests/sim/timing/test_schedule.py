# SPDX-License-Identifier: Apache-2.0
"""What the hardware's compiler is taken to decide: order, engine and bank of what a kernel leaves open; no more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from streams import random_routine

from trnlab import chips, isa, policy
from trnlab.errors import UsageError
from trnlab.isa.base import Engine
from trnlab.loops.heap import pop, push
from trnlab.policy import AS_WRITTEN, SCHEDULED
from trnlab.program import Builder
from trnlab.program.routine import COL, OPEN_ENGINE, OPEN_ORDER, OPEN_PLACE
from trnlab.sim.timing import time_routine
from trnlab.sim.timing.schedule import planned
from trnlab.timeline import ENGINES

TRN2 = chips.get("trn2")
ALL_OPEN = OPEN_ENGINE | OPEN_ORDER | OPEN_PLACE


def opened(routine, bits=ALL_OPEN):
    """The routine as a kernel leaves it that decides nothing."""
    return replace(routine, left_open=np.full(len(routine), bits, np.int8), _memo={})


def iterations(count=6, *, engine=None, ordered=False):
    """Load, multiply, copy from PSUM, exp, store, over and over; in the order of one iteration after the other."""
    b = Builder("iterations", TRN2)
    b.leaves_order = not ordered
    b.leaves_places = True
    x, y = (b.param(n, (128 * count, 512), "float32") for n in "xy")
    weights = b.tile((128, 128), "float32")
    b.memset(dst=weights, value=1.0, engine=Engine.GPSIMD)
    for i in range(count):
        rows = slice(128 * i, 128 * (i + 1))
        tile, result, acc = b.tile((128, 512), "float32"), b.tile((128, 512), "float32"), b.psum((128, 512))
        b.dma_copy(dst=tile, src=x[rows])
        b.nc_matmul(dst=acc, stationary=weights, moving=tile)
        b.tensor_copy(dst=result, src=acc, engine=engine)
        b.activation(dst=result, data=result, op="exp")
        b.dma_copy(dst=y[rows], src=result)
    return b.build()


def by_tile(routine, psum_tiles):
    """Per instruction (reads, writes): the definition's, tiles of PSUM by themselves wherever they lie."""
    result = []
    for i, code in enumerate(routine.opcode):
        instr, attrs = isa.BY_OPCODE[int(code)], dict(routine.attr_table[routine.attr[i]])
        reads, writes = set(), set()
        for row in routine.operands[routine.first_operand[i] : routine.first_operand[i + 1]]:
            spec, buffer = instr.operands[row[COL["role"]]], int(row[COL["buffer"]])
            places = (
                {("bank", buffer)} if buffer in psum_tiles else set(range(row[COL["first"]], row[COL["last"]] + 1))
            )
            if spec.role == "dst":
                writes |= places
            if spec.role == "src" or (spec.rw and instr.reads_destination(attrs)):
                reads |= places
        result.append((reads, writes))
    return result


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_order_no_instruction_starts_before_its_operands(seed):
    """The dependencies of the kernel as it is written hold in the timeline of its schedule, pair by pair."""
    routine = opened(random_routine(TRN2, seed, count=80))
    t = time_routine(routine, TRN2)
    dma = np.array([op.lanes > 0 for op in t.ops])[t.op]
    psum = {b.id for b in routine.buffers if b.memory.name == "PSUM"}
    access = by_tile(routine, psum)
    for i, (reads, writes) in enumerate(access):
        for j in range(i):
            same = t.engine[i] == t.engine[j] and not dma[i] and not dma[j]
            if reads & access[j][1] and not (same and t.engine[i] == Engine.TENSOR):
                assert t.start[i] >= t.done[j], (i, j)
            if writes & (access[j][0] | access[j][1]):
                assert t.start[i] >= (t.end[j] if same else t.done[j]), (i, j)
    for code in range(len(ENGINES)):
        starts = np.sort(t.start[t.engine == code])
        ends = np.sort(t.end[t.engine == code])
        assert (starts[1:] >= ends[:-1]).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_bank_holds_one_tile_at_a_time(seed):
    routine = opened(random_routine(TRN2, seed, count=80))
    p = planned(routine, TRN2, SCHEDULED)
    t = time_routine(routine, TRN2)
    held = {}
    for i in range(len(routine)):
        for k in range(routine.first_operand[i], routine.first_operand[i + 1]):
            tile, slot = int(routine.operands[k, COL["buffer"]]), int(p.uses[k] & 0xFFFFFFFF)
            if slot < routine.num_psum:
                first, last, bank = held.get(tile, (t.start[i], t.done[i], slot))
                assert bank == slot
                held[tile] = (min(first, t.start[i]), max(last, t.done[i]), slot)
    spans = list(held.values())
    for n, (first, last, bank) in enumerate(spans):
        assert all(bank != b or last <= f or end <= first for f, end, b in spans[:n])


def test_iterations_overlap_when_the_order_is_open():
    """As written, every load waits behind the store before it; the scheduler lets loads run ahead."""
    routine = iterations()
    written, scheduled = (time_routine(routine, TRN2, policy=p) for p in (AS_WRITTEN, SCHEDULED))
    assert scheduled.total < 0.7 * written.total


def test_what_stands_in_a_no_reorder_block_keeps_its_place():
    routine = iterations(ordered=True)
    assert planned(routine, TRN2, SCHEDULED).visit.tolist() == list(range(len(routine)))
    assert planned(iterations(), TRN2, SCHEDULED).visit.tolist() != list(range(len(routine)))


def test_a_window_bounds_how_far_compute_engines_run_ahead():
    routine = iterations()
    visit = planned(routine, TRN2, replace(SCHEDULED, window=5)).visit
    kinds = isa.BY_OPCODE
    for turn, i in enumerate(visit):
        waiting = set(range(len(visit))) - set(visit[:turn].tolist())
        assert kinds[int(routine.opcode[i])].is_dma or i < min(waiting) + 5


def test_only_open_engines_are_chosen():
    """Copies out of PSUM go to VectorE and ScalarE in turns, unless the kernel names one."""
    for named in (None, Engine.VECTOR):
        t = time_routine(iterations(engine=named), TRN2)
        engines = {ENGINES[t.engine[i]] for i in range(len(t)) if t.ops[t.op[i]].name == "tensor_copy"}
        assert engines == ({"vector", "scalar"} if named is None else {"vector"})


@pytest.mark.parametrize(("op", "engine"), [("multiply", "scalar"), ("add", "scalar"), ("max", "vector")])
def test_scale_and_shift_go_to_scalar_engine(op, engine):
    """nki.isa.tensor_scalar leaves its engine open: ScalarE multiplies and adds sooner, but has no maximum."""
    b = Builder("scales", chips.get("trn1"))
    b.leaves_order = True
    for _ in range(6):
        tile = b.tile((128, 512), "float32")
        b.memset(dst=tile, value=1.0, engine=Engine.GPSIMD)
        b.tensor_scalar(dst=tile, data=tile, op0=op, operand0=2.0)
    t = time_routine(b.build(), chips.get("trn1"), policy=SCHEDULED)
    used = {ENGINES[t.engine[i]] for i in range(len(t)) if t.ops[t.op[i]].name == "tensor_scalar"}
    assert used == {engine}


def test_compiled_programs_are_timed_as_they_are_written():
    routine = random_routine(TRN2, 5)
    assert not len(routine.left_open)
    assert time_routine(routine, TRN2).same_times(time_routine(routine, TRN2, policy=AS_WRITTEN))


def test_a_schedule_is_chosen_by_name_and_options():
    """For one call, or for the process; a name or option that does not exist is refused."""
    assert policy.parse("as-written") == AS_WRITTEN
    chosen = policy.parse("scheduled,rotate=off,window=64")
    assert (chosen.reorder, chosen.balance, chosen.rotate, chosen.window) == (True, True, False, 64)
    for text in ("fast", "scheduled,window", "scheduled,window=x", "scheduled,speed=2", "scheduled,rotate=maybe"):
        with pytest.raises(UsageError, match="TRN106"):
            policy.parse(text)
    routine = iterations()
    try:
        policy.configure(AS_WRITTEN)
        assert time_routine(routine, TRN2).same_times(time_routine(routine, TRN2, policy=AS_WRITTEN))
    finally:
        policy.configure(SCHEDULED)
    assert time_routine(routine, TRN2).same_times(time_routine(routine, TRN2, policy=SCHEDULED))


def test_the_same_kernel_has_the_same_schedule():
    first, second = (time_routine(opened(random_routine(TRN2, 7)), TRN2) for _ in range(2))
    assert first.same_times(second)


def test_waiting_instructions_come_by_time_then_number_however_long_a_kernel_takes():
    """Times beyond 2**39 ps, half a second: they once shared 64 bits with the instruction's number."""
    due = np.array([2**50, 3, 2**50, 2**40, 3, 2**62], np.int64)
    heap, size = np.empty(6, np.int64), 0
    for i in (5, 2, 0, 4, 3, 1):
        size = push(heap, size, i, due)
    found = []
    while size:
        first, size = pop(heap, size, due)
        found.append(int(first))
    assert found == [1, 4, 3, 0, 2, 5]


def test_loads_come_in_the_order_of_their_first_use():
    """Three loads of which the last is used first: it goes first; without the option they go as they are written."""
    b = Builder("loads", TRN2)
    b.leaves_order = True
    sources = [b.param(n, (128, 512), "float32") for n in "xyz"]
    tiles = [b.tile((128, 512), "float32") for _ in sources]
    for tile, source in zip(tiles, sources):
        b.dma_copy(dst=tile, src=source, engine=Engine.SYNC, queue=0)
    for tile in reversed(tiles):
        b.activation(dst=tile, data=tile, op="exp")
    routine = b.build()
    assert planned(routine, TRN2, SCHEDULED).visit[:3].tolist() == [2, 1, 0]
    assert planned(routine, TRN2, SCHEDULED.with_options(by_use=False)).visit[:3].tolist() == [0, 1, 2]
