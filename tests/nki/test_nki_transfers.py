# SPDX-License-Identifier: Apache-2.0
"""Transfers that gather, scatter, add and transpose, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
import trnlab.nki.neuronxcc as old_nki
import trnlab.nki.neuronxcc.language as old_nl
from trnlab import policy
from trnlab.errors import ConstraintError, RunError

RNG = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def picks(count: int, size: int) -> np.ndarray:
    """Different rows of a table."""
    return RNG.permutation(size)[:count, None].astype(np.int32)


@nki.jit
def scatter(table, rows, index, skip=False):
    out = nl.ndarray(table.shape, dtype=table.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=table)
    count, width = rows.shape
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
    target = out.ap([[table.shape[1], count], [1, width]], vector_offset=nl.load(index), indirect_dim=0)
    nisa.dma_copy(dst=target, src=nl.load(rows), oob_mode=mode)
    return out


@pytest.mark.parametrize("width", [16, 5])
def test_rows_are_scattered_also_into_parts_of_rows(width):
    table, rows, index = normal(50, 16), normal(20, width), picks(20, 50)
    expected = table.copy()
    expected[index[:, 0], :width] = rows
    np.testing.assert_array_equal(scatter(table, rows, index), expected)


def test_rows_outside_of_the_table_are_an_error_or_skipped():
    table, rows, index = normal(10, 4), normal(3, 4), np.array([[2], [10], [-1]], np.int32)
    expected = table.copy()
    expected[2] = rows[0]
    np.testing.assert_array_equal(scatter(table, rows, index, skip=True), expected)
    with pytest.raises(RunError, match="row that does not exist"):
        scatter(table, rows, index)


@nki.jit
def gather(table, index, start, width):
    """Columns from `start` on of rows, through a tile and from HBM to HBM."""
    count = index.shape[0]
    out = nl.ndarray((2, count, width), dtype=table.dtype, buffer=nl.shared_hbm)
    rows = table.ap([[table.shape[1], count], [1, width]], offset=start, vector_offset=nl.load(index))
    tile = nl.zeros((count, width), dtype=table.dtype)
    nisa.dma_copy(dst=tile, src=rows, oob_mode=nisa.oob_mode.skip)
    nisa.dma_copy(dst=out[0], src=tile)
    nisa.dma_copy(
        dst=out[1], src=table.ap([[table.shape[1], count], [1, width]], start, vector_offset=nl.load(index))
    )
    return out


def test_parts_of_rows_are_gathered():
    table, index = normal(40, 12), picks(17, 40)
    got = gather(table, index, 3, 7)
    np.testing.assert_array_equal(got[0], table[index[:, 0], 3:10])
    np.testing.assert_array_equal(got[1], table[index[:, 0], 3:10])


def test_a_gather_into_a_tile_leaves_out_rows_that_do_not_exist():
    @nki.jit
    def kernel(table, index):
        out = nl.ndarray((index.shape[0], table.shape[1]), dtype=table.dtype, buffer=nl.shared_hbm)
        tile = nl.full(out.shape, 9.0, dtype=table.dtype)
        nisa.dma_copy(dst=tile, src=table.vector_select(0, nl.load(index)), oob_mode=nisa.oob_mode.skip)
        nl.store(out, tile)
        return out

    table, index = normal(6, 4), np.array([[5], [6], [0], [-1]], np.int32)
    expected = np.full((4, 4), 9, np.float32)
    expected[[0, 2]] = table[[5, 0]]
    np.testing.assert_array_equal(kernel(table, index), expected)


@nki.jit
def added(table, rows, index, side):
    out = nl.ndarray(table.shape if side == "dst" else rows.shape, dtype=table.dtype, buffer=nl.shared_hbm)
    count, width = rows.shape
    chosen, tile = nl.load(index), nl.load(rows)
    if side == "dst":
        nisa.dma_copy(dst=out, src=table)
        target = out.ap([[width, count], [1, width]], vector_offset=chosen, indirect_dim=0)
        nisa.dma_compute(dst=target, srcs=[tile, target], reduce_op=nl.add, scales=[1.0, 1.0])
    else:
        source = table.ap([[width, count], [1, width]], vector_offset=chosen, indirect_dim=0)
        nisa.dma_compute(dst=tile, srcs=[source, tile], reduce_op=nl.add, oob_mode=nisa.oob_mode.skip)
        nisa.dma_copy(dst=out, src=tile)
    return out


def test_rows_are_added_on_the_way_in_and_out():
    table, rows, index = normal(30, 8), normal(12, 8), picks(12, 30)
    expected = table.copy()
    expected[index[:, 0]] += rows
    np.testing.assert_array_equal(added(table, rows, index, "dst"), expected)
    index[3] = 30
    into = rows + np.where(np.arange(12)[:, None] == 3, 0, table[index[:, 0] % 30])
    np.testing.assert_array_equal(added(table, rows, index, "src"), into.astype(np.float32))


def test_several_tensors_are_added():
    @nki.jit
    def kernel(x, y, z):
        out = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
        nisa.dma_compute(dst=out, srcs=[x, nl.load(y), z], reduce_op=nl.add)
        return out

    x, y, z = normal(32, 8), normal(32, 8), normal(32, 8)
    np.testing.assert_array_equal(kernel(x, y, z), ((x + y) + z).astype(ml_dtypes.bfloat16))


@nki.jit
def turned(x, axes, where):
    shape = tuple(x.shape[a] for a in axes)
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    if where == "sbuf":
        source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=source, src=x)
        x = source
    nisa.dma_transpose(dst=tile, src=x, axes=axes)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("where", ["hbm", "sbuf"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((48, 96), (1, 0)), ((4, 6, 32), (2, 1, 0)), ((5, 2, 3, 64), (3, 1, 2, 0))]
)
def test_transposes_by_dma(shape, axes, where):
    x = normal(*shape).astype(np.float16)
    np.testing.assert_array_equal(turned(x, axes, where), x.transpose(axes))


@pytest.mark.parametrize("columns", [1, 2])
def test_rows_are_gathered_and_transposed(columns):
    @nki.jit
    def kernel(table, index):
        rows, count = table.shape[1], index.shape[0] * index.shape[1]
        out = nl.ndarray((rows, count), dtype=table.dtype, buffer=nl.shared_hbm)
        tile = nl.zeros((rows, count), dtype=table.dtype)
        source = table.ap([[rows, count], [1, rows]], vector_offset=nl.load(index), indirect_dim=0)
        nisa.dma_transpose(dst=tile, src=source, axes=(1, 0))
        nisa.dma_copy(dst=out, src=tile)
        return out

    table = normal(300, 64).astype(np.float16)
    index = RNG.integers(0, 300, (128, columns)).astype(np.uint32)
    np.testing.assert_array_equal(kernel(table, index), table[index.T.reshape(-1)].T)


def test_tiles_of_different_heights_are_copied_element_by_element():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((8, 32), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((8, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=nl.load(x))
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = normal(64, 4)
    np.testing.assert_array_equal(kernel(x), x.reshape(8, 32))


def test_what_transfers_cannot_do_is_refused_at_the_users_line():
    def both(table, index):
        rows = nl.load(index)
        nisa.dma_copy(dst=table.vector_select(0, rows), src=table.vector_select(0, rows))

    def by_sync(table, index):
        tile = nl.zeros((4, 8), dtype=nl.float32)
        rows = table.vector_select(0, nl.load(index))
        nisa.dma_copy(dst=tile, src=rows, engine=nisa.engine.sync, dge_mode=nisa.dge_mode.hwdge)

    def part_of_rows(table, index):
        nl.load(table.vector_select(0, nl.load(index))[0:2])

    def cast_by_hardware(table, index):
        tile = nl.ndarray((10, 8), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=table, dge_mode=nisa.dge_mode.hwdge)

    def not_added_to(table, index):
        nisa.dma_compute(
            dst=table.vector_select(0, nl.load(index)), srcs=[nl.zeros((4, 8), dtype=nl.float32)], reduce_op=nl.add
        )

    def multiplied(table, index):
        nisa.dma_compute(dst=table, srcs=[table], reduce_op=nl.multiply)

    codes = {
        both: "TRN411",
        by_sync: "TRN401",
        part_of_rows: "TRN410",
        cast_by_hardware: "TRN411",
        not_added_to: "TRN411",
        multiplied: "TRN411",
    }
    for body, code in codes.items():
        with pytest.raises(ConstraintError) as caught:
            nki.jit(body)(normal(10, 8), picks(4, 10))
        assert (caught.value.code, caught.value.where.file) == (code, __file__), caught.value


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("to", [None, "bfloat16"])
def test_load_transpose2d_moves_the_same_bits(target, dtype, to):
    """By the PE array, by the DMA engines or element by element; with and without a cast."""
    x = (np.random.default_rng(0).standard_normal((300, 96)) * 1000).astype(
        ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    )

    @old_nki.jit(platform_target=target)
    def kernel(x):
        kind = old_nl.bfloat16 if to else x.dtype
        out = old_nl.ndarray((96, 300), dtype=kind, buffer=old_nl.shared_hbm)
        old_nl.store(out, old_nl.load_transpose2d(x, dtype=kind))
        return out

    expected = x.T if to is None else x.T.astype(np.float32).astype(ml_dtypes.bfloat16)
    assert kernel(x).tobytes() == np.ascontiguousarray(expected).tobytes()


def test_load_transpose2d_moves_rows():
    """A matrix of float32 is loaded in rows, one of bfloat16 transposed on the way, as the kernel is written."""

    @old_nki.jit(platform_target="trn2")
    def kernel(x):
        out = old_nl.ndarray((128, 512), dtype=x.dtype, buffer=old_nl.shared_hbm)
        old_nl.store(out, old_nl.load_transpose2d(x))
        return out

    def kinds(dtype):
        with policy.use("as-written"):
            timeline = kernel.timeline(np.zeros((512, 128), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))
        return [timeline.ops[i].name for i in timeline.op]

    assert sorted(kinds("float32")) == ["dma_copy"] * 5 + ["nc_transpose"] * 4 + ["tensor_copy"] * 4
    assert sorted(kinds("bfloat16")) == ["dma_copy", "dma_transpose"]
