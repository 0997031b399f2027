# SPDX-License-Identifier: Apache-2.0
"""Registers, loops on the device and addresses known at run time, as the language's documents show them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab import isa
from trnlab.errors import ConstraintError
from trnlab.lang import registers

ROW = np.arange(8, dtype=np.float32)[None]


def whole(value: int) -> np.ndarray:
    return np.array([[value]], np.int32)


def names(kernel, *args):
    """The instructions that a kernel is recorded as."""
    routine = kernel.trace(*args).routine
    return [isa.BY_OPCODE[int(code)].name for code in routine.opcode]


def loaded(tensor):
    register = nisa.register_alloc()
    nisa.register_load(register, nl.load(tensor))
    return register


@nki.jit
def first(data, count):
    """The first `count` elements of a row, moved one by one."""
    out = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=nl.zeros(data.shape, dtype=data.dtype))
    element = nl.ndarray((1, 1), dtype=data.dtype, buffer=nl.sbuf)

    def body(i):
        nisa.dma_copy(dst=element, src=data.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
        nisa.dma_copy(dst=out.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1), src=element)

    nl.fori_loop(0, loaded(count), body)
    return out


def test_a_loop_runs_as_often_as_a_register_says():
    for count in (0, 3, 8):
        np.testing.assert_array_equal(first(ROW, whole(count)), np.where(np.arange(8) < count, ROW, 0))


def test_what_is_recorded_is_what_ran_with_the_registers_that_it_took():
    short, long = names(first, ROW, whole(1)), names(first, ROW, whole(4))
    assert len(long) > len(short)
    assert long.count("register_load") == 1
    assert long.count("register_move") == 3 + 2 * 4  # the variable of the loop, and two addresses per iteration


def test_a_trace_that_depends_on_data_is_kept_for_that_data_only():
    kernel = nki.jit(first.function)
    kernel(ROW, whole(2))
    trace = next(iter(kernel.traces.values()))
    kernel(ROW, whole(2))
    assert next(iter(kernel.traces.values())) is trace
    kernel(ROW, whole(5))
    assert len(kernel.traces) == 1
    assert next(iter(kernel.traces.values())) is not trace


@nki.jit
def summed(value, count):
    """value added `count` times, by a loop with a condition and then, once more each, by a plain while."""
    out = nl.ndarray((1, 2), dtype=nl.float32, buffer=nl.shared_hbm)
    val, acc, left = nl.load(value), nl.zeros((1, 2), dtype=nl.float32), nl.load(count)

    def body(r):
        nisa.tensor_tensor(dst=acc[:, 0:1], data1=acc[:, 0:1], data2=val, op=nl.add)
        nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
        nisa.register_load(r, left)
        return r

    nl.while_loop(loaded(count), body)
    register = loaded(count)
    while register:
        nisa.tensor_tensor(dst=acc[:, 1:2], data1=acc[:, 1:2], data2=val, op=nl.add)
        nisa.tensor_scalar(dst=left, data=left, op0=nl.add, operand0=1)
        done = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=done, data1=left, data2=nl.load(count), op=nl.subtract)
        nisa.register_load(register, done)
    nl.store(out, acc)
    return out


@pytest.mark.parametrize("count", [0, 1, 6])
def test_loops_with_a_condition(count):
    np.testing.assert_array_equal(summed(np.full((1, 1), 1.5, np.float32), whole(count)), [[1.5 * count] * 2])


@nki.jit
def blocks(data):
    """Two added to each block of rows, with bounds and offsets in registers."""
    out = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.shared_hbm)
    start, stop = nisa.register_alloc(0), nisa.register_alloc()
    nisa.register_move(stop, 64)
    for i in nl.dynamic_range(start, stop, 16):
        tile = nl.ndarray((16, 4), dtype=data.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=data.ap([[4, 16], [1, 4]], scalar_offset=i))
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=2.0)
        nisa.dma_copy(dst=out.ap([[4, 16], [1, 4]], scalar_offset=i), src=tile)
    return out


def test_bounds_that_the_kernel_itself_says_make_no_trace_depend_on_data():
    data = np.arange(256, dtype=np.float32).reshape(64, 4)
    np.testing.assert_array_equal(blocks(data), data + 2)
    assert all(trace.content is None for trace in blocks.traces.values())


@nki.jit
def selected(data, index):
    out = nl.ndarray((3, *data.shape[1:]), dtype=data.dtype, buffer=nl.shared_hbm)
    i = nl.load(index)
    nisa.dma_copy(dst=out[0], src=data.select(0, i))
    nisa.dma_copy(dst=out[1], src=data.select(0, loaded(index)))
    tile = nl.load(data.select(0, i))  # [P, F]
    column = nl.ndarray((tile.shape[0], 1), dtype=data.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=column, src=tile.select(1, i).expand_dim(1))
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.0)
    nisa.tensor_copy(
        dst=tile.ap([[tile.shape[1], tile.shape[0]], [1, 1]], scalar_offset=i, indirect_dim=1), src=column
    )
    nisa.dma_copy(dst=out[2], src=tile)
    return out


def test_one_of_a_dimension_is_selected_at_run_time_in_hbm_and_on_chip():
    data = np.random.default_rng(0).standard_normal((4, 32, 6)).astype(np.float32)
    for index in (0, 3):
        got = selected(data, whole(index))
        np.testing.assert_array_equal(got[0], data[index])
        np.testing.assert_array_equal(got[1], data[index])
        np.testing.assert_array_equal(got[2], np.where(np.arange(6) == index, data[index], 0))


@nki.jit
def around(data):
    """Registers through memory and through each other."""
    out = nl.ndarray((1, 4), dtype=nl.int32, buffer=nl.shared_hbm)
    first, second = nisa.register_alloc(-7), nisa.register_alloc(nl.load(data)[:, 1:2])
    nisa.register_store(out[:, 0:1], first)
    nisa.register_store(out[:, 1:2], second)
    nisa.register_move(first, second)
    tile = nl.ndarray([1], dtype=nl.int32, buffer=nl.sbuf)
    nisa.register_store(tile, first)
    nisa.dma_copy(dst=out[:, 2:3], src=tile)
    narrow = nl.ndarray((1, 1), dtype=nl.int8, buffer=nl.sbuf)
    nisa.register_store(narrow, second)
    third = nisa.register_alloc()
    nisa.register_load(third, narrow)
    nisa.register_store(out[:, 3:4], third)
    return out


def test_registers_are_set_copied_loaded_and_stored():
    np.testing.assert_array_equal(around(np.array([[5, 0x1234FE]], np.int32)), [[-7, 0x1234FE, 0x1234FE, -2]])


def refused(body, *args):
    with pytest.raises(ConstraintError) as caught:
        nki.jit(body)(*args)
    assert caught.value.where is not None
    assert caught.value.where.file == __file__
    return caught.value


def test_an_endless_loop_is_an_error(monkeypatch):
    monkeypatch.setattr(registers, "MAX_ROUNDS", 20)

    def bare(x):
        register = nisa.register_alloc(1)
        while register:
            pass

    def structured(x):
        nl.while_loop(nisa.register_alloc(1), lambda r: r)

    def long(x):
        nl.fori_loop(0, loaded(x), lambda i: None)

    assert refused(bare, ROW).code == refused(structured, ROW).code == "TRN451"
    assert refused(long, whole(2**30)).code == "TRN451"


def test_misused_registers_are_refused():
    def written(x):
        for i in nl.dynamic_range(3):
            nisa.register_move(i, 0)

    def computed(x):
        for i in nl.dynamic_range(3):
            i * 2

    def compared(x):
        return x if nisa.register_alloc(1) == 1 else None

    def no_step(x):
        nl.fori_loop(0, 4, lambda i: None, step=0)

    def ordered(x):
        with nl.no_reorder():
            nl.fori_loop(0, 4, lambda i: None)

    def twice(x):
        x.select(0, nl.load(x)).select(0, nl.load(x))

    def outside(x):
        nl.load(x.select(1, nl.load(x[:, 7:8])))

    def returning(x):
        nl.fori_loop(0, 4, lambda i: i)

    assert refused(written, ROW).code == refused(computed, ROW).code == refused(compared, ROW).code == "TRN450"
    for body in (no_step, ordered, returning):
        assert refused(body, ROW).code == "TRN411"
    index = np.full((1, 8), 8, np.int32)
    assert refused(outside, index).code == "TRN410"
    assert refused(outside, index).got == 8
    assert refused(twice, whole(0)).code == "TRN411"


def test_a_run_time_offset_outside_may_be_skipped():
    @nki.jit
    def kernel(data, index):
        out = nl.ndarray((1, 4), dtype=data.dtype, buffer=nl.shared_hbm)
        tile = nl.zeros((1, 4), dtype=data.dtype)
        nisa.dma_copy(dst=tile, src=data.select(0, nl.load(index)).reshape((1, 4)), oob_mode=nisa.oob_mode.skip)
        nl.store(out, tile)
        return out

    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(kernel(data, whole(1)), data[1:2])
    for outside in (-1, 3):
        np.testing.assert_array_equal(kernel(data, whole(outside)), np.zeros((1, 4)))


@nki.jit
def between(x, silent=False):
    """Each core counts as far as the other said, twice."""
    me = nl.program_id(0)
    out = nl.ndarray(x.shape, dtype=nl.int32, buffer=nl.shared_hbm)
    mine, got, acc = nl.load(x[me : me + 1]), nl.load(x[me : me + 1]), nl.zeros((1, 2), dtype=nl.int32)
    other = {"send_to_rank": 1 - me, "recv_from_rank": 1 - me}
    nisa.sendrecv(src=mine, dst=got, pipe_id=0, **other)
    for _ in nl.dynamic_range(nisa.register_alloc(got[:, 0:1])):
        nisa.tensor_tensor(dst=acc, data1=acc, data2=mine, op=nl.add)
    if me == 0 or not silent:
        nisa.sendrecv(src=acc, dst=got, pipe_id=1, **other)
    for _ in nl.dynamic_range(nisa.register_alloc(got[:, 1:2])):
        nisa.tensor_scalar(dst=acc, data=acc, op0=nl.add, operand0=1)
    nisa.dma_copy(dst=out[me : me + 1], src=acc)
    return out


def test_values_that_come_from_the_other_core_are_known_too():
    x = np.array([[2, 3], [3, 5]], np.int32)
    sums = x * x[::-1, :1]
    np.testing.assert_array_equal(between[2](x), sums + sums[::-1, 1:])


def test_a_core_that_waits_for_nobody_while_it_is_recorded_is_an_error():
    with pytest.raises(ConstraintError) as caught:
        between[2](np.array([[2, 3], [3, 5]], np.int32), silent=True)
    assert caught.value.code == "TRN440"


def test_what_a_core_raises_reaches_the_caller_and_no_thread_stays():
    @nki.jit
    def kernel(x, who):
        me = nl.program_id(0)
        mine, got = nl.load(x[me : me + 1]), nl.load(x[me : me + 1])
        other = {"send_to_rank": 1 - me, "recv_from_rank": 1 - me}
        nisa.sendrecv(src=mine, dst=got, pipe_id=0, **other)
        register = nisa.register_alloc(got[:, 0:1])
        if me == who:
            raise ValueError(f"core {me}")
        for _ in nl.dynamic_range(register):
            nisa.sendrecv(src=mine, dst=got, pipe_id=1, **other)
        int(nisa.register_alloc(got[:, 0:1]))

    before = threading.active_count()
    for who in (0, 1):
        with pytest.raises(ValueError, match=f"core {who}"):
            kernel[2](np.array([[2, 3], [3, 5]], np.int32), who)
    assert threading.active_count() == before
    with pytest.raises(ConstraintError) as caught:  # two rounds on one core, three on the other
        kernel[2](np.array([[2, 3], [3, 5]], np.int32), 2)
    assert caught.value.code == "TRN440"
    assert threading.active_count() == before
