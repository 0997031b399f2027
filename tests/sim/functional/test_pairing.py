# SPDX-License-Identifier: Apache-2.0
"""Two host threads that share a routine's instructions compute the bits of one."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.errors import RunError
from trnlab.isa import BY_OPCODE
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import bfloat16
from trnlab.program import Builder, Routine
from trnlab.program.routine import COL
from trnlab.sim.functional import Machine, RunOptions
from trnlab.sim.functional.helper_thread import NO_PACE, pace_of

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


def test_each_instruction_waits_for_what_it_depends_on_on_the_other_thread():
    """Operand by operand: what wrote or read the same tile before, wherever one of the two writes."""
    routine = rewriting_routine(20)
    pace = pace_of(routine)
    thread = {int(i): t for t, order in enumerate(pace.orders) for i in order}
    assert sorted(thread) == list(range(len(routine)))
    assert all((np.diff(order) > 0).all() for order in pace.orders)
    assert min(map(len, pace.orders)) > len(routine) // 4
    touched = [instruction_operands(routine, i) for i in range(len(routine))]
    for i, mine in enumerate(touched):
        depends = [j for j in range(i) if thread[j] != thread[i] and conflict(touched[j], mine)]
        assert pace.need[i] >= max(depends, default=-1)
        assert pace.need[i] < i


def instruction_operands(routine: Routine, i: int) -> list[tuple[int, int, bool]]:
    """Buffer and, in HBM, first row of an instruction's operands, and whether it writes them."""
    operands = routine.operands[routine.first_operand[i] : routine.first_operand[i + 1]]
    rows = operands[:, COL["start_partition"]] * operands[:, COL["is_hbm"]]
    return list(zip(operands[:, COL["buffer"]].tolist(), rows.tolist(), (operands[:, COL["role"]] == 0).tolist()))


def conflict(one: list[tuple[int, int, bool]], other: list[tuple[int, int, bool]]) -> bool:
    return any((a, b) == (c, d) and (x or y) for a, b, x in one for c, d, y in other)


def test_a_packed_operand_is_known_by_its_last_writer_on_the_other_thread():
    routine = rewriting_routine(20)
    pace = pace_of(routine)
    thread = {int(i): t for t, order in enumerate(pace.orders) for i in order}
    rewrites = [i for i in range(len(routine)) if BY_OPCODE[int(routine.opcode[i])].name == "tensor_scalar"]
    for i in range(len(routine)):
        if BY_OPCODE[int(routine.opcode[i])].name == "nc_matmul":
            others = [j for j in [1, *rewrites] if j < i and thread[j] != thread[i]]
            assert pace.writer[i, 1] == max(others, default=-1)


def test_little_work_stays_on_one_thread():
    assert pace_of(rewriting_routine(1)) is NO_PACE


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
