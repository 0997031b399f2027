# SPDX-License-Identifier: Apache-2.0
"""Copies out of PSUM whose readers can read PSUM are left out, the others stay, and no bit changes."""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.isa as nisa
import trnlab.nki.neuronxcc.language as nl
from trnlab import isa, policy
from trnlab.isa.base import Memory
from trnlab.program.routine import COL

RNG = np.random.default_rng(0)
X = RNG.standard_normal((128, 2048)).astype(np.float32)
W = RNG.standard_normal((128, 128)).astype(np.float32)


def scores(blocks, *, dtype=nl.float32, per_row=False, stored=False):
    """Products of [128, 512] kept in an SBUF buffer, whose maximum and exponential are taken block by block."""

    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((128, 512 * blocks), dtype=nl.float32, buffer=nl.shared_hbm)
        again = nl.ndarray((128, 512 * blocks), dtype=dtype, buffer=nl.shared_hbm)
        loaded, weights = nl.load(x), nl.load(w)
        kept = nl.ndarray((nl.par_dim(128), 512 * blocks), dtype=dtype, buffer=nl.sbuf)
        for j in nl.affine_range(blocks):
            product = nisa.nc_matmul(stationary=weights, moving=loaded[:, nl.ds(512 * j, 512)])
            kept[:, nl.ds(512 * j, 512)] = nisa.tensor_copy(product, dtype=dtype)
        whole = nisa.tensor_reduce(nl.max, kept, axis=1, negate=True) if per_row else None
        for j in nl.affine_range(blocks):
            block = kept[:, nl.ds(512 * j, 512)]
            least = whole if per_row else nisa.tensor_reduce(nl.max, block, axis=1, negate=True)
            nl.store(out[:, nl.ds(512 * j, 512)], nisa.activation(op=nl.exp, data=block, bias=least))
            if stored:
                nl.store(again[:, nl.ds(512 * j, 512)], block)
        return (out, again) if stored else out

    return kernel


def traced(kernel, **options):
    with policy.use(**options):
        return kernel.trace(X, W).routine


def copies(routine):
    return int((routine.opcode == isa.REGISTRY["tensor_copy"].opcode).sum())


def reads_of_psum(routine):
    """Operands in PSUM of engines that read it, the copies left out."""
    psum = np.array([b.memory is Memory.PSUM for b in routine.buffers])[routine.operands[:, COL["buffer"]]]
    owner = np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))
    reading = np.isin(routine.opcode[owner], [isa.REGISTRY[n].opcode for n in ("tensor_reduce", "activation")])
    return int((psum & reading).sum())


def test_reductions_and_functions_read_psum():
    """No copy is left of four blocks, each of which is read twice; the numbers are the same bits."""
    kernel = scores(4)
    assert (copies(traced(kernel)), copies(traced(kernel, forward=False))) == (0, 4)
    assert reads_of_psum(traced(kernel)) == 8
    with policy.use(forward=False):
        plain = kernel(X, W)
    np.testing.assert_array_equal(kernel(X, W), plain)


@pytest.mark.parametrize(
    "options", [{"dtype": nl.bfloat16}, {"per_row": True}, {"stored": True}], ids=["cast", "whole row", "store"]
)
def test_copies_that_somebody_needs_stay(options):
    """A cast, a reader of the whole row that several copies make, and a transfer, which reads SBUF only."""
    routine = traced(scores(2, **options))
    assert copies(routine) == 2
    assert reads_of_psum(routine) == 0


@pytest.mark.parametrize(("banks", "left"), [(1, 0), (4, 0)])
def test_tiles_that_wait_in_turn_take_one_bank(banks, left):
    """Each block is read before the next is made."""

    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((128, 2048), dtype=nl.float32, buffer=nl.shared_hbm)
        loaded, weights = nl.load(x), nl.load(w)
        for j in nl.affine_range(4):
            product = nisa.nc_matmul(stationary=weights, moving=loaded[:, nl.ds(512 * j, 512)])
            kept = nisa.tensor_copy(product, dtype=nl.float32)
            nl.store(out[:, nl.ds(512 * j, 512)], nisa.activation(op=nl.exp, data=kept))
        return out

    assert copies(traced(kernel, forward_banks=banks)) == left


def test_only_so_many_banks_wait_for_readers():
    """Of four blocks that are all alive at once, the older ones are copied where there are fewer banks."""
    assert [copies(traced(scores(4), forward_banks=n)) for n in (1, 2, 3, 4)] == [3, 2, 1, 0]
    with policy.use(forward_banks=2):
        few = scores(4)(X, W)
    np.testing.assert_array_equal(few, scores(4)(X, W))


def test_two_operands_are_not_both_read_from_psum():
    """VectorE reads one operand from PSUM: of two copies that are multiplied, one stays."""

    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        loaded, weights = nl.load(x), nl.load(w)
        one = nisa.tensor_copy(nisa.nc_matmul(stationary=weights, moving=loaded[:, 0:512]), dtype=nl.float32)
        two = nisa.tensor_copy(nisa.nc_matmul(stationary=weights, moving=loaded[:, 512:1024]), dtype=nl.float32)
        nl.store(out, nl.multiply(one, two))
        return out

    assert copies(traced(kernel)) == 1
    with policy.use(forward=False):
        plain = kernel(X, W)
    np.testing.assert_array_equal(kernel(X, W), plain)


def test_a_product_that_is_overwritten_is_copied():
    """The next product goes to the same tile before the copy is read."""

    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        loaded, weights = nl.load(x), nl.load(w)
        total = nl.zeros((128, 512), dtype=nl.float32, buffer=nl.psum)
        total += nisa.nc_matmul(stationary=weights, moving=loaded[:, 0:512])
        half = nisa.tensor_copy(total, dtype=nl.float32)
        total += nisa.nc_matmul(stationary=weights, moving=loaded[:, 512:1024])
        nl.store(out, nl.multiply(half, total))
        return out

    assert copies(traced(kernel)) == 1
    first, second = W.T @ X[:, :512], W.T @ X[:, 512:1024]
    np.testing.assert_allclose(kernel(X, W), first * (first + second), rtol=1e-3, atol=1e-3)


def test_a_broadcast_over_partitions_is_read_where_the_matmul_left_it():
    """A row that multiplies every row of a tile, spread by a matmul with ones."""

    @nki.jit
    def kernel(x, row):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.multiply(nl.load(x), nl.load(row).broadcast_to((128, 512))))
        return out

    def trace(**options):
        with policy.use(**options):
            return kernel.trace(X[:, :512], X[:1, :512]).routine

    assert copies(trace(forward=False)) - copies(trace()) == 1
    np.testing.assert_array_equal(kernel(X[:, :512], X[:1, :512]), X[:, :512] * X[:1, :512])
