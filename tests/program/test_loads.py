# SPDX-License-Identifier: Apache-2.0
"""What a kernel loads again stays in SBUF where all of it fits; otherwise, and after stores, it is loaded again."""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.compiler as ncc
import trnlab.nki.neuronxcc.isa as nisa
import trnlab.nki.neuronxcc.language as nl
from trnlab import policy

RNG = np.random.default_rng(0)
X = RNG.standard_normal((256, 256)).astype(np.float32)
W = RNG.standard_normal((256, 1024)).astype(np.float32)


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch):
    """Transfers of several iterations are not merged."""
    monkeypatch.setenv(policy.VARIABLE, "coalesce=off")


def matmul(x, w):
    """x.T @ w with both operands loaded in the inner loop."""
    out = nl.ndarray((x.shape[1], w.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(x.shape[1] // 128):
        for n in nl.affine_range(w.shape[1] // 512):
            total = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(x.shape[0] // 128):
                left = nl.load(x[nl.ds(128 * k, 128), nl.ds(128 * m, 128)])
                right = nl.load(w[nl.ds(128 * k, 128), nl.ds(512 * n, 512)])
                total += nisa.nc_matmul(left, right)
            nl.store(out[nl.ds(128 * m, 128), nl.ds(512 * n, 512)], total)
    return out


def transfers(kernel, *arguments):
    """How many transfers the compiler makes."""
    routine = kernel.trace(*arguments).routine
    return int((routine.queue >= 0).sum())


def test_blocks_that_are_loaded_again_stay():
    kernel = nki.jit(matmul)
    assert transfers(kernel, X, W) == 4 + 4 + 4, "every block once, and the stores"
    kept = kernel(X, W)
    with policy.use(loads=False):
        written = nki.jit(matmul)
        assert transfers(written, X, W) == 8 + 8 + 4
        np.testing.assert_array_equal(kept, written(X, W))


def test_a_tensor_that_does_not_fit_is_loaded_again():
    """The second operand is larger than SBUF; the first fits beside it."""
    x, w = np.zeros((256, 256), np.float32), np.zeros((256, 60 * 512), np.float32)
    assert transfers(nki.jit(matmul), x, w) == 4 + 2 * 120 + 120


def test_stores_in_between():
    """A tile that is stored where it came from is loaded anew."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        for _ in nl.sequential_range(3):
            nl.store(out, nl.add(nl.load(out), nl.load(x)))
        return out

    x = np.ones((128, 512), np.float32)
    assert transfers(kernel, x) == 1 + 4 + 3, "the argument once, what is stored each time"
    np.testing.assert_array_equal(kernel(x), 4 * x)


def test_a_tile_that_is_changed_is_no_copy():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        tile[:, 0:256] = nl.multiply(tile[:, 0:256], 2.0)
        nl.store(out, nl.add(tile, nl.load(x)))
        return out

    x = np.ones((128, 512), np.float32)
    expected = np.where(np.arange(512) < 256, 3, 2) * x
    np.testing.assert_array_equal(kernel(x), expected)


def test_a_block_that_comes_again_soon():
    """Of a tensor that does not fit, what was loaded just before is there; what was loaded long ago is not."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        for _ in nl.sequential_range(2):
            for i in nl.sequential_range(128):
                for j in nl.sequential_range(2):
                    total += nl.load(x[i + j])
        nl.store(out, total)
        return out

    x = np.ones((129, 128, 512), np.float32)
    assert transfers(kernel, x) == 2 * 129 + 1
    np.testing.assert_array_equal(kernel(x), np.full((128, 512), 512, np.float32))
    with policy.use(loads=False):
        assert transfers(kernel, x) == 2 * 256 + 1


def test_kernels_that_skip_the_middle_end():
    """The decorator works on functions and on kernels."""

    def twice(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nl.store(out, nl.add(nl.negative(tile), nl.negative(tile)))
        return out

    x = np.ones((128, 512), np.float32)
    made = len(nki.jit(twice).trace(x).routine)
    skipping = ncc.skip_middle_end_transformations
    assert len(skipping(nki.jit(twice)).trace(x).routine) == made + 1
    assert len(nki.jit(skipping(twice)).trace(x).routine) == made + 1
