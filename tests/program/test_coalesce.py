# SPDX-License-Identifier: Apache-2.0
"""Neighbouring transfers of iterations are one, where that changes nothing but the time."""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.isa as nisa
import trnlab.nki.neuronxcc.language as nl
from trnlab import isa, policy

RNG = np.random.default_rng(0)
DMA = isa.REGISTRY["dma_copy"].opcode


def transfers(kernel, *arguments):
    """Loads and stores that the compiler makes of a kernel."""
    return int((kernel.trace(*arguments).routine.opcode == DMA).sum())


def blocks(width, count=8):
    """A kernel that doubles blocks of 128 rows."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(count):
            nl.store(out[nl.ds(128 * i, 128)], nl.multiply(nl.load(x[nl.ds(128 * i, 128)]), 2.0))
        return out

    return kernel, RNG.standard_normal((128 * count, width)).astype(np.float32)


@pytest.mark.parametrize(("width", "expected"), [(1, 16), (128, 2), (256, 4), (512, 8), (1024, 16)])
def test_as_many_as_4_kib_of_a_partition(width, expected):
    """Tiles of 512 B are moved eight at a time, of 1 KiB four, of 2 KiB two, of 4 KiB and of one element alone."""
    kernel, x = blocks(width)
    assert transfers(kernel, x) == expected
    np.testing.assert_array_equal(kernel(x), 2 * x)


def test_what_is_transposed_on_its_way_stays_apart():
    """Every element is a descriptor: eight stores of 16,384 are no transfer of 131,072, which nothing could hide."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((128 * 8, 128), dtype=x.dtype, buffer=nl.shared_hbm)
        rows, columns = nl.arange(128)[:, None], nl.arange(128)[None, :]
        for i in nl.affine_range(8):
            nl.store(out[128 * i + columns, rows], nl.negative(nl.load(x[:, nl.ds(128 * i, 128)])))
        return out

    x = RNG.standard_normal((128, 1024)).astype(np.float32)
    routine = kernel.trace(x).routine
    rows = [routine.works[w].m for w in routine.work[routine.opcode == DMA].tolist()]
    assert sorted(rows) == [128] + [128 * 128] * 8, "the loads are one"
    np.testing.assert_array_equal(kernel(x), -x.T)


def test_strips_of_columns():
    """Distances within rows."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(4):
            nl.store(out[:, nl.ds(128 * i, 128)], nl.negative(nl.load(x[:, nl.ds(128 * i, 128)])))
        return out

    x = RNG.standard_normal((128, 512)).astype(np.float32)
    assert transfers(kernel, x) == 2
    np.testing.assert_array_equal(kernel(x), -x)


def test_loads_of_one_sum_are_joined():
    """What a matmul adds up comes from neighbouring blocks: four of 512 B of `x` for each of two results, and of `w`,
    which stays, four for both; and one store."""

    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((256, 128), dtype=x.dtype, buffer=nl.shared_hbm)
        for m in nl.affine_range(2):
            total = nl.zeros((128, 128), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(4):
                left = nl.load(x[nl.ds(128 * k, 128), nl.ds(128 * m, 128)])
                total += nisa.nc_matmul(left, nl.load(w[nl.ds(128 * k, 128)]))
            nl.store(out[nl.ds(128 * m, 128)], total)
        return out

    x, w = (RNG.standard_normal((512, n)).astype(np.float32) for n in (256, 128))
    assert transfers(kernel, x, w) == 2 + 1 + 1
    np.testing.assert_allclose(kernel(x, w), x.T @ w, rtol=1e-4, atol=1e-3)


def test_what_is_used_in_between_stays():
    """A block is stored, read back, and the next one stored: the stores are two."""

    @nki.jit
    def kernel(x):
        out, kept = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        for i in nl.sequential_range(2):
            rows = nl.ds(128 * i, 128)
            nl.store(kept[rows], nl.add(nl.load(x[rows]), 1.0))
            nl.store(out[rows], nl.multiply(nl.load(kept[rows]), 2.0))
        return out

    x = RNG.standard_normal((256, 128)).astype(np.float32)
    assert transfers(kernel, x) == 1 + 2 + 2 + 1, "loads of x, stores and loads in between, stores of the result"
    np.testing.assert_array_equal(kernel(x), (x + 1) * 2)


@pytest.mark.parametrize("seed", range(16))
def test_random_kernels_compute_the_same_bits(seed):
    """Loads, changes and stores of random blocks of two tensors, some of them several times."""

    def made():
        rng = np.random.default_rng(seed)

        @nki.jit
        def kernel(x):
            out, kept = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for _ in range(2))
            for tensor in (out, kept):
                for i in nl.affine_range(6):
                    nl.store(tensor[i], nl.load(x[i]))
            for _ in range(10):
                source, target = ((x, out, kept)[int(n)] for n in (rng.integers(0, 3), rng.integers(1, 3)))
                first, step, count = int(rng.integers(0, 2)), int(rng.integers(1, 3)), int(rng.integers(1, 4))
                tile = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.sbuf)
                for i in nl.sequential_range(count):
                    if rng.random() < 0.5:
                        tile = nl.load(source[first + step * i])
                    else:
                        tile[...] = nl.load(source[first + step * i])
                    if rng.random() < 0.3:
                        tile[:, 0:16] = nl.add(tile[:, 0:16], 1.0)
                    nl.store(target[first + int(rng.integers(1, 3)) * i], nl.multiply(tile, 0.5))
                    if rng.random() < 0.3:
                        tile[...] = nl.multiply(tile, 3.0)
            for i in nl.affine_range(6):
                nl.store(out[i], nl.add(nl.load(out[i]), nl.load(kept[i])))
            return out

        return kernel

    x = np.random.default_rng(100 + seed).standard_normal((6, 128, 32)).astype(np.float32)
    kernel = made()
    merged, counted = kernel(x), transfers(kernel, x)
    with policy.use(coalesce=False):
        apart = made()
        np.testing.assert_array_equal(merged, apart(x))
        assert counted < transfers(apart, x)


def test_what_is_loaded_element_by_element_is_computed_so():
    """Tiles of one element a partition: neither their transfers nor their sums are merged."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(16):
            nl.store(out[nl.ds(128 * i, 128)], nl.multiply(nl.load(x[nl.ds(128 * i, 128)]), 2.0))
        return out

    x = RNG.standard_normal((2048, 1)).astype(np.float32)
    assert len(kernel.trace(x).routine) == 3 * 16
    np.testing.assert_array_equal(kernel(x), 2 * x)
