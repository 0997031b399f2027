# SPDX-License-Identifier: Apache-2.0
"""Two host threads compute the bits of one: the PE array's instructions run beside the others."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.errors import RunError
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import bfloat16
from trnlab.program import Builder, Routine
from trnlab.sim.functional import Machine, RunOptions
from trnlab.sim.functional.pairing import NO_PACE, pace_of

CHIP = chips.get("trn1")
BF16 = bfloat16.numpy


def rewriting_routine(steps: int) -> Routine:
    """Matmuls whose moving operand is rewritten in place between them, by another engine, through one buffer."""
    b = Builder("rewriting", CHIP)
    x, y = b.param("x", (128, 64), "bfloat16"), b.param("y", (steps * 64, 64), "float32")
    still, moving = b.tile((128, 64), "bfloat16"), b.tile((128, 64), "bfloat16")
    out = b.pool((64, 64), "float32", bufs=2)
    b.dma_copy(dst=still, src=x)
    b.dma_copy(dst=moving, src=x)
    for i in range(steps):
        acc = b.psum((64, 64))
        b.nc_matmul(dst=acc, stationary=still, moving=moving)
        b.tensor_scalar(dst=moving, data=moving, operand0=0.75, op0="multiply", operand1=0.125, op1="add")
        tile = out.next()
        b.activation(dst=tile, data=acc, op="tanh", scale=1 / 16)
        b.dma_copy(dst=y[64 * i : 64 * i + 64], src=tile, engine=Engine.GPSIMD)
    return b.build()


def run(routine: Routine, threads: int, *, stochastic: bool = False) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((128, 64)).astype(BF16)
    y = np.zeros((routine.buffers[routine.params[1]].shape[0], 64), np.float32)
    Machine(CHIP, RunOptions(threads=threads, stochastic_rounding=stochastic)).call(routine, [x, y])
    return y.view(np.uint32)


@pytest.mark.parametrize("stochastic", [False, True])
def test_two_threads_give_the_bits_of_one(stochastic):
    routine = rewriting_routine(200)
    assert pace_of(routine) is not NO_PACE
    expected = run(routine, 1, stochastic=stochastic)
    for _ in range(5):
        np.testing.assert_array_equal(run(routine, 2, stochastic=stochastic), expected)


def test_each_matmul_waits_for_what_it_reads_and_each_rewrite_for_what_is_read():
    routine = rewriting_routine(20)
    pace = pace_of(routine)
    matmuls, rest = pace.orders
    assert set(matmuls) | set(rest) == set(range(len(routine)))
    assert (pace.need < np.arange(len(routine))).all()
    assert (pace.need[matmuls] >= 0).all()
    rewrites = matmuls + 1  # the instruction behind each matmul rewrites what it read
    np.testing.assert_array_equal(pace.need[rewrites], matmuls)
    assert len(set(pace.writer[matmuls, 1])) == len(matmuls)  # every matmul sees a new moving operand
    assert len(set(pace.writer[matmuls, 0])) == 1  # and the same stationary one


def test_a_failure_on_one_thread_ends_the_other():
    b = Builder("failing", CHIP)
    table, ids = b.param("table", (16, 64), "bfloat16"), b.param("ids", (128, 1), "int32")
    index, rows = b.tile((128, 1), "int32"), b.tile((128, 64), "bfloat16")
    b.dma_copy(dst=index, src=ids)
    b.dma_copy(dst=rows, src=table, index=index, engine=Engine.GPSIMD)
    for _ in range(20):
        b.nc_matmul(dst=b.psum((64, 64)), stationary=rows, moving=rows)
    machine = Machine(CHIP, RunOptions(threads=2))
    for _ in range(3):
        with pytest.raises(RunError, match="a row that does not exist"):
            machine.call(b.build(), [np.zeros((16, 64), BF16), np.full((128, 1), 99, np.int32)])


def test_routines_without_matmuls_need_no_second_thread():
    b = Builder("plain", CHIP)
    tile = b.tile((128, 8), "float32")
    for _ in range(20):
        b.memset(dst=tile, value=1.0)
    assert pace_of(b.build()) is NO_PACE
