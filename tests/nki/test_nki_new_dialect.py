# SPDX-License-Identifier: Apache-2.0
"""Kernels of the new dialect: numbers against NumPy, recording once, errors at the user's line, time."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.errors import CapacityError, ConstraintError, UsageError

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@nki.jit
def double(x, times=1):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    for _ in range(times):
        doubled = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=doubled, data=tile, op0=nl.multiply, operand0=2.0)
        tile = doubled
    nl.store(out, tile)
    return out


@nki.jit
def tiled_matmul(a, b):
    k, m = a.shape
    _, n = b.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(k // 128):
        left = nl.load(a[i * 128 : (i + 1) * 128])
        right = nl.load(b[nl.ds(i * 128, 128), :])
        nisa.nc_matmul(dst=acc, stationary=left, moving=right)
    nl.store(out, acc)
    return out


def test_matmuls_to_one_place_accumulate_after_the_first():
    a, b = normal(384, 64), normal(384, 256)
    np.testing.assert_allclose(tiled_matmul(a, b), a.T @ b, rtol=1e-4, atol=1e-4)


@nki.jit
def maths(x, y):
    out = nl.ndarray((6, *x.shape), dtype=nl.float32, buffer=nl.shared_hbm)
    a, b = nl.load(x), nl.load(y)
    row = nl.load(y[0:1])
    results = [
        nl.add(a, b),
        nl.subtract(3.0, a),
        nl.divide(a, nl.add(nl.abs(b), 1.0)),
        nl.softmax(a, axis=1),
        nl.multiply(a, nl.max(b, axis=1)),
        nl.add(a, nl.broadcast_to(row, a.shape)),
    ]
    for i, result in enumerate(results):
        nl.store(out[i], result)
    return out


def test_maths_of_the_language_is_numpys():
    x, y = normal(128, 96), normal(128, 96)
    soft = np.exp(x - x.max(1, keepdims=True))
    expected = [
        x + y,
        3 - x,
        x / (np.abs(y) + 1),
        soft / soft.sum(1, keepdims=True),
        x * y.max(1, keepdims=True),
        x + y[:1],
    ]
    for got, wanted in zip(maths(x, y), expected):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5)


@nki.jit
def roundings(x):
    out = nl.ndarray((3, *x.shape), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.load(x)
    for i, result in enumerate((nl.floor(tile), nl.ceil(tile), nl.trunc(tile))):
        nl.store(out[i], result)
    return out


def test_floor_ceil_and_trunc():
    x = np.array([[-2.5, -1.2, -1.0, -0.4, 0.0, 0.5, 0.6, 1.5, 2.0, 7.9]], np.float32)
    for got, function in zip(roundings(x), (np.floor, np.ceil, np.trunc)):
        np.testing.assert_array_equal(got, function(x))


def test_a_kernel_is_recorded_once_per_shapes_formats_and_constants():
    kernel = nki.jit(double.function)
    x = normal(8, 16)
    kernel(x), kernel(x + 1)
    assert len(kernel.traces) == 1
    kernel(x, times=2)
    kernel(x.astype(ml_dtypes.bfloat16))
    kernel(normal(8, 17))
    assert len(kernel.traces) == 4


def test_results_are_of_the_callers_kind():
    torch = pytest.importorskip("torch")
    x = torch.ones(4, 8, dtype=torch.bfloat16)
    assert torch.equal(double(x), x * 2)
    assert double(np.ones((4, 8), np.float16)).dtype == np.float16


@nki.jit
def by_program(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    i = nl.program_id(0)
    assert nl.num_programs((0,)) == 2
    nl.store(out[i], nl.multiply(nl.load(x[i]), float(i + 1)))
    return out


def test_programs_of_a_grid_share_their_outputs():
    x = normal(2, 4, 8)
    np.testing.assert_array_equal(by_program[2](x), x * np.arange(1, 3, dtype=np.float32)[:, None, None])


@nki.jit
def gather(table, index):
    out = nl.ndarray((index.shape[0], table.shape[1]), dtype=table.dtype, buffer=nl.shared_hbm)
    rows = nl.load(index)
    tile = nl.ndarray(out.shape, dtype=table.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=table.vector_select(0, rows))
    nl.store(out, tile)
    return out


def test_rows_are_gathered_by_index():
    table, index = normal(50, 16), RNG.integers(0, 50, (20, 1)).astype(np.int32)
    np.testing.assert_array_equal(gather(table, index), table[index[:, 0]])


def test_errors_name_the_users_line_the_limit_and_the_way_out():
    @nki.jit
    def too_tall(x):
        return nl.load(x)

    with pytest.raises(ConstraintError) as caught:
        too_tall(normal(256, 4))
    assert caught.value.code == "TRN404"
    assert caught.value.limit == 128
    assert "nl.load(x)" in str(caught.value)


def test_what_lives_at_once_must_fit():
    @nki.jit
    def hoard(x):
        with nl.no_reorder():
            tiles = [nl.load(x) for _ in range(20)]
            for tile in tiles:
                nl.store(x, tile)

    with nki.schedule(spill=False), pytest.raises(CapacityError) as caught:
        hoard(normal(128, 8192))
    assert caught.value.code == "TRN501"
    assert "in use" in str(caught.value)
    assert hoard.trace(normal(128, 8192)).routine.spills


def test_a_tile_on_chip_cannot_be_returned():
    @nki.jit
    def returns_tile(x):
        return nl.load(x)

    with pytest.raises(UsageError, match="not in HBM"):
        returns_tile(normal(4, 4))


def test_operations_outside_of_a_kernel_say_so():
    with pytest.raises(UsageError, match="inside a kernel"):
        nl.ndarray((4, 4), dtype=nl.float32)


def test_time_is_the_timing_models_and_always_the_same():
    a, b = normal(256, 128), normal(256, 512)
    bench = nki.benchmark(tiled_matmul)
    first = bench(a, b).nc_latency.get_latency_percentile(99)
    assert first == bench(a, b).nc_latency.get_latency_percentile(50)
    assert 5 < first < 100
    longer = nki.benchmark(tiled_matmul)(normal(2048, 128), normal(2048, 512)).nc_latency.get_latency_percentile(50)
    assert longer > first


def test_formats_are_strings_that_numpy_takes():
    assert nl.bfloat16 == "bfloat16" == nl.bfloat16
    assert np.zeros(2, nl.bfloat16).dtype == ml_dtypes.bfloat16
    assert nl.float32 == np.float32
    assert nl.float32 != nl.float16
    assert nl.int8.itemsize == 1


def test_a_matmul_into_a_part_of_a_sum_adds_to_it():
    """Whether a matmul overwrites is decided by what was written to its elements, not by equal views."""

    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
        left, right = nl.load(a), nl.load(b)
        nisa.nc_matmul(dst=total, stationary=left, moving=right)
        nisa.nc_matmul(dst=total[:, 16:48], stationary=left, moving=right[:, 16:48])
        nisa.dma_copy(dst=out, src=nl.copy(total))
        return out

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((32, 64), np.float32) for _ in range(2))
    want = a.T @ b
    want[:, 16:48] *= 2
    np.testing.assert_allclose(kernel(a, b), want, rtol=1e-5, atol=1e-5)
