# SPDX-License-Identifier: Apache-2.0
"""What was loaded, transposed and copied before is not rearranged again; what may have changed since, is."""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.isa as nisa
import trnlab.nki.neuronxcc.language as nl
from trnlab import policy

X = np.random.default_rng(0).standard_normal((128, 1024)).astype(np.float32)
BLOCKS, ROUNDS = 4, 3


def products(change=None, array=True):
    """Sums over transposed blocks of x, in three rounds; `change` does something between two of them.

    array: whether the transposed blocks are tiles of an array that is declared outside of the loop.
    """

    @nki.jit
    def kernel(x):
        out = nl.ndarray((ROUNDS, 128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
        scratch = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(scratch, nl.load(x))
        source, rounds = (x, nl.affine_range) if change is None else (scratch, nl.sequential_range)
        tiles = nl.ndarray((ROUNDS, nl.par_dim(128), BLOCKS, 128), dtype=x.dtype, buffer=nl.sbuf)
        for i in rounds(ROUNDS):
            turned = tiles[i] if array else nl.ndarray((nl.par_dim(128), BLOCKS, 128), dtype=x.dtype, buffer=nl.sbuf)
            for j in nl.affine_range(BLOCKS):
                turned[:, j] = nisa.tensor_copy(nisa.nc_transpose(nl.load(source[:, nl.ds(128 * j, 128)])))
            sums = nl.zeros((128, 128), dtype=nl.float32, buffer=nl.psum)
            for j in nl.affine_range(BLOCKS):
                sums += nisa.nc_matmul(turned[:, j], turned[:, j])
            nl.store(out[i], nl.multiply(sums, float(i + 1)))
            if change is not None:
                change(scratch)
        return out

    return kernel


def transposes(kernel):
    timeline = kernel.timeline(X)
    return sum(timeline.ops[o].kind == "pe.transpose" for o in timeline.op)


def test_transposes_of_one_round_are_left():
    kernel = products()
    assert transposes(kernel) == BLOCKS
    first, time = kernel(X), kernel.timeline(X).total
    with policy.use(rearranged=False):
        assert transposes(products()) == ROUNDS * BLOCKS
        np.testing.assert_array_equal(first, products()(X))
        assert time < products().timeline(X).total
    blocks = [X[:, 128 * j : 128 * j + 128].astype(np.float64) for j in range(BLOCKS)]
    expected = sum(b @ b.T for b in blocks)
    np.testing.assert_allclose(first, [n * expected for n in (1, 2, 3)], rtol=1e-4, atol=1e-3)


def test_tiles_of_an_iteration_are_filled_in_each():
    """K0020 to K0022: an attention that transposes blocks of v in its inner loop takes the time of all of them."""
    assert transposes(products(array=False)) == ROUNDS * BLOCKS


def test_what_the_kernel_writes_is_transposed_again():
    def doubled(scratch):
        nl.store(scratch[:, 0:128], nl.multiply(nl.load(scratch[:, 0:128]), 2.0))

    kernel = products(doubled)
    assert transposes(kernel) == ROUNDS * BLOCKS
    first = kernel(X)
    with policy.use(rearranged=False):
        np.testing.assert_array_equal(first, products(doubled)(X))


@pytest.mark.parametrize("late", [False, True])
def test_a_tile_that_changes_after_it_is_read_has_no_value(late):
    @nki.jit
    def kernel(x):
        out = nl.ndarray((ROUNDS, 128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((nl.par_dim(128), 256), dtype=x.dtype, buffer=nl.sbuf)
        turned = nl.ndarray((ROUNDS, nl.par_dim(128), 128), dtype=x.dtype, buffer=nl.sbuf)
        tile[...] = nl.load(x[:, 0:256])
        for i in nl.sequential_range(ROUNDS):
            turned[i] = nisa.tensor_copy(nisa.nc_transpose(tile[:, 0:128]))
            nl.store(out[i], nl.add(turned[i], 1.0))
            if late:
                tile[:, 0:64] = nl.add(tile[:, 0:64], 1.0)
        return out

    assert transposes(kernel) == (ROUNDS if late else 1)
    first = kernel(X)
    with policy.use(rearranged=False, reuse=False):
        np.testing.assert_array_equal(first, kernel(X))


def test_what_is_kept_is_spilled_where_sbuf_is_full():
    """K0040: 512 transposes fill 256 KiB of a partition, and are needed again; none is made twice."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 32, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = nl.ndarray((2, 32, nl.par_dim(128), 16, 128), dtype=x.dtype, buffer=nl.sbuf)
        for i in nl.sequential_range(2):
            for t in nl.sequential_range(32):
                turned = tiles[i, t]
                for j in nl.affine_range(16):
                    block = nl.load(x[nl.ds(128 * t, 128), nl.ds(128 * j, 128)])
                    turned[:, j] = nisa.tensor_copy(nisa.nc_transpose(block))
                nl.store(out[i, t], nl.multiply(turned[:, 0:4], float(i + 1)))
        return out

    x = np.random.default_rng(1).standard_normal((4096, 2048)).astype(np.float32)
    timeline, routine = kernel.timeline(x), kernel.trace(x).routine
    assert sum(timeline.ops[o].kind == "pe.transpose" for o in timeline.op) == 512
    assert routine.spills
    got = kernel(x)
    expected = np.stack([x[128 * t : 128 * t + 128, :512].reshape(128, 4, 128).transpose(2, 1, 0) for t in range(32)])
    np.testing.assert_array_equal(got, [expected.reshape(32, 128, 512) * n for n in (1, 2)])
