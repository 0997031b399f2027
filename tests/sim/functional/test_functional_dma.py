# SPDX-License-Identifier: Apache-2.0
"""DMA: elements correspond in row-major order, whatever the shapes of the two sides; casts; gathers, bounds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from functional_bench import CHIP

from trnlab.errors import RunError
from trnlab.isa.base import Engine
from trnlab.program.access import hbm_view
from trnlab.program.builder import Builder
from trnlab.sim.functional import Machine, RunOptions

BF16 = ml_dtypes.bfloat16


def run(b: Builder, *args: np.ndarray, **options: bool) -> Machine:
    machine = Machine(CHIP, RunOptions(**options))
    machine.call(b.build(), args)
    return machine


@pytest.mark.parametrize("by_definition", [False, True])
@pytest.mark.parametrize(("dtype", "kind"), [("float32", np.float32), ("bfloat16", BF16), ("uint8", np.uint8)])
def test_hbm_to_sbuf_and_back_through_strides(dtype, kind, by_definition):
    x = np.random.default_rng(0).integers(0, 100, (8, 12, 10)).astype(kind)
    y, z = np.zeros((10, 8, 12), kind), np.zeros((96, 10), kind)
    b = Builder("dma", CHIP)
    px, py, pz = b.param("x", x.shape, dtype), b.param("y", y.shape, dtype), b.param("z", z.shape, dtype)
    t, u = b.tile((96, 10), dtype), b.tile((10, 96), dtype)
    b.dma_copy(dst=t, src=px)  # [8, 12, 10] into [96, 10]
    b.dma_copy(dst=u, src=hbm_view(px.buffer, 0, ((1, 10), (10, 96))))  # transposed on the way
    b.dma_copy(dst=py, src=u)
    b.dma_copy(dst=pz[0:40], src=t[56:96])
    b.dma_copy(dst=pz[40:96], src=px.buffer and hbm_view(px.buffer, 0, ((10, 56), (1, 10))))
    run(b, x, y, z, by_definition=by_definition)
    flat = x.reshape(96, 10)
    np.testing.assert_array_equal(y.reshape(10, 96), flat.T)
    np.testing.assert_array_equal(z, np.concatenate([flat[56:], flat[:56]]))


@pytest.mark.parametrize("by_definition", [False, True])
def test_casts_on_the_way(by_definition):
    x = np.random.default_rng(1).standard_normal((6, 70)).astype(np.float32)
    y, z, w = np.zeros((6, 70), BF16), np.zeros((70, 6), np.float32), np.zeros((6, 70), np.int8)
    b = Builder("cast", CHIP)
    px, py, pz, pw = (
        b.param(n, a.shape, d)
        for n, a, d in (("x", x, "float32"), ("y", y, "bfloat16"), ("z", z, "float32"), ("w", w, "int8"))
    )
    t = b.tile((6, 70), "bfloat16")
    b.dma_copy(dst=t, src=px)
    b.dma_copy(dst=py, src=t)
    b.dma_copy(dst=pz, src=hbm_view(py.buffer, 0, ((1, 70), (70, 6))))
    b.dma_copy(dst=pw, src=px)
    run(b, x, y, z, w, by_definition=by_definition)
    np.testing.assert_array_equal(y, x.astype(BF16))
    np.testing.assert_array_equal(z, x.astype(BF16).astype(np.float32).T)
    np.testing.assert_array_equal(w, np.clip(np.rint(x), -128, 127).astype(np.int8))


def test_a_row_read_again_and_again_fills_every_partition():
    x, y = np.arange(33, dtype=np.float32), np.zeros((128, 33), np.float32)
    b = Builder("broadcast", CHIP)
    px, py = b.param("x", (33,), "float32"), b.param("y", y.shape, "float32")
    t = b.tile((128, 33), "float32")
    b.dma_copy(dst=t, src=hbm_view(px.buffer, 0, ((0, 128), (1, 33))))
    b.dma_copy(dst=py, src=t)
    run(b, x, y)
    np.testing.assert_array_equal(y, np.tile(x, (128, 1)))


def gather(index: np.ndarray, dtype: str, **options: bool) -> np.ndarray:
    table = np.arange(50 * 24, dtype=np.float32).reshape(50, 24)
    out = np.zeros((len(index), 24), np.float32)
    b = Builder("gather", CHIP)
    pt, pi, po = (
        b.param("table", table.shape, "float32"),
        b.param("i", index.shape, "int32"),
        b.param("o", out.shape, "float32"),
    )
    i, t = b.tile((len(index), 1), "int32"), b.tile((len(index), 24), dtype)
    b.dma_copy(dst=i, src=pi)
    b.dma_copy(dst=t, src=pt, index=i, engine=Engine.GPSIMD)
    b.dma_copy(dst=po, src=t)
    run(b, table, index, out, **options)
    return out


@pytest.mark.parametrize("rows", [5, 128])
def test_a_gather_of_finite_rows_passes_the_check_for_nan(rows):
    """Behind its last row there is memory that was never written, which is NaN."""
    index = np.arange(rows, dtype=np.int32)[:, None] % 50
    assert np.isfinite(gather(index, "float32", check_nan=True)).all()


@pytest.mark.parametrize("by_definition", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gather_takes_rows(dtype, by_definition):
    index = np.random.default_rng(2).integers(0, 50, (128, 1)).astype(np.int32)
    expected = np.arange(50 * 24, dtype=np.float32).reshape(50, 24)[index[:, 0]]
    if dtype == "bfloat16":
        expected = expected.astype(BF16).astype(np.float32)
    np.testing.assert_array_equal(gather(index, dtype, by_definition=by_definition), expected)


@pytest.mark.parametrize("bad", [50, -1, 2**31 - 1])
@pytest.mark.parametrize("by_definition", [False, True])
def test_gather_outside_of_its_table_is_an_error(bad, by_definition):
    index = np.zeros((5, 1), np.int32)
    index[3] = bad
    with pytest.raises(RunError) as caught:
        gather(index, "float32", by_definition=by_definition)
    text = str(caught.value)
    assert "row that does not exist" in text
    assert "rows 0..49" in text or by_definition
    assert str(bad) in text


def test_spilling_to_scratch_and_back():
    x, y = np.random.default_rng(3).standard_normal((128, 64)).astype(np.float32), np.zeros((128, 64), np.float32)
    b = Builder("spill", CHIP)
    px, py = b.param("x", x.shape, "float32"), b.param("y", y.shape, "float32")
    first, second = b.scratch("s0", (3, 7), "bfloat16"), b.scratch("s1", (128, 64), "float32")
    t = b.tile((128, 64), "float32")
    b.dma_copy(dst=t, src=px)
    b.dma_copy(dst=second, src=t)
    b.memset(dst=t, value=0)
    b.dma_copy(dst=first, src=t[0:3, 0:7])
    b.dma_copy(dst=t, src=second)
    b.dma_copy(dst=py, src=t)
    run(b, x, y)
    np.testing.assert_array_equal(x, y)


def test_long_runs_are_converted_in_pieces():
    x = np.random.default_rng(4).standard_normal(77077).astype(np.float32)
    y = np.zeros(77077, BF16)
    b = Builder("long", CHIP)
    b.dma_copy(dst=b.param("y", y.shape, "bfloat16"), src=b.param("x", x.shape, "float32"))
    routine = b.build()
    Machine(CHIP).call(routine, [y, x])
    np.testing.assert_array_equal(y, x.astype(BF16))
