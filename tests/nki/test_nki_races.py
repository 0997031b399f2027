# SPDX-License-Identifier: Apache-2.0
"""What both cores of a logical core do to shared HBM without meeting: found, or no alarm."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.checks import CheckWarning, checks
from trnlab.errors import ConstraintError

X = np.random.default_rng(3).standard_normal((64, 32)).astype(np.float32)


def tile(source):
    made = nl.ndarray(source.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(made, source)
    return made


def scaled(source, factor):
    made = tile(source)
    nisa.tensor_scalar(dst=made, data=made, op0=nl.multiply, operand0=float(factor))
    return made


def run(body):
    """body(x, out, me) on two cores, on a copy of X; returns out. Races are errors."""

    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        body(x, out, nl.program_id(0))
        return out

    with checks(race="error", unwritten_output="off", uninitialised_read="off", lint="off"):
        return nki.Kernel(kernel)[2](X.copy())


def race(body):
    with pytest.raises(ConstraintError) as caught:
        run(body)
    assert caught.value.code == "TRN442"
    return caught.value


def meet(data):
    nisa.core_barrier(data, (0, 1))


# -- races -----------------------------------------------------------------------------------------------------------
def test_both_cores_write_one_place():
    error = race(lambda x, out, me: nisa.dma_copy(out, scaled(x, me + 1)))
    assert "out" in error.where.text
    assert "on core 1 and on core 0 at" in error.got


def test_one_core_reads_what_the_other_writes_without_a_barrier():
    def body(x, out, me):
        half = nl.ds(32 * me, 32)
        other = nl.ds(32 - 32 * me, 32)
        nisa.dma_copy(out[half], scaled(x[half], 2))
        nisa.dma_copy(out[half], tile(out[other]))

    race(body)


def test_a_read_before_the_other_core_writes():
    def body(x, out, me):
        t = tile(x[:32])
        if me:
            nisa.dma_copy(x[0:1], scaled(x[1:2], 3))
        nisa.dma_copy(out[nl.ds(32 * me, 32)], t)

    race(body)


def test_halves_that_overlap_by_one_column():
    race(lambda x, out, me: nisa.dma_copy(out[:, nl.ds(15 * me, 17)], scaled(x[:, nl.ds(15 * me, 17)], me + 1)))


def test_a_race_after_a_barrier_is_one_too():
    def body(x, out, me):
        nisa.dma_copy(out[nl.ds(32 * me, 32)], tile(x[nl.ds(32 * me, 32)]))
        meet(out)
        nisa.dma_copy(out[5:6], scaled(x[5:6], me))

    race(body)


def test_a_race_can_be_turned_down():
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, scaled(x, nl.program_id(0)))
        return out

    made = nki.Kernel(kernel)[2]
    with checks(race="warn", lint="off"), pytest.warns(CheckWarning, match="TRN442"):
        made(X)
    with checks(race="off", lint="off"), warnings.catch_warnings():
        warnings.simplefilter("error")
        made(X)


def test_a_race_that_changes_no_result_is_a_warning():
    """As an update of a cache at a place that the other core reads and masks: nothing orders it, nothing shows it."""

    def body(masked):
        def kernel(x, mask):
            out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
            me = nl.program_id(0)
            t = tile(x[:32])
            if me:
                nisa.dma_copy(x[0:1], scaled(x[1:2], 3))
            if masked:
                nisa.tensor_tensor(dst=t, data1=t, data2=tile(mask), op=nl.multiply)
            nisa.dma_copy(out[nl.ds(32 * me, 32)], t)
            return out

        return nki.Kernel(kernel)[2]

    mask = np.ones((32, 32), np.float32)
    mask[0] = 0
    expected = np.concatenate([X[:32] * mask] * 2)
    changed = np.concatenate([X[1:2] * 3, X[1:]])
    x = X.copy()
    with checks(race="error", lint="off"):
        with pytest.warns(CheckWarning, match="the same whichever core goes first"):
            result = body(True)(x, mask)
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(x, changed)
        with pytest.raises(ConstraintError, match="TRN442"):
            body(False)(X.copy(), mask)


# -- no alarm --------------------------------------------------------------------------------------------------------
def test_rows_columns_and_interleaved_tiles_of_their_own():
    for view in (
        lambda a, me: a[nl.ds(32 * me, 32)],
        lambda a, me: a[:, nl.ds(16 * me, 16)],
        lambda a, me: a.ap([[64, 32], [1, 32]], offset=32 * me),
        lambda a, me: a.ap([[32, 64], [2, 16]], offset=me),
    ):
        np.testing.assert_array_equal(
            run(lambda x, o, me, v=view: nisa.dma_copy(v(o, me), scaled(v(x, me), 2))), 2 * X
        )


def test_work_that_is_not_divided_writes_the_same_values():
    def body(x, out, me):
        between = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(between, scaled(x, 2))
        nisa.dma_copy(out, tile(between))

    np.testing.assert_array_equal(run(body), 2 * X)


def test_a_barrier_or_an_exchange_orders():
    def barrier(x, out, me):
        nisa.dma_copy(x[nl.ds(32 * me, 32)], scaled(x[nl.ds(32 * me, 32)], 2))
        meet(x)
        nisa.dma_copy(out[nl.ds(32 - 32 * me, 32)], tile(x[nl.ds(32 - 32 * me, 32)]))

    def exchange(x, out, me):
        mine = scaled(x[nl.ds(32 * me, 32)], 2)
        nisa.dma_copy(x[nl.ds(32 * me, 32)], mine)
        theirs = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.sendrecv(mine, theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nisa.dma_copy(out[nl.ds(32 - 32 * me, 32)], tile(x[nl.ds(32 - 32 * me, 32)]))

    for body in (barrier, exchange):
        np.testing.assert_array_equal(run(body), 2 * X)


def test_only_one_core_writes_and_reads():
    def body(x, out, me):
        if me == 0:
            nisa.dma_copy(out, scaled(x, 2))
            nisa.dma_copy(out, tile(out))

    np.testing.assert_array_equal(run(body), 2 * X)
