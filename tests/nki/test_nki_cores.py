# SPDX-License-Identifier: Apache-2.0
"""Kernels on the two cores of a logical core: numbers, shared memory, meetings that cannot happen, launch grids."""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab import chips
from trnlab.checks import checks
from trnlab.errors import ConstraintError, UsageError
from trnlab.nki.tracing.launch import Spread, one_per_core, programs

X = np.random.default_rng(5).standard_normal((2, 64, 32)).astype(np.float32)


def tile(shape, source=None):
    made = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    if source is not None:
        nisa.dma_copy(made, source)
    return made


@nki.jit
def halves(x):
    """Each core doubles its half, or one core does both; the other half is read after a barrier."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    crossed = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    cores, me = nl.num_programs(), nl.program_id(0)
    for i in range(me, 2, cores):
        t = tile(x.shape[1:], x[i])
        nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.add)
        nisa.dma_copy(out[i], t)
    nisa.core_barrier(out, tuple(range(cores)))
    for i in range(me, 2, cores):
        nisa.dma_copy(crossed[i], tile(x.shape[1:], out[1 - i]))
    return out, crossed


@pytest.mark.parametrize("kernel", [halves, halves[1], halves[2], halves[(2,)]])
def test_one_core_and_two_give_the_same(kernel):
    out, crossed = kernel(X)
    np.testing.assert_array_equal(out, 2 * X)
    np.testing.assert_array_equal(crossed, 2 * X[::-1])


@nki.jit
def swap(x, dma_engine=nisa.dma_engine.dma):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    mine = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(mine, x[me])
    theirs = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
    nisa.sendrecv(mine, theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=3, dma_engine=dma_engine)
    nisa.dma_copy(out[me], theirs)
    return out


@pytest.mark.parametrize("engine", list(nisa.dma_engine))
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int32])
def test_sendrecv_moves_bits_both_ways(engine, dtype):
    x = np.random.default_rng(1).integers(0, 256, (2, 16, 24 * np.dtype(dtype).itemsize), np.uint8).view(dtype)
    assert swap[2](x, dma_engine=engine).tobytes() == x[::-1].tobytes()


def test_private_memory_and_on_chip_memory_are_each_cores_own():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        scratch = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.private_hbm)
        me = nl.program_id(0)
        nisa.dma_copy(scratch, tile(x.shape[1:], x[me]))
        nisa.core_barrier(out, (0, 1))
        nisa.dma_copy(out[me], tile(x.shape[1:], scratch))
        return out

    np.testing.assert_array_equal(kernel[2](X), X)


def test_arguments_are_shared_and_written_in_place():
    @nki.jit
    def kernel(x):
        t = tile(x.shape[1:], x[nl.program_id(0)])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
        nisa.dma_copy(x[nl.program_id(0)], t)
        return x

    x = X.copy()
    np.testing.assert_array_equal(kernel[2](x), X + 1)
    np.testing.assert_array_equal(x, X + 1)


def test_a_value_that_the_other_core_sends_decides_a_loop():
    """Cores are recorded together where one needs what the other sends, and recorded anew for other data."""

    @nki.jit
    def kernel(x, rounds):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        mine, theirs = (nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(mine, rounds[me : me + 1])
        nisa.sendrecv(mine, theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        t = tile(x.shape[1:], x[me])
        for _ in nl.dynamic_range(0, nisa.register_alloc(theirs)):
            nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
        nisa.dma_copy(out[me], t)
        return out

    for rounds in ([[3], [5]], [[7], [0]]):
        got = kernel[2](np.zeros((2, 4, 4), np.float32), np.array(rounds, np.int32))
        assert got[:, 0, 0].tolist() == [rounds[1][0], rounds[0][0]]


# -- meetings that cannot happen -----------------------------------------------------------------------------------
def refusal(kernel, *args):
    with pytest.raises(ConstraintError) as caught:
        kernel(*args)
    return caught.value


def test_a_barrier_that_one_core_skips_names_both():
    @nki.jit
    def kernel(x):
        if nl.program_id(0) == 0:
            nisa.core_barrier(x, (0, 1))
        return x

    error = refusal(kernel[2], X)
    assert error.code == "TRN440"
    assert "core 0 waits for core 1" in error.what
    assert "core_barrier(x, (0, 1))" in error.where.text
    assert "core 1 reached the end" in error.got


def test_different_counts_of_barriers_tell_where_the_shorter_core_was_last():
    @nki.jit
    def kernel(x):
        for _ in range(2 + nl.program_id(0)):
            nisa.core_barrier(x, (0, 1))
        return x

    error = refusal(kernel[2], X)
    assert error.code == "TRN440"
    assert "core 1 waits for core 0" in error.what
    assert "after 2 meetings, the last core_barrier" in error.got


def test_crossed_pipes_name_the_line_where_the_other_waits():
    @nki.jit
    def kernel(x):
        t, r = tile(x.shape[1:], x[0]), tile(x.shape[1:])
        other = 1 - nl.program_id(0)
        nisa.sendrecv(t, r, send_to_rank=other, recv_from_rank=other, pipe_id=other)
        return x

    error = refusal(kernel[2], X)
    assert error.code == "TRN440"
    assert "core 1 waits at sendrecv" in error.got
    assert "pipe_id=0" in error.got


def test_sides_of_different_sizes_are_both_told():
    @nki.jit
    def kernel(x):
        me = nl.program_id(0)
        t, r = tile((64, 32), x[0]), tile((64, 32))
        wide = slice(0, 16 + 16 * me)
        nisa.sendrecv(t[:, wide], r[:, wide], send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        return x

    error = refusal(kernel[2], X)
    assert error.code == "TRN441"
    assert error.limit == "core 0 has room for dst float32 [64, 16]"
    assert "core 1 sends src float32 [64, 32], at" in error.got


def test_a_core_that_receives_from_one_that_sends_elsewhere_is_told():
    @nki.jit
    def kernel(x):
        t, r = tile((64, 32), x[0]), tile((64, 32))
        me = nl.program_id(0)
        nisa.sendrecv(t, r, send_to_rank=1, recv_from_rank=1 - me, pipe_id=0)
        return x

    error = refusal(kernel[2], X)
    assert error.code == "TRN441"
    assert error.limit == "core 0 receives from core 1"
    assert "core 1 sends to core 1, at" in error.got


@pytest.mark.parametrize("kernel", [swap, swap[1]])
def test_without_a_second_core_nobody_answers(kernel):
    error = refusal(kernel, X[:1])
    assert error.code == "TRN440"
    assert "runs without core 1" in error.got
    assert "kernel[2]" in error.remedy


# -- launch grids ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("grid", [0, 3, 8, (2, 2), (4, 1)])
def test_a_launch_is_one_core_or_two(grid):
    with pytest.raises(UsageError) as caught:
        halves[grid]
    assert caught.value.code == "TRN114"


def test_a_chip_without_logical_cores_runs_one():
    first = nki.Kernel(halves.function, chip=chips.get("trn1"))
    with pytest.raises(UsageError, match="cannot run a kernel on 2 cores"):
        first[2](X)


def test_the_grid_is_told_to_each_core():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 1, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        t = tile((1, 4))
        for i, value in enumerate((nl.program_id(0), nl.num_programs(), nl.program_ndim(), nl.num_programs(axes=0))):
            nisa.memset(t[:, i : i + 1], float(value))
        nisa.dma_copy(out[nl.program_id(0)], t)
        return out

    np.testing.assert_array_equal(kernel[2](X)[:, 0], [[0, 2, 1, 2], [1, 2, 1, 2]])
    with checks(unwritten_output="off"):
        assert kernel(X)[0, 0].tolist() == [0, 1, 0, 1]
    assert one_per_core(2).cores == (((0,),), ((1,),))


def test_programs_of_the_old_dialect_spread_as_its_documentation_says():
    """The three examples of the launch grid page: by default one core, blocks, and turns."""
    everything = ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1))
    assert programs((4, 2)).cores == (everything,)
    assert programs((Spread(4, 2), 2)).cores == (everything[:4], everything[4:])
    assert programs((Spread(4, 2, in_turns=True), 2)).cores == (
        ((0, 0), (0, 1), (2, 0), (2, 1)),
        ((1, 0), (1, 1), (3, 0), (3, 1)),
    )
    with pytest.raises(UsageError):
        programs((Spread(3, 2), 2))
    with pytest.raises(UsageError):
        programs((Spread(2, 2), Spread(2, 2)))
