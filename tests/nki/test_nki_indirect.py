# SPDX-License-Identifier: Apache-2.0
"""Columns picked by an index, `.indirect()`, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.errors import ConstraintError, RunError

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def trn3(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")


def snake(offsets: np.ndarray, group: int, columns: int) -> np.ndarray:
    """[groups, n] offsets as the index that holds them: offset i of a group at [i % group, i // group]."""
    out = np.zeros((len(offsets), group, columns), np.int32)
    for i in range(offsets.shape[1]):
        out[:, i % group, i // group] = offsets[:, i]
    return out.reshape(-1, columns)


def picked(x: np.ndarray, offsets: np.ndarray, group: int) -> np.ndarray:
    return np.take_along_axis(x, np.repeat(offsets, group, 0)[: len(x)], 1)


@nki.jit
def gathered(x, index, count, engine):
    out = nl.ndarray((x.shape[0], count), dtype=x.dtype, buffer=nl.shared_hbm)
    tile, chosen = nl.load(x), nl.load(index)
    got = nl.ndarray((x.shape[0], count), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=got, src=tile.indirect(chosen, count), engine=engine)
    nl.store(out, got)
    return out


@pytest.mark.parametrize("engine", [nisa.engine.vector, nisa.engine.scalar])
@pytest.mark.parametrize("count", [5, 16, 20])
def test_columns_are_gathered_per_group_of_partitions(count, engine):
    x = RNG.standard_normal((64, 40)).astype(np.float32)
    offsets = RNG.integers(0, 40, (4, count))
    np.testing.assert_array_equal(gathered(x, snake(offsets, 16, 2), count, engine), picked(x, offsets, 16))


def test_all_offsets_of_one_group_are_the_default():
    @nki.jit
    def kernel(x, index):
        out = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.shared_hbm)
        got = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(
            dst=got, data1=nl.load(x).indirect(nl.load(index)), data2=nl.ones((16, 32), dtype=nl.float32), op=nl.add
        )
        nl.store(out, got)
        return out

    x, offsets = RNG.standard_normal((16, 40)).astype(np.float32), RNG.integers(0, 40, (1, 32))
    np.testing.assert_array_equal(kernel(x, snake(offsets, 16, 2)), picked(x, offsets, 16) + 1)


def test_columns_are_scattered_and_the_others_stay():
    @nki.jit
    def kernel(x, index):
        out = nl.ndarray((32, 40), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.full((32, 40), 9.0, dtype=nl.float32)
        nisa.tensor_scalar(dst=tile.indirect(nl.load(index), 6), data=nl.load(x), op0=nl.multiply, operand0=2.0)
        nl.store(out, tile)
        return out

    x = RNG.standard_normal((32, 6)).astype(np.float32)
    offsets = np.stack([RNG.permutation(40)[:6] for _ in range(2)])
    expected = np.full((32, 40), 9, np.float32)
    np.put_along_axis(expected, np.repeat(offsets, 16, 0), 2 * x, 1)
    np.testing.assert_array_equal(kernel(x, snake(offsets, 16, 1)), expected)


def test_matmul_and_reduction_of_picked_columns():
    @nki.jit
    def kernel(a, b, index, rows):
        out = nl.ndarray((8, 12), dtype=nl.float32, buffer=nl.shared_hbm)
        left, right, acc = nl.load(a), nl.load(b), nl.ndarray((8, 12), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=left, moving=right.indirect(nl.load(index), 12))
        nl.store(out, nl.copy(acc))
        sums = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.tensor_reduce(dst=sums, op=nl.add, data=right.indirect(nl.load(rows), 12), axis=1)
        nl.store(total, sums)
        return out, total

    a = RNG.standard_normal((64, 8)).astype(ml_dtypes.bfloat16)
    b = RNG.standard_normal((64, 30)).astype(ml_dtypes.bfloat16)
    offsets, rows = RNG.integers(0, 30, (2, 12)), RNG.integers(0, 30, (4, 12))
    product, total = kernel(a, b, snake(offsets, 32, 1), snake(rows, 16, 1))
    exact = a.astype(np.float64).T @ picked(b.astype(np.float64), offsets, 32)
    np.testing.assert_allclose(product, exact, rtol=1e-5, atol=1e-5)
    sums = picked(b.astype(np.float64), rows, 16).sum(1, keepdims=True)
    np.testing.assert_allclose(total, sums, rtol=1e-5, atol=1e-5)


def test_wrong_indices_are_refused(monkeypatch):
    x, index = np.ones((32, 8), np.float32), np.zeros((32, 1), np.int32)

    def too_few(x, index):
        got = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=got, src=nl.load(x).indirect(nl.load(index)))

    def not_picked(x, index):
        tile = nl.load(x)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=nl.load(x).indirect(nl.load(index), 8), op=nl.add)

    def in_hbm(x, index):
        x.indirect(nl.load(index))

    def twice(x, index):
        chosen = nl.load(index)
        nl.load(x).indirect(chosen, 8).indirect(chosen, 8)

    def assigned(x, index):
        nl.load(x)[:, 0:1] = np.ones((32, 1))

    codes = {too_few: "TRN409", not_picked: "TRN411", in_hbm: "TRN410", twice: "TRN410", assigned: "TRN411"}
    for body, code in codes.items():
        with pytest.raises(ConstraintError) as caught:
            nki.jit(body)(x, index)
        assert (caught.value.code, caught.value.where.file) == (code, __file__), caught.value
    with pytest.raises(RunError):
        gathered(x, index + 8, 4, nisa.engine.vector)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    with pytest.raises(ConstraintError, match="picked by an index"):
        gathered(x, index, 4, nisa.engine.vector)


def test_an_mx_operand_and_its_scales_are_picked_together():
    @nki.jit
    def kernel(a, b, index, pick):
        out = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.shared_hbm)
        left, right = (
            nl.ndarray((128, 64), dtype=nl.float8_e4m3fn_x4),
            nl.ndarray((128, 32), dtype=nl.float8_e4m3fn_x4),
        )
        scales, others = nl.ndarray((128, 64), dtype=nl.uint8), nl.ndarray((128, 32), dtype=nl.uint8)
        nisa.quantize_mx(dst=left, src=nl.load(a), dst_scale=scales)
        nisa.quantize_mx(dst=right, src=nl.load(b), dst_scale=others)
        if pick:
            chosen = nl.load(index)
            right, others = right.indirect(chosen, 32), others.indirect(chosen, 32)
        acc = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(acc, left, right, scales, others)
        nl.store(out, nl.copy(acc))
        return out

    a, b = (RNG.standard_normal((128, n)).astype(ml_dtypes.bfloat16) for n in (256, 128))
    order = RNG.permutation(32)
    index = np.tile(order[:, None], (4, 1)).astype(np.int32)
    np.testing.assert_array_equal(kernel(a, b, index, True), kernel(a, b, index, False)[:, order])
