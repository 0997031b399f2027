# SPDX-License-Identifier: Apache-2.0
"""Programs timed with a cost taken out: what nobody waits for gains nothing, what everybody waits for all of it."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.program import Builder
from trnlab.program.routine import Call, Program, ProgramTensor
from trnlab.sim.timing import layout, time_program, whatif
from trnlab.sim.timing.plan import TimingPlan

CHIP = chips.get("trn2")


def program(copies: int = 1, turns: int = 12) -> Program:
    """A tile is loaded, and VectorE and ScalarE go over it, in turn over so many tiles."""
    b = Builder("loop", CHIP)
    x, y = (b.param(name, (128, 2048), "float32") for name in "xy")
    tiles = [b.tile((128, 2048), "float32", name=f"tile{i}") for i in range(copies)]
    for i in range(turns):
        tile = tiles[i % copies]
        b.dma_copy(dst=tile, src=x)
        b.tensor_copy(dst=tile, src=tile)
        b.activation(dst=tile, data=tile, op="exp")
        b.dma_copy(dst=y, src=tile, queue=1)
    routine = b.build()
    tensors = tuple(
        ProgramTensor(i, b.name, b.shape, b.dtype, b.nbytes, "input") for i, b in enumerate(routine.buffers[:2])
    )
    return Program("loop", CHIP.name, (routine,), tensors, (Call(0, (0, 1)), Call(0, (0, 1))), (0, 1), ())


def everything(routine: object, p: TimingPlan) -> whatif.Mask:
    return np.ones(len(p.row_of), np.bool_)


def test_nothing_taken_out_is_the_same_time() -> None:
    p = program()
    total = time_program(p, CHIP).total
    assert whatif.retime(p, CHIP) == total
    assert (
        whatif.retime(p, CHIP, whatif.without(lambda r, p: np.zeros(len(p.row_of), np.bool_), whatif.WORK)) == total
    )
    assert whatif.retime_with(p, CHIP, {}) == total
    assert whatif.retime_with(p, CHIP, {"a.figure.that.no.chip.has": 0.0}) == total
    same, edit = whatif.more_copies(p, CHIP, 1)
    assert whatif.retime(same, CHIP, edit) == total
    assert whatif.retime(whatif.split_calls(p, [True, False]), CHIP) == total
    assert whatif.with_dtype(p, "pe.", "float32", "bfloat16") == p


def test_without_any_work_only_signals_and_both_ends_are_left() -> None:
    p = program()
    alone = whatif.retime(p, CHIP, whatif.without(everything, whatif.WORK))
    nothing = time_program(Program("none", CHIP.name, (), (), (), (), ()), CHIP).total
    semaphore = round(CHIP.sync.semaphore.value * 1000)
    gpsimd = round(CHIP.sync.gpsimd_start.value * 1000)
    assert nothing <= alone <= nothing + gpsimd + p.num_instructions * semaphore


def test_work_that_nobody_waits_for_gains_nothing() -> None:
    b = Builder("aside", CHIP)
    long, short = b.tile((128, 4096), "float32"), b.tile((128, 16), "float32")
    b.memset(dst=long, value=0.0, engine=whatif_engine("vector"))
    b.memset(dst=short, value=0.0, engine=whatif_engine("gpsimd"))
    b.tensor_copy(dst=long, src=long)
    p = Program("aside", CHIP.name, (b.build(),), (), (Call(0, ()),), (), ())
    total = time_program(p, CHIP).total

    def of(code: int) -> whatif.Choose:
        return lambda routine, plan: plan.rows[plan.row_of, layout.ENGINE] == code

    assert whatif.retime(p, CHIP, whatif.without(of(3), whatif.WORK)) == total
    assert whatif.retime(p, CHIP, whatif.without(of(1), whatif.WORK)) < total


def whatif_engine(name: str) -> object:
    from trnlab.isa.base import Engine

    return Engine[name.upper()]


@pytest.mark.parametrize("copies", [2, 3])
def test_more_copies_of_a_tile_are_what_writing_them_would_bring(copies: int) -> None:
    """One tile, retimed as if it were several, takes as long as a loop that takes turns over so many."""
    changed, edit = whatif.more_copies(program(1), CHIP, copies)
    written = time_program(program(copies), CHIP).total
    assert written < time_program(program(1), CHIP).total
    assert whatif.retime(changed, CHIP, edit) == pytest.approx(written, rel=0.02)


def test_a_call_of_its_own_can_be_free() -> None:
    """Half of the work gone from one of two equal calls: between the whole and the half."""
    p = program()
    split = whatif.split_calls(p, [True, False])
    second = split.routines[1]
    total = time_program(p, CHIP).total
    alone = time_program(Program("one", CHIP.name, p.routines, p.tensors, p.calls[:1], (0, 1), ()), CHIP).total
    free = whatif.retime(
        split, CHIP, whatif.without(lambda r, plan: np.full(len(plan.row_of), r is second), whatif.WORK)
    )
    assert alone <= free < total


def test_a_faster_format_is_as_if_it_were_written() -> None:
    def product(dtype: str) -> Program:
        b = Builder("product", CHIP)
        x, out = b.tile((128, 512), dtype), b.psum((128, 512))
        b.memset(dst=x, value=1.0)
        for _ in range(20):
            b.nc_matmul(dst=out, stationary=x[:, :128], moving=x)
        return Program("product", CHIP.name, (b.build(),), (), (Call(0, ()),), (), ())

    slow, fast = product("float32"), product("bfloat16")
    changed = whatif.retime(whatif.with_dtype(slow, "pe.", "float32", "bfloat16"), CHIP)
    times = [time_program(p, CHIP) for p in (slow, fast)]
    memset = [int(t.done[0] - t.start[0]) for t in times]
    assert changed - memset[0] == pytest.approx(times[1].total - memset[1], abs=100_000)
    assert changed - times[0].startup < (times[0].total - times[0].startup) / 2
