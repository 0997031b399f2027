# SPDX-License-Identifier: Apache-2.0
"""Laws of cost: faster hardware is never slower, more work never shorter, and nothing beats the estimate."""

from __future__ import annotations

import random

import numpy as np
import pytest
from streams import layer, program_of, random_routine

from trnlab import chips
from trnlab.isa.base import Engine, Work
from trnlab.isa.costs import COST_CLASSES
from trnlab.program import Builder
from trnlab.sim.timing import dma_cost, estimate, layout, time_program, time_routine, work_cost
from trnlab.sim.timing.plan import forget

CHIPS = [chips.get(name) for name in ("trn1", "trn2", "trn3")]
every = pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
# What is better of a figure in this unit: more of a rate, less of a time or of what takes time.
BETTER = {
    "Hz": 1.7,
    "byte/s": 1.7,
    "column/cycle": 1.7,
    "ns": 0.6,
    "cycle": 0.6,
    "cycle/element": 0.6,
    "pass": 0.5,
}
SPEEDS = ("dma.read_rate", "dma.cast_rate", "sbuf.wide_stride_rate")  # ratios that are rates
NOT_RATES = ("tensor.rate_window",)


def improvements(chip):
    """Every figure of the chip that is a rate or a time, and its better value."""
    for path, figure in chips.figures(chip):
        factor = 1.7 if path in SPEEDS else BETTER.get(figure.unit)
        if factor is not None and figure.value and path not in NOT_RATES:
            yield path, figure.value * factor


def tiles_of_the_array(chip, seed):
    """Matmuls on parts of the array, between others on all of it."""
    rng = random.Random(seed)
    b = Builder("tiles", chip)
    moving, small, weights = (b.tile((128, n), "bfloat16") for n in (512, 64, 128))
    for tile in (moving, small, weights):
        b.memset(dst=tile, value=1.0, engine=rng.choice((Engine.VECTOR, Engine.GPSIMD)))
    for _ in range(24):
        if rng.random() < 0.6:
            row, column = 64 * rng.randrange(2), 64 * rng.randrange(2)
            b.nc_matmul(
                dst=b.psum((128, 512))[column : column + 64],
                stationary=small[row : row + 64],
                moving=moving[row : row + 64],
                tile_position=(row, column),
                tile_size=(64, 64),
            )
        else:
            b.nc_matmul(dst=b.psum((128, 512)), stationary=weights, moving=moving)
    return b.build()


@every
@pytest.mark.parametrize("seed", range(3))
def test_a_better_figure_never_lengthens_a_program_whose_order_is_fixed(chip, seed):
    """Each rate and each time of the chip improved in turn, over random streams on all engines, queues and ports."""
    routines = [random_routine(chip, seed), layer(chip, rows=2), tiles_of_the_array(chip, seed)]
    for routine in routines:
        before = time_routine(routine, chip, arbitration=layout.PROGRAM_ORDER)
        for path, value in improvements(chip):
            better = chips.with_figures(chip, {path: value})
            after = time_routine(routine, better, arbitration=layout.PROGRAM_ORDER)
            forget(routine, better)
            assert after.total <= before.total, path
            slack = 2 + len(routine) // 8  # rounding to picoseconds
            assert (after.done <= before.done + slack).all(), path


@every
@pytest.mark.parametrize("seed", range(6))
def test_the_estimate_is_never_above_the_timed_result(chip, seed):
    """Instruction by instruction, and for the whole; whoever arbitrates."""
    for routine in (random_routine(chip, seed), layer(chip), tiles_of_the_array(chip, seed)):
        free = time_routine(routine, chip, arbitration=layout.NO_CONTENTION)
        program = program_of(routine, 2)
        least = estimate(program, chip)
        for arbitration in (layout.READY_FIRST, layout.PROGRAM_ORDER):
            timed = time_routine(routine, chip, arbitration=arbitration)
            assert (free.done <= timed.done).all()
            assert least <= time_program(program, chip, arbitration=arbitration).total


