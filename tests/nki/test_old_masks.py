# SPDX-License-Identifier: Apache-2.0
"""Masks of the old dialect: what they leave of operands, and that later operations leave out the rest, too."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import isa
from trnlab.errors import ConstraintError
from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import isa as nisa
from trnlab.nki.neuronxcc import language as nl
from trnlab.nki.neuronxcc.affine import Mask, arange

RNG = np.random.default_rng(2)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def rows_of(kernel, name, *arrays):
    """Partitions and elements per partition that the instructions of one name write."""
    routine = kernel.trace(*arrays).routine
    found = []
    for i, code in enumerate(routine.opcode):
        if isa.BY_OPCODE[int(code)].name == name:
            from trnlab.program.text import operands_of

            dst = operands_of(routine, i)[0][1]
            found.append((dst.partitions, dst.free))
    return found


@pytest.mark.parametrize(
    ("mask", "box"),
    [
        (arange(10)[:, None] < 4, (0, 4)),
        (arange(10)[:, None] <= 4, (0, 5)),
        (arange(10)[:, None] * 3 + 1 > 7, (3, 10)),
        (arange(10)[:, None] * 3 >= 9, (3, 10)),
        (20 - arange(10)[:, None] * 4 > 0, (0, 5)),
        (arange(10)[:, None] * -2 <= -6, (3, 10)),
        (arange(10)[:, None] * 2 == 6, (3, 4)),
        (arange(10)[:, None] * 2 == 5, (0, 0)),
        (arange(10)[:, None] < -1, (0, 0)),
    ],
)
def test_a_comparison_bounds_its_axis(mask, box):
    assert mask.ranges((10, 7)) == {0: box}
    wanted = [i for i in range(10) if box[0] <= i < box[1]]
    assert wanted == list(range(*box))


def test_masks_join_and_an_axis_is_found_from_either_end():
    ix, iy = nl.mgrid[0:8, 0:16]
    mask = (ix < 5) & (iy >= 4) & (iy < 9)
    assert mask.ranges((8, 16)) == {0: (0, 5), 1: (4, 9)}
    rows = arange(8)[:, None] < 3
    assert rows.ranges((8, 2, 4)) == {0: (0, 3)}  # two axes of a mask, three of a tile: the one with as many elements


def test_and_joins_comparisons_as_kernels_write_it():
    ix, iy = nl.mgrid[0:8, 0:16]
    joined = ix < 5 and iy < 9
    assert isinstance(joined, Mask)
    assert joined.ranges((8, 16)) == {0: (0, 5), 1: (0, 9)}


def test_a_mask_decides_no_if():
    with pytest.raises(ConstraintError, match="cannot decide"):
        bool(arange(8)[:, None] < 5)


@nki.jit
def edge(x, n):
    """A load under a mask, then operations without one, as kernels have it."""
    rows, columns = x.shape
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range((rows + 127) // 128):
        ip, iy = nl.mgrid[0:128, 0:columns]
        here = i * 128 + ip < rows
        tile = nl.load(x[i * 128 + ip, iy], mask=here)
        shifted = nl.subtract(tile, nl.max(tile, axis=1, keepdims=True))
        powers = nl.exp(shifted)
        buffer = nl.ndarray((nl.par_dim(128), columns), dtype=x.dtype, buffer=nl.sbuf)
        buffer[...] = powers / nl.sum(powers, axis=1, keepdims=True)
        nl.store(out[i * 128 + ip, iy], value=buffer, mask=here)
    return out


def test_what_a_mask_left_out_is_not_computed_with():
    x = normal(130, 16)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(edge(x, 3), e / e.sum(1, keepdims=True), rtol=1e-5)
    assert rows_of(edge, "activation", x, 3) == [(128, 16), (2, 16)]


@nki.jit
def edge_of_a_product(a, b):
    k, m = a.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)
    ik, im, inn = nl.arange(128)[:, None], nl.arange(128)[None, :], nl.arange(512)[None, :]
    left = nl.load(a[ik, im], mask=(ik < k) & (im < m))
    right = nl.load(b[ik, inn], mask=(ik < k) & (inn < n))
    product = nl.zeros((128, 512), dtype=nl.float32, buffer=nl.psum)
    product += nisa.nc_matmul(left, right, mask=ik < k)
    jm, jn = nl.mgrid[0:128, 0:512]
    nl.store(out[jm, jn], nl.copy(product), mask=(jm < m) & (jn < n))
    return out


def test_a_product_of_edges():
    a, b = normal(100, 60), normal(100, 300)
    np.testing.assert_allclose(edge_of_a_product(a, b), a.T @ b, rtol=1e-4, atol=1e-4)


@nki.jit
def operand_masks(a, b):
    out = nl.ndarray((16, 32), dtype=a.dtype, buffer=nl.shared_hbm)
    left, right = nl.load(a), nl.load(b)
    i, j = nl.arange(64)[None, :], nl.arange(64)[None, :]
    nl.store(out, nl.matmul(left[i < 16], right[j < 32], transpose_x=True))
    return out


def test_an_operand_indexed_with_a_mask():
    a, b = normal(32, 64), normal(32, 64)
    np.testing.assert_allclose(operand_masks(a, b), (a.T @ b)[:16, :32], rtol=1e-4, atol=1e-4)


@nki.jit
def folds(x):
    out = nl.ndarray((4, x.shape[0], 1), dtype=nl.float32, buffer=nl.shared_hbm)
    _, iy = nl.mgrid[0 : x.shape[0], 0 : x.shape[1]]
    tile = nl.load(x)
    nl.store(out[0], nl.sum(tile, axis=[1], mask=iy < 5, keepdims=True))
    nl.store(out[1], nl.mean(tile, axis=[1], mask=iy < 5, keepdims=True))
    nl.store(out[2], nl.var(tile, axis=[1], mask=iy < 5))
    nl.store(out[3], nisa.tensor_reduce(np.max, tile, axis=[1], mask=iy >= 5, negate=True))
    return out


def test_reductions_of_what_a_mask_leaves():
    x = normal(8, 12)
    got = folds(x)[..., 0]
    part = x[:, :5]
    for row, wanted in zip(got, (part.sum(1), part.mean(1), part.var(1), -x[:, 5:].max(1))):
        np.testing.assert_allclose(row, wanted, rtol=1e-5, atol=1e-6)


@nki.jit
def made(x):
    ix, iy = nl.mgrid[0:16, 0:16]
    ramp = nl.zeros((16, 16), dtype=nl.int32)
    ramp[...] = nisa.iota(ix * 100 + iy, dtype=nl.int32, mask=(ix < 12) & (iy < 3))
    chosen = nisa.affine_select(pred=(iy <= ix) & (iy >= 2), on_true_tile=nl.load(x), on_false_value=-1.0)
    return ramp, chosen


def test_ramps_and_selections():
    x = normal(16, 16)
    ramp, chosen = made(x)
    i, j = np.mgrid[0:16, 0:16]
    np.testing.assert_array_equal(ramp, np.where((i < 12) & (j < 3), i * 100 + j, 0))
    np.testing.assert_array_equal(chosen, np.where((j <= i) & (j >= 2), x, -1))


def test_an_index_past_the_tensor_needs_a_mask():
    @nki.jit
    def past(x):
        i, j = nl.mgrid[0:128, 0:8]
        return nl.load(x[i, j])

    with pytest.raises(ConstraintError, match=r"dimension 0[\s\S]*0\.\.99[\s\S]*0\.\.127[\s\S]*mask"):
        past(normal(100, 8))


@nki.jit
def either(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile, buffer = nl.load(x), nl.ndarray(x.shape, dtype=x.dtype)
    for i in nl.affine_range(2):
        half = slice(i * 8, i * 8 + 8)
        buffer[:, half] = nl.negative(tile[:, half], mask=i == 0)
        buffer[:, half] = nl.copy(tile[:, half], mask=i != 0)
    nl.store(out, buffer)
    return out


def test_an_assignment_under_a_mask_that_leaves_nothing_changes_nothing():
    x = normal(4, 16)
    np.testing.assert_array_equal(either(x), np.concatenate([-x[:, :8], x[:, 8:]], 1))


@pytest.mark.parametrize(("divisor", "rows"), [(512, 4), (256, 2), (2048, 1)])
def test_indices_are_divided_where_the_quotient_is_a_sum_of_indices(divisor, rows):
    """`//` and `%` of an index take out what is a multiple of the divisor, as NumPy's integers say."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((rows, 128, divisor), dtype=x.dtype, buffer=nl.shared_hbm)
        partition, column = nl.arange(128)[:, None], nl.arange(divisor)[None, :]
        for i in nl.affine_range(rows):
            flat = i * divisor + column
            nl.store(out[flat // divisor, partition, flat % divisor], nl.load(x[partition, flat]))
        return out

    x = np.arange(128 * rows * divisor, dtype=np.float32).reshape(128, -1)
    np.testing.assert_array_equal(kernel(x), x.reshape(128, rows, divisor).transpose(1, 0, 2))


@pytest.mark.parametrize(("constant", "divisor"), [(0, 4), (-1, 8), (3, 8), (5, 0), (5, -8)])
def test_what_no_sum_of_indices_says_is_refused(constant, divisor):
    @nki.jit
    def kernel(x):
        return nl.load(x[nl.arange(128)[:, None], (nl.arange(8)[None, :] + constant) // divisor])

    with pytest.raises(ConstraintError, match="sums of multiples of indices"):
        kernel(np.zeros((128, 64), np.float32))
