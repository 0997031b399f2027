# SPDX-License-Identifier: Apache-2.0
"""The machine: binding, poison, stochastic rounding, the search for NaN, orders of execution, whole programs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from functional_bench import CHIP

from trnlab.errors import Location, NumericsError, RunError
from trnlab.isa.base import Engine
from trnlab.numerics import dtypes
from trnlab.numerics.rounding import random_bits, stochastic_bfloat16
from trnlab.program.builder import Builder
from trnlab.program.routine import COL, Call, Program, ProgramTensor, Routine
from trnlab.sim.functional import Machine, RunOptions, run_program

BF16 = ml_dtypes.bfloat16


def scale_routine(factor: float = 2.0, dtype: str = "float32") -> Routine:
    b = Builder("scale", CHIP)
    x, y = b.param("x", (256, 64), "float32"), b.param("y", (256, 64), dtype)
    tiles, results = b.pool((128, 64), "float32", bufs=2), b.pool((128, 64), dtype, bufs=2)
    for r in range(0, 256, 128):
        t, u = tiles.next(), results.next()
        b.dma_copy(dst=t, src=x[r : r + 128])
        b.tensor_scalar(dst=u, data=t, operand0=factor, op0="multiply")
        b.dma_copy(dst=y[r : r + 128], src=u)
    return b.build()


def sample(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((256, 64)).astype(np.float32)


def test_call_reads_and_writes_host_arrays_in_place():
    x, y = sample(), np.zeros((256, 64), np.float32)
    machine = Machine(CHIP)
    machine.call(scale_routine(), [x, y], sbuf_base=4096)
    np.testing.assert_array_equal(y, 2 * x)
    assert (machine.executed, machine.by_meaning) == (6, 0)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ([np.zeros((256, 64), np.float32)], "takes 2 tensors"),
        ([np.zeros((256, 64), np.float32)] * 2, ""),
        ([np.zeros((255, 64), np.float32), np.zeros((256, 64), np.float32)], "does not match"),
        ([np.zeros((64, 256), np.float32).T, np.zeros((256, 64), np.float32)], "does not match"),
    ],
)
def test_arguments_must_fit_the_parameters(args, word):
    if not word:
        Machine(CHIP).call(scale_routine(), args)
        return
    with pytest.raises(RunError, match=word):
        Machine(CHIP).call(scale_routine(), args)


def test_a_routine_beyond_sbuf_is_refused():
    with pytest.raises(RunError, match="beyond SBUF"):
        Machine(CHIP).call(scale_routine(), [sample(), sample()], sbuf_base=1 << 20)


def test_fresh_memory_is_nan():
    machine = Machine(CHIP)
    assert np.isnan(machine.sbuf[:, :64].copy().view(np.float32)).all()
    assert np.isnan(machine.psum[:, :64].copy().view(BF16).astype(np.float32)).all()


# -- stochastic rounding --------------------------------------------------------------------------------------------
def rounded(
    seed: int, order: np.ndarray | None = None, dtype: str = "bfloat16", value: float | None = None
) -> np.ndarray:
    x = sample(1) if value is None else np.full((256, 64), value, np.float32)
    y = np.zeros((256, 64), dtypes.dtype(dtype).numpy)
    Machine(CHIP, RunOptions(stochastic_rounding=True, seed=seed)).call(
        scale_routine(1.0, dtype), [x, y], order=order
    )
    return y.astype(np.float32)


def test_stochastic_rounding_is_reproducible_and_depends_on_the_seed():
    np.testing.assert_array_equal(rounded(3), rounded(3))
    assert (rounded(3) != rounded(4)).mean() > 0.3


def test_stochastic_rounding_does_not_depend_on_the_order():
    np.testing.assert_array_equal(rounded(3), rounded(3, np.array([0, 3, 1, 4, 5, 2])))


def test_stochastic_rounding_is_the_documented_function():
    y = rounded(3)
    for row, instruction in ((0, 1), (128, 4)):
        bits = random_bits((3 << 32) + instruction, np.arange(128 * 64)).reshape(128, 64)
        expected = stochastic_bfloat16(sample(1)[row : row + 128], bits).astype(np.float32)
        np.testing.assert_array_equal(y[row : row + 128], expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("value", [1.0 + 2**-12, 0.3, -5.3, 3e-3])
def test_stochastic_rounding_is_unbiased(dtype, value):
    """The mean of n draws lies within five standard deviations of n draws between the two neighbours."""
    y = rounded(9, dtype=dtype, value=value)
    low, high = y.min(), y.max()
    assert low <= np.float32(value) <= high
    assert len(np.unique(y)) <= 2
    assert abs(y.mean(dtype=np.float64) - np.float32(value)) <= 5 * (high - low) / 2 / np.sqrt(y.size)


def test_values_of_the_format_are_not_disturbed():
    assert (rounded(1, value=1.5) == 1.5).all()
    assert np.isinf(rounded(1, value=np.inf)).all()
    assert np.isnan(rounded(1, value=np.nan)).all()


# -- NaN ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ["log", "sin"])
def test_the_first_instruction_that_writes_nan_is_named(op):
    """Both ways of execution report: `log` has a kernel, `sin` runs through its meaning."""
    b = Builder("bad", CHIP)
    t = b.tile((4, 8), "float32")
    b.location = Location("train.py", 10)
    b.memset(dst=t, value=-1.0 if op == "log" else 1.0)
    b.location = Location("train.py", 12, text="loss = torch.log(x)")
    if op == "sin":
        b.tensor_scalar(dst=t[:, 5:6], data=t[:, 5:6], operand0=0.0, op0="divide")
    b.activation(dst=t, data=t, op=op)
    b.location = Location("train.py", 13)
    b.activation(dst=t, data=t, op="exp")
    with pytest.raises(NumericsError) as caught:
        Machine(CHIP, RunOptions(check_nan=True)).call(b.build(), [])
    text = str(caught.value)
    assert caught.value.where.line == 12
    assert ("activation" if op == "log" else "tensor_scalar") in text
    assert "partition 0" in text
    assert f"op='{op}'" in text or op == "sin"  # the instruction itself


def test_a_memset_may_write_infinity():
    b = Builder("mask", CHIP)
    b.memset(dst=b.tile((4, 8), "float32"), value=float("-inf"))
    Machine(CHIP, RunOptions(check_nan=True)).call(b.build(), [])


def masked_scores(mask: float) -> Builder:
    """Scores of 1 that a mask is added to, then their exponential."""
    b = Builder("masked", CHIP)
    scores, added = b.tile((4, 8), "float32"), b.tile((4, 8), "float32")
    b.memset(dst=scores, value=1.0)
    b.memset(dst=added, value=mask)
    b.tensor_tensor(dst=scores, data1=scores, data2=added, op="add")
    b.activation(dst=scores, data=scores, op="exp")
    return b


@pytest.mark.parametrize("by_definition", [False, True])
def test_an_infinity_of_a_mask_is_no_fault_and_one_that_is_made_is(by_definition):
    """Both sums are written in place: what was read is looked at before it is overwritten."""
    options = RunOptions(check_nan=True, by_definition=by_definition)
    Machine(CHIP, options).call(masked_scores(float("-inf")).build(), [])
    with pytest.raises(NumericsError, match="made an infinity"):
        Machine(CHIP, options).call(masked_scores(1000.0).build(), [])
    b = masked_scores(float("-inf"))
    t = b.tile((4, 8), "float32")
    b.memset(dst=t, value=float("inf"))
    b.tensor_tensor(dst=t, data1=t, data2=t, op="subtract")
    with pytest.raises(NumericsError, match="wrote a NaN"):
        Machine(CHIP, options).call(b.build(), [])


def test_finite_programs_pass_the_check():
    y = np.zeros((256, 64), np.float32)
    Machine(CHIP, RunOptions(check_nan=True)).call(scale_routine(), [sample(), y])
    np.testing.assert_array_equal(y, 2 * sample())


# -- order ----------------------------------------------------------------------------------------------------------
def legal_order(routine: Routine, rng: np.random.Generator) -> np.ndarray:
    """A random order that keeps each engine (and DMA queue) in order and respects every dependency between slots."""
    n, first = len(routine), routine.first_operand
    before: list[set[int]] = [set() for _ in range(n)]
    last: dict[tuple[int, int], int] = {}
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    from trnlab import isa

    for i in range(n):
        lane = (int(routine.engine[i]), int(routine.queue[i]))
        if lane in last:
            before[i].add(last[lane])
        last[lane] = i
        specs = isa.BY_OPCODE[int(routine.opcode[i])].operands
        for record in routine.operands[first[i] : first[i + 1]]:
            writes = specs[record[COL["role"]]].role == "dst"
            for slot in range(record[COL["first"]], record[COL["last"]] + 1):
                before[i] |= {writer[slot]} if slot in writer else set()
                if writes:
                    before[i] |= readers.pop(slot, set())
                    writer[slot] = i
                else:
                    readers.setdefault(slot, set()).add(i)
        before[i].discard(i)
    done: set[int] = set()
    order: list[int] = []
    while len(order) < n:
        ready = [i for i in range(n) if i not in done and before[i] <= done]
        order.append(int(rng.choice(ready)))
        done.add(order[-1])
    return np.array(order)


def busy_routine() -> Routine:
    """Loads, matmuls in interleaved accumulation groups, functions, reductions and stores on all engines."""
    b = Builder("busy", CHIP)
    x, w, y = (
        b.param("x", (256, 96), "bfloat16"),
        b.param("w", (256, 64), "bfloat16"),
        b.param("y", (192, 64), "float32"),
    )
    a, c = b.pool((128, 96), "bfloat16", bufs=2), b.pool((128, 64), "bfloat16", bufs=2)
    out = b.pool((96, 64), "float32", bufs=2)
    stat = b.tile((96, 1), "float32")
    acc = [b.psum((96, 64)), b.psum((96, 64))]
    for k in range(2):
        at, ct = a.next(), c.next()
        b.dma_copy(dst=at, src=x[128 * k : 128 * k + 128])
        b.dma_copy(dst=ct, src=w[128 * k : 128 * k + 128], engine=Engine.SCALAR)
        b.nc_matmul(dst=acc[0], stationary=at, moving=ct, accumulate=k > 0, stop=k == 1)
        b.tensor_scalar(dst=ct, data=ct, operand0=0.5, op0="add")
        b.nc_matmul(dst=acc[1], stationary=at, moving=ct, accumulate=k > 0, stop=k == 1)
    for i in range(2):
        o = out.next()
        b.activation(dst=o, data=acc[i], op="gelu", reduce_res=stat)
        b.tensor_scalar(dst=o, data=o, operand0=stat, op0="subtract")
        b.affine_select(dst=o, on_true=o, pattern=((-1, 64),), channel_multiplier=1)
        b.dma_copy(dst=y[96 * i : 96 * i + 96], src=o, engine=Engine.GPSIMD)
    return b.build()


@pytest.mark.parametrize("stochastic", [False, True])
def test_any_legal_order_gives_the_same_bits(stochastic):
    routine, rng = busy_routine(), np.random.default_rng(0)
    x, w = (rng.standard_normal((256, n)).astype(BF16) for n in (96, 64))

    def result(order: np.ndarray | None) -> np.ndarray:
        y = np.zeros((192, 64), np.float32)
        Machine(CHIP, RunOptions(stochastic_rounding=stochastic)).call(routine, [x, w, y], order=order)
        return y.view(np.uint32)

    expected = result(None)
    orders = [legal_order(routine, rng) for _ in range(10)]
    assert any((order != np.arange(len(routine))).any() for order in orders)
    for order in orders:
        np.testing.assert_array_equal(result(order), expected)


# -- programs -------------------------------------------------------------------------------------------------------
def chain(calls: int) -> Program:
    """Input 0 scaled by two `calls` times through temporaries."""
    size = 256 * 64 * 4
    tensors = [ProgramTensor(0, "x", (256, 64), dtypes.float32, size, "input")]
    tensors += [
        ProgramTensor(i, f"t{i}", (256, 64), dtypes.float32, size, "temp", (i % 2) * size) for i in range(1, calls)
    ]
    tensors += [ProgramTensor(calls, "y", (256, 64), dtypes.float32, size, "output")]
    steps = tuple(Call(0, (i, i + 1), sbuf_base=512 * i) for i in range(calls))
    return Program("chain", "trn2", (scale_routine(),), tuple(tensors), steps, (0,), (calls,), hbm_bytes=2 * size)


def test_programs_run_through_temporaries():
    y = np.zeros((256, 64), np.float32)
    machine = run_program(chain(5), {0: sample(), 5: y}, CHIP)
    np.testing.assert_array_equal(y, 32 * sample())
    assert machine.executed == chain(5).num_instructions


def test_a_tensor_without_memory_is_an_error():
    with pytest.raises(RunError, match="neither bound nor placed"):
        run_program(chain(2), {0: sample()}, CHIP)


def test_constants_come_from_the_program():
    program = chain(1)
    program.constants[0] = sample(5)
    y = np.zeros((256, 64), np.float32)
    run_program(program, {1: y}, CHIP)
    np.testing.assert_array_equal(y, 2 * sample(5))