def test_the_estimate_is_not_trivial():
    """Of a stream that is bound by one engine it says most of the time."""
    chip = chips.get("trn2")
    b = Builder("adds", chip)
    tiles = [b.tile((128, 4096), "float32") for _ in range(3)]
    for tile in tiles:
        b.memset(dst=tile, value=1.0, engine=Engine.VECTOR)
    for _ in range(20):
        b.tensor_tensor(dst=tiles[2], data1=tiles[0], data2=tiles[1], op="add", engine=Engine.VECTOR)
    program = program_of(b.build(), 1)
    total = time_program(program, chip).total
    assert 0.95 * total < estimate(program, chip) <= total


def works(seed, count=400):
    """Random amounts of work of every cost class."""
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.choice(sorted(k for k in COST_CLASSES if not k.startswith("collective")))
        item = rng.choice((1, 2, 4))
        dtype = rng.choice({1: ("float8_e4m3", "uint8"), 2: ("bfloat16", "float16"), 4: ("float32", "int32")}[item])
        n, m, k = rng.choice((1, 2, 3, 64, 500, 512)), rng.choice((1, 2, 16, 17, 128)), rng.choice((1, 16, 128))
        psum, strided, wide = rng.choice((0, 0, 2, 4)), rng.random() < 0.3, rng.random() < 0.2
        yield Work(kind, n, m, k, item, dtype, psum, strided, n * m * item, 0, wide)


@every
@pytest.mark.parametrize("seed", range(3))
def test_twice_the_work_in_one_instruction_never_takes_less_time(chip, seed):
    """Twice the elements, twice the descriptors or their bytes, twice the stationary columns: of every cost class."""
    for work in works(seed):
        for field in ("n", "m") if work.kind.startswith(("dma", "pe")) else ("n",):
            twice = Work(**{**{f: getattr(work, f) for f in work.__slots__}, field: 2 * getattr(work, field)})
            if work.kind.startswith("dma"):
                for sides in ((True, False), (False, True), (False, False), (True, True)):
                    a, b = (dma_cost(w, chip, Engine.SYNC, from_hbm=sides[0], to_hbm=sides[1]) for w in (work, twice))
                    assert b.share + b.lanes * b.stagger >= a.share + a.lanes * a.stagger, (work, field, sides)
                    assert b.start == a.start
                    assert b.trigger >= a.trigger, "more engines take part, if anything"
            else:
                a, b = work_cost(work, chip), work_cost(twice, chip)
                assert b.busy >= a.busy, (work, field)
                assert b.busy + b.latency + b.exposed >= a.busy + a.latency + a.exposed, (work, field)


@every
@pytest.mark.parametrize("seed", range(3))
def test_the_time_of_dma_engines_is_that_of_their_transfers(chip, seed):
    """No lane is busier than the run is long, and what lanes do adds up to what transfers are made of."""
    t = time_routine(random_routine(chip, seed, count=150), chip)
    busy = np.zeros(16, np.int64)
    for op in (t.ops[o] for o in t.op):
        busy[op.first_lane : op.first_lane + op.lanes] += op.lane_time
    assert busy.sum() == sum(t.ops[o].lanes * t.ops[o].lane_time for o in t.op)
    assert busy.max() <= t.total - t.startup


def test_parts_of_the_array_run_side_by_side():
    """Four quarters of the array take the time of one; two matmuls on the same quarter take turns."""
    chip = chips.get("trn2")

    def took(places):
        b = Builder("quarters", chip)
        moving, small = b.tile((128, 512), "bfloat16"), b.tile((128, 64), "bfloat16")
        for tile in (moving, small):
            b.memset(dst=tile, value=1.0)
        accs = [b.psum((128, 512)) for _ in places]
        for acc, (row, column) in zip(accs, places):
            b.nc_matmul(
                dst=acc[column : column + 64],
                stationary=small[row : row + 64],
                moving=moving[row : row + 64],
                tile_position=(row, column),
                tile_size=(64, 64),
            )
        t = time_routine(b.build(), chip)
        return int(t.done.max() - t.start[2])

    one, four = took([(0, 0)]), took([(0, 0), (0, 64), (64, 0), (64, 64)])
    same = took([(0, 0)] * 4)
    assert one < four < 1.6 * one
    assert same > 2.3 * one
