# SPDX-License-Identifier: Apache-2.0
"""What holds for every timeline, whatever the figures."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from streams import layer, program_of, random_routine

from trnlab import chips, isa
from trnlab.isa.base import Engine, Work
from trnlab.isa.costs import COST_CLASSES
from trnlab.numerics.dtypes import float32
from trnlab.program import Builder, Call, Program, ProgramTensor
from trnlab.program.routine import COL
from trnlab.sim.timing import assumptions, critical_path, dma_cost, summarise, time_program, time_routine, work_cost
from trnlab.sim.timing.plan import plan
from trnlab.sim.timing.summary import critical_time
from trnlab.timeline import CAUSES, ENGINES

CHIPS = [chips.get("trn1"), chips.get("trn2")]
both = pytest.mark.parametrize("chip", CHIPS, ids=["trn1", "trn2"])
SEEDS = range(12)


def accesses(routine):
    """Per instruction (reads, writes): sets of slots, straight from the definition."""
    result = []
    for i, code in enumerate(routine.opcode):
        instr, attrs = isa.BY_OPCODE[int(code)], dict(routine.attr_table[routine.attr[i]])
        reads, writes = set(), set()
        for row in routine.operands[routine.first_operand[i] : routine.first_operand[i + 1]]:
            spec = instr.operands[row[COL["role"]]]
            slots = set(range(row[COL["first"]], row[COL["last"]] + 1))
            if spec.role == "dst":
                writes |= slots
            if spec.role == "src" or (spec.rw and instr.reads_destination(attrs)):
                reads |= slots
        result.append((reads, writes))
    return result


@both
@pytest.mark.parametrize("seed", SEEDS)
def test_no_instruction_starts_before_its_operands(chip, seed):
    """Every read comes after the write it reads is done, every write after what it overwrites is finished with.

    Checked pair by pair against the definition; an engine's own order stands for overwriting and for accumulation.
    """
    routine = random_routine(chip, seed)
    t = time_routine(routine, chip)
    dma = np.array([op.lanes > 0 for op in t.ops])[t.op]
    access = accesses(routine)
    for i, (reads, writes) in enumerate(access):
        for j in range(i):
            earlier_reads, earlier_writes = access[j]
            same = t.engine[i] == t.engine[j] and not dma[i] and not dma[j]
            accumulates = same and t.engine[i] == Engine.TENSOR
            if reads & earlier_writes and not accumulates:
                assert t.start[i] >= t.done[j], (i, j)
            if writes & (earlier_writes | earlier_reads):
                assert t.start[i] >= (t.end[j] if same else t.done[j]), (i, j)


@both
@pytest.mark.parametrize("seed", SEEDS)
def test_engines_queues_and_dma_engines_do_one_thing_at_a_time(chip, seed):
    t = time_routine(random_routine(chip, seed, count=120), chip)
    for code in range(len(ENGINES)):
        mine = t.engine == code
        assert (t.start[mine][1:] >= t.end[mine][:-1]).all()
    assert (t.end > t.start).all()
    assert (t.done >= t.end).all()
    assert (t.begin >= t.start).all()
    moving = [(i, t.ops[t.op[i]]) for i in range(len(t)) if t.ops[t.op[i]].lanes]
    for i, op in moving:
        assert t.done[i] - t.completion - t.begin[i] >= op.lane_time
    lanes = sum(op.lanes * op.lane_time for _, op in moving)
    span = max(t.done[i] for i, _ in moving) - min(t.begin[i] for i, _ in moving)
    assert lanes <= 16 * span
    queues = {}
    for i, op in moving:
        before = queues.get((t.engine[i], op.queue))
        if before is not None:
            assert t.begin[i] > t.begin[before]
        queues[t.engine[i], op.queue] = i


def ports_routine(chip):
    """VectorE and ScalarE on one bank and on two, VectorE beside GpSimdE in a fast mode and without."""
    b = Builder("ports", chip)
    tiles = [b.tile((128, 512), "float32") for _ in range(4)]
    halves = [b.tile((128, 512), "bfloat16") for _ in range(2)]
    bank, other = b.psum((128, 512)), b.psum((128, 512))
    weights = b.tile((128, 128), "float32")
    for acc in (bank, other):
        b.nc_matmul(dst=acc, stationary=weights, moving=tiles[0])
    for _ in range(3):
        b.tensor_reduce(dst=tiles[0][:, :1], data=bank, op="max")
        b.activation(dst=tiles[1], data=bank, op="exp")
    for _ in range(3):
        b.tensor_copy(dst=tiles[0], src=bank, engine=Engine.VECTOR)
        b.activation(dst=tiles[1], data=other, op="copy")
    b.tensor_copy(dst=tiles[3], src=tiles[0], engine=Engine.GPSIMD)  # not before VectorE is here
    for _ in range(6):
        b.tensor_tensor(dst=tiles[2], data1=tiles[2], data2=tiles[2], op="add", engine=Engine.VECTOR)
        b.memset(dst=tiles[3], value=0.0, engine=Engine.GPSIMD)
    for _ in range(6):
        b.tensor_scalar(dst=halves[0], data=halves[1], operand0=2.0, op0="multiply", engine=Engine.VECTOR)
        b.affine_select(dst=tiles[3], on_true=tiles[3], pattern=((-1, 512),), on_false=0.0)
    return b.build()


def test_engines_take_turns_at_shared_ports():
    """Trainium1: VectorE and GpSimdE on SBUF, VectorE and ScalarE on PSUM. Trainium2: in VectorE's fast modes, and on
    the same bank; else side by side."""
    pairs = {
        "same bank": ("vector.tensor_reduce", "scalar.activation"),
        "other bank": ("vector.tensor_copy", "scalar.activation"),
        "plain": ("vector.tensor_tensor", "gpsimd.memset"),
        "fast": ("vector.tensor_scalar", "gpsimd.affine_select"),
    }
    together = set()
    for chip in CHIPS:
        t = time_routine(ports_routine(chip), chip)
        work = [t.ops[o].kind for o in t.op]
        for name, kinds in pairs.items():
            mine, others = ([i for i, k in enumerate(work) if k == kind] for kind in kinds)
            if any(t.start[i] < t.end[j] and t.start[j] < t.end[i] for i in mine for j in others):
                together.add((chip.name, name))
    assert together == {("trn2", "other bank"), ("trn2", "plain")}


@both
@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_program_gives_the_same_timeline(chip, seed):
    first, second = (time_routine(random_routine(chip, seed), chip) for _ in range(2))
    assert first.same_times(second)


@both
def test_a_faster_engine_never_lengthens_a_timeline(chip):
    """Without contention for DMA engines or memory ports: each figure improved in turn, over random compute."""
    chip = replace(chip, features=chip.features | {"parallel_ports"})
    figures = {
        "tensor.clock": 1.3,
        "vector.clock": 1.5,
        "scalar.clock": 1.2,
        "gpsimd.clock": 2.0,
        "sync.semaphore": 0.5,
        "scalar.table_load": 0.3,
        "vector.latency": 0.8,
        "tensor.issue": 0.5,
        "sync.program_start": 0.5,
    }
    for seed in SEEDS:
        program = compute_only(chip, seed)
        before = time_routine(program, chip)
        for path, factor in figures.items():
            old = dict(chips.figures(chip))[path].value
            faster = chips.with_figures(chip, {path: old * factor})
            after = time_routine(program, faster)
            assert after.total <= before.total, (seed, path)
            assert (after.done <= before.done).all(), (seed, path)


def compute_only(chip, seed):
    """A random stream without DMA."""
    rng = random.Random(seed)
    b = Builder("compute", chip)
    tiles, acc = [b.tile((128, 256), "float32") for _ in range(3)], b.psum((128, 256))
    weights = b.tile((128, 128), "float32")
    for tile in (*tiles, weights):
        b.memset(dst=tile, value=1.0, engine=rng.choice((Engine.VECTOR, Engine.GPSIMD)))
    b.nc_matmul(dst=acc, stationary=weights, moving=tiles[0])
    for _ in range(40):
        x, y = rng.choice(tiles), rng.choice(tiles)
        match rng.randrange(5):
            case 0:
                b.nc_matmul(dst=acc, stationary=weights, moving=x, accumulate=rng.random() < 0.5)
            case 1:
                b.activation(dst=x, data=acc, op=rng.choice(("exp", "sqrt", "copy")))
            case 2:
                b.tensor_tensor(dst=x, data1=x, data2=y, op="add")
            case 3:
                b.tensor_copy(dst=x, src=acc, engine=Engine.VECTOR)
            case 4:
                b.tensor_copy(dst=x, src=y, engine=Engine.GPSIMD)
    return b.build()


@both
def test_faster_dma_never_lengthens_a_stream_of_one_queue(chip):
    slow = time_routine(layer(chip), chip)
    rate = chip.dma.engine_bandwidth.value
    for path, value in (("dma.engine_bandwidth", 2 * rate), ("dma.start", 100), ("dma.completion", 100)):
        assert time_routine(layer(chip), chips.with_figures(chip, {path: value})).total <= slow.total, path


@both
def test_twice_the_work_never_takes_less_time(chip):
    routine = layer(chip)
    totals = [time_program(program_of(routine, n), chip).total for n in (1, 2, 4, 8)]
    assert totals == sorted(totals)
    assert totals[3] - totals[2] > totals[1] - totals[0]
    longer = [time_routine(layer(chip, rows=rows), chip).total for rows in (1, 2, 4, 8)]
    assert longer == sorted(longer)


@both
def test_wider_instructions_never_cost_less(chip):
    """Every kind of work in a random stream, with N doubled."""
    for routine in (random_routine(chip, 3), layer(chip)):
        for work in routine.works:
            if work.kind.startswith("dma"):
                twice = work.__class__(**{**fields(work), "m": 2 * work.m, "nbytes": 2 * work.nbytes})
                a, b = (dma_cost(w, chip, Engine.SYNC, from_hbm=True, to_hbm=False) for w in (work, twice))
                assert b.share >= a.share
                assert (b.trigger, b.start, b.lanes) == (a.trigger, a.start, a.lanes)
            else:
                twice = work.__class__(**{**fields(work), "n": 2 * work.n})
                a, b = work_cost(work, chip), work_cost(twice, chip)
                assert b.busy >= a.busy
                assert b.busy + b.latency >= a.busy + a.latency


def fields(work):
    return {name: getattr(work, name) for name in work.__slots__}


@both
def test_every_cost_class_has_a_rule(chip):
    for kind in COST_CLASSES:
        work = Work(kind, 512, 1, 128, 2, "bfloat16", nbytes=65536, groups=((0, 1),))
        if kind.startswith("dma"):
            cost = dma_cost(work, chip, Engine.SYNC, from_hbm=True, to_hbm=False)
            assert cost.lanes == 16
            assert cost.share > 0
        else:
            assert work_cost(work, chip).busy > 0
            assert work_cost(work, chip).latency >= 0


@both
def test_calls_overlap_when_their_memory_does_not(chip):
    """Calls with their own tensors and their own half of SBUF run into each other; on the same bytes they wait."""
    routine = layer(chip)
    apart = (0, -(-routine.sbuf_bytes // 64) * 64)
    same = time_program(program_of(routine, 6, distinct=True), chip)
    overlapped = time_program(program_of(routine, 6, distinct=True, sbuf_base=apart), chip)
    assert overlapped.total < same.total
    one = time_program(program_of(routine, 1), chip)
    assert same.total < 6 * one.total
    waits = [i for i in range(len(same)) if same.call[i] > 0 and same.blocker[i] < same.calls[same.call[i]].first]
    assert {CAUSES[same.cause[i]] for i in waits} & {"reuse", "overwrite"}


@both
def test_calls_that_share_a_tensor_are_ordered(chip):
    """One call writes what the next one reads, in slots of another size: no load starts before the store is done."""
    routine = layer(chip)
    coarse = Builder("coarse", chip)
    x = coarse.param("x", (512, 1024), "bfloat16", slot_rows=512)
    tile = coarse.tile((128, 1024), "bfloat16")
    coarse.dma_copy(dst=tile, src=x[128:256])
    reader = coarse.build()
    base = program_of(routine, 1)
    first = Call(0, (0, 1))
    second = Call(1, (1,), sbuf_base=routine.sbuf_bytes)
    program = Program("two", chip.name, (routine, reader), base.tensors, (first, second), (), ())
    t = time_program(program, chip)
    stores = [i for i in range(len(routine)) if t.ops[t.op[i]].hbm_write]
    assert t.start[len(routine)] >= max(t.done[i] for i in stores)
    assert t.blocker[len(routine)] in stores


@both
def test_tensors_that_reuse_an_address_wait_for_the_former_owner(chip):
    routine = layer(chip)
    base = program_of(routine, 2, distinct=True)
    size = base.tensors[0].nbytes

    def placed(addresses):
        tensors = tuple(
            type(t)(t.id, t.name, t.shape, t.dtype, t.nbytes, t.kind, a) for t, a in zip(base.tensors, addresses)
        )
        second = Call(0, (2, 3), sbuf_base=-(-routine.sbuf_bytes // 64) * 64)
        return Program("p", chip.name, base.routines, tensors, (base.calls[0], second), (), ())

    free = time_program(placed((0, size, 2 * size, 3 * size)), chip)
    reused = time_program(placed((0, size, 2 * size, 0)), chip)
    n = len(routine)
    loads = [i for i in range(n) if reused.ops[reused.op[i]].hbm_read]
    stores = [n + i for i in range(n) if reused.ops[reused.op[n + i]].hbm_write]
    assert min(reused.start[i] for i in stores) >= max(reused.done[i] for i in loads)
    assert free.total <= reused.total


@both
def test_what_a_former_owner_only_read_counts_as_written(chip):
    """A store to an address that a large tensor had, of which a load is on its way."""
    b = Builder("load", chip)
    b.dma_copy(dst=b.tile((128, 8192), "float32"), src=b.param("x", (128, 8192), "float32"), queue=0)
    load = b.build()
    b = Builder("store", chip)
    small = b.tile((128, 8), "float32")
    b.dma_copy(dst=b.param("y", (128, 8), "float32"), src=small, queue=1, engine=Engine.SCALAR)
    store = b.build()
    tensors = tuple(
        ProgramTensor(i, name, shape, float32, 4 * shape[0] * shape[1], "temporary", 0)
        for i, (name, shape) in enumerate({"x": (128, 8192), "y": (128, 8)}.items())
    )
    calls = Call(0, (0,)), Call(1, (1,), sbuf_base=load.sbuf_bytes)
    t = time_program(Program("p", chip.name, (load, store), tensors, calls, (), ()), chip)
    assert (t.blocker[1], CAUSES[t.cause[1]]) == (0, "overwrite")
    assert t.start[1] >= t.done[0]


@both
@pytest.mark.parametrize("seed", SEEDS)
def test_blockers_explain_starts(chip, seed):
    """The start of an instruction is exactly when what it waited for let it go."""
    t = time_routine(random_routine(chip, seed), chip)
    semaphore = round(chip.sync.semaphore.value * 1000)
    for i in range(len(t)):
        cause, by = CAUSES[t.cause[i]], t.blocker[i]
        if cause == "start":
            assert by == -1
            assert t.start[i] == t.startup
        elif cause == "issue":
            assert t.engine[by] == t.engine[i]
            assert t.start[i] == t.end[by]
        elif cause == "port":
            assert t.engine[by] != t.engine[i]
            assert t.start[i] == t.end[by]
        else:
            assert t.start[i] == t.done[by] + semaphore
        assert t.held[i] < i
        assert by < i


@both
@pytest.mark.parametrize("seed", SEEDS)
def test_sums(chip, seed):
    """The critical path starts at the start, its time adds up to the total, and no engine is busy longer."""
    routine = random_routine(chip, seed)
    t = time_routine(routine, chip)
    s = summarise(t)
    assert sum(s.critical.values()) == s.total
    assert all(value >= 0 for value in s.critical.values())
    path = critical_path(t)
    assert t.blocker[path[0]] == -1
    assert path[-1] == t.done.argmax()
    assert sum(use.instructions for use in s.engines[:-1]) == len(routine) == s.instructions
    for use in s.engines:
        assert use.busy <= s.total
        assert use.active <= s.total
    assert sum(call.instructions for call in s.calls) == len(routine)


@both
def test_bytes_and_flops(chip):
    routine = layer(chip)
    s = summarise(time_program(program_of(routine, 3), chip))
    nbytes = 512 * 1024 * 2
    assert s.hbm_read == s.hbm_write == 3 * nbytes
    assert s.pe_flops == {"bfloat16": 3 * 4 * 2 * 4 * 2 * 128 * 128 * 512}
    assert s.engine("tensor").instructions == 3 * 4 * 2 * 4
    assert [call.label for call in sorted(s.calls, key=lambda c: c.label)] == ["call 0", "call 1"]
    assert {call.label: call.calls for call in s.calls} == {"call 0": 2, "call 1": 1}


@both
def test_cast_on_the_way_counts_the_bytes_of_each_side(chip):
    b = Builder("cast", chip)
    h, x = b.param("h", (128, 256), "float32"), b.tile((128, 256), "bfloat16")
    b.dma_copy(dst=x, src=h)
    b.dma_copy(dst=h, src=x)
    s = summarise(time_routine(b.build(), chip))
    assert (s.hbm_read, s.hbm_write) == (128 * 256 * 4, 128 * 256 * 4)


@both
def test_an_empty_program_takes_the_start_and_the_end(chip):
    t = time_program(Program("empty", chip.name, (), (), (), (), ()), chip)
    assert t.total == round((chip.sync.program_start.value + chip.sync.program_end.value) * 1000)
    assert summarise(t).bound_by == "nothing"
    assert critical_time(t)["start and end"] == t.total
    assert len(critical_path(t)) == 0


@both
def test_timing_twice_uses_one_plan(chip):
    routine = layer(chip)
    assert plan(routine, chip) is plan(routine, chip)
    other = chips.with_figures(chip, {"vector.clock": 2e9})
    assert plan(routine, other) is not plan(routine, chip)


@both
def test_assumed_figures_are_weighed_by_what_they_change(chip):
    """Only assumed figures that matter are named, the heaviest first; the routine forgets the changed chips."""
    program = program_of(layer(chip), 2)
    total = time_program(program, chip).total
    found = assumptions(program, chip)
    known = dict(chips.assumed(chip))
    assert {a.path for a in found} <= set(known)
    weights = [a.leverage(total) for a in found]
    assert weights == sorted(weights, reverse=True)
    assert all(weight > 0 for weight in weights)
    assert "sync.program_end" in {a.path for a in found} or "sync.program_end" not in known
    assert list(program.routines[0]._memo["timing"]) == [chip]


@both
def test_calls_that_use_scratch_memory_are_ordered_by_it(chip):
    """The scratch bytes of one call are those of the next: it stores only when the first has read its own."""
    b = Builder("spill", chip)
    x, spill = b.param("x", (128, 512), "float32"), b.scratch("spill", (128, 512), "float32")
    first, second = b.tile((128, 512), "float32"), b.tile((128, 512), "float32")
    b.dma_copy(dst=first, src=x)
    b.dma_copy(dst=spill, src=first)
    b.dma_copy(dst=second, src=spill)
    b.dma_copy(dst=x, src=second)
    routine = b.build()
    n = len(routine)
    t = time_program(program_of(routine, 2, distinct=True, sbuf_base=(0, 8192)), chip)
    assert t.start[n + 1] >= t.done[2]
    assert t.start[2] >= t.done[1]


@both
def test_a_tensor_may_be_an_input_and_an_output_of_one_call(chip):
    """Updated in place: the next call's load waits for the store."""
    routine = layer(chip, rows=1)
    base = program_of(routine, 1)
    calls = tuple(Call(0, (0, 0), sbuf_base) for sbuf_base in (0, -(-routine.sbuf_bytes // 64) * 64))
    t = time_program(Program("in place", chip.name, base.routines, base.tensors, calls, (), ()), chip)
    n = len(routine)
    store = next(i for i in range(n) if t.ops[t.op[i]].hbm_write)
    load = next(i for i in range(n, 2 * n) if t.ops[t.op[i]].hbm_read)
    assert t.start[load] >= t.done[store]


def streams_of(chip, stores):
    """Transfers of [128, 1024] float32 on one queue, whose tiles are ready: which of them are stores."""
    b = Builder("ways", chip)
    rows = [b.param(f"h{n}", (128, 1024), "float32") for n in range(len(stores))]
    tiles = [b.tile((128, 1024), "float32") for _ in stores]
    for tile in tiles:
        b.memset(dst=tile, value=0.0, engine=Engine.VECTOR)
    for row, tile, store in zip(rows, tiles, stores):
        b.dma_copy(dst=row if store else tile, src=tile if store else row)
    return b.build()


def time_between(chip, stores):
    """From the first byte of the first to the last byte of the last transfer."""
    t = time_routine(streams_of(chip, stores), chip)
    moving = np.array([op.lanes > 0 for op in t.ops])[t.op]
    return int(t.done[moving].max() - t.completion - t.begin[moving].min())


@both
def test_dma_engines_turn_round_between_loads_and_stores(chip):
    """Alternating takes longer by half of each transfer but the first on NeuronCore-v2, by nothing on v3."""
    still = chips.with_figures(chip, {"dma.turnaround": 0.0})
    alternating, one_way = (False, True) * 4, (False,) * 8
    assert time_between(chip, one_way) == time_between(still, one_way)
    share = {op.lane_time for op in time_routine(streams_of(chip, one_way), chip).ops if op.lanes}
    assert len(share) == 1
    more = time_between(chip, alternating) - time_between(still, alternating)
    assert more == pytest.approx(7 * chip.dma.turnaround.value * share.pop(), rel=0.1, abs=10)


@both
def test_turning_round_is_hidden_where_dma_engines_are_idle(chip):
    """A store that waits for what an engine makes of a load comes long after it."""
    b = Builder("waits", chip)
    source, result = b.param("x", (128, 64), "float32"), b.param("y", (128, 64), "float32")
    tile = b.tile((128, 64), "float32")
    b.dma_copy(dst=tile, src=source)
    b.reciprocal(dst=tile, data=tile)
    b.dma_copy(dst=result, src=tile)
    routine = b.build()
    still = chips.with_figures(chip, {"dma.turnaround": 0.0})
    assert time_routine(routine, chip).total == time_routine(routine, still).total


@both
def test_the_least_interval_of_a_product_has_room_for_its_fixed_cycles(chip):
    """One column takes the documented least interval, 512 the fixed cycles of each instruction more."""
    cycle = 1e12 / chip.tensor.clock.value
    cost = {n: work_cost(Work("pe.matmul", n, 64, 128, 0, "bfloat16"), chip).busy / cycle for n in (1, 512)}
    assert cost[1] == pytest.approx(chip.tensor.min_interval.value, abs=1)
    assert cost[512] == pytest.approx(512 + chip.tensor.issue.value, abs=1)
