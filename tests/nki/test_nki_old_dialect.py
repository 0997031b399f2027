# SPDX-License-Identifier: Apache-2.0
"""Kernels of the old dialect: index expressions, masks, blocks, assignment; and the imports of both dialects."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from trnlab import chips, timeline
from trnlab.errors import ConstraintError
from trnlab.nki import neuronxcc as nki
from trnlab.nki import portable
from trnlab.nki.neuronxcc import isa as nisa
from trnlab.nki.neuronxcc import language as nl
from trnlab.program.text import routine_text

RNG = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@nki.jit
def add_grid(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    ix = nl.program_id(0) * 128 + nl.arange(128)[:, None]
    iy = nl.program_id(1) * 64 + nl.arange(64)[None, :]
    nl.store(out[ix, iy], value=nl.load(a[ix, iy]) + nl.load(b[ix, iy]))
    return out


def test_index_expressions_and_operators():
    a, b = normal(256, 128), normal(256, 128)
    np.testing.assert_array_equal(add_grid[2, 2](a, b), a + b)


@nki.jit
def masked_square(x):
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range((rows + 127) // 128):
        ip, iy = nl.mgrid[0:128, 0:columns]
        here = i * 128 + ip < rows
        tile = nl.load(x[i * 128 + ip, iy], mask=here)
        nl.store(out[i * 128 + ip, iy], value=nl.square(tile, mask=here), mask=here)
    return out


def test_a_mask_leaves_out_what_is_outside():
    x = normal(200, 32)
    np.testing.assert_allclose(masked_square(x), x * x, rtol=1e-6)


@nki.jit
def pool(x):
    p, h, w = x.shape
    out = nl.ndarray((p, h // 2, w // 2), dtype=x.dtype, buffer=nl.shared_hbm)
    i0, i1, i2, i3, i4 = nl.mgrid[0:p, 0 : h // 2, 0:2, 0 : w // 2, 0:2]
    nl.store(out, nl.sum(nl.load(x)[i0, 2 * i1 + i2, 2 * i3 + i4], axis=[2, 4]) / 4)
    return out


def test_expressions_over_several_axes_are_strided_views():
    x = normal(16, 6, 8)
    np.testing.assert_allclose(pool(x), x.reshape(16, 3, 2, 4, 2).mean((2, 4)), rtol=1e-5, atol=1e-6)


@nki.jit
def blocked_matmul(a, b):
    k, m = a.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)
    lhs = nl.ndarray((k // 128, nl.par_dim(128), m), dtype=a.dtype, buffer=nl.sbuf)
    for i in nl.affine_range(k // 128):
        lhs[i] = nl.load(a[i * 128 : (i + 1) * 128, :])
    acc = nl.zeros((m, n), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(k // 128):
        acc += nisa.nc_matmul(lhs[i, :, :], nl.load(b[i * 128 : (i + 1) * 128, :]))
    nl.store(out, value=nl.copy(acc, dtype=a.dtype))
    return out


def test_blocks_of_tiles_and_accumulation_by_plus_equals():
    a, b = normal(256, 64), normal(256, 128)
    np.testing.assert_allclose(blocked_matmul(a, b), a.T @ b, rtol=1e-4, atol=1e-4)


def test_a_result_that_is_assigned_is_written_there_by_its_own_instruction():
    names = [op for op, _ in operations(blocked_matmul.trace(normal(256, 64), normal(256, 128)).routine)]
    assert names == ["dma_copy"] * 2 + ["nc_matmul"] * 2 + ["tensor_copy", "dma_copy"]  # loads along k are joined


def operations(routine):
    from trnlab import isa

    return [(isa.BY_OPCODE[int(code)].name, i) for i, code in enumerate(routine.opcode)]


@nki.jit
def causal(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ix, iy = nl.mgrid[0:64, 0:64]
    nl.store(out, nisa.affine_select(pred=(iy < ix), on_true_tile=nl.load(x), on_false_value=-1.0))
    return out


def test_a_comparison_of_expressions_selects():
    x = normal(64, 64)
    np.testing.assert_array_equal(causal(x), np.where(np.tril(np.ones((64, 64)), -1) > 0, x, -1))


def test_a_kernel_may_write_to_its_arguments():
    @nki.trace
    def copy(src, dst):
        nl.store(dst, nl.load(src))

    x, y = normal(8, 8), np.zeros((8, 8), np.float32)
    nki.simulate_kernel(copy, x, y)
    np.testing.assert_array_equal(x, y)


def test_a_mask_over_two_axes_is_refused():
    @nki.jit
    def triangle(x):
        ix, iy = nl.mgrid[0:64, 0:64]
        return nl.load(x[ix, iy], mask=iy < ix)

    with pytest.raises(ConstraintError, match="each index by itself"):
        triangle(normal(64, 64))


def test_benchmark_gives_a_figure_without_touching_numbers():
    bench = nki.benchmark(warmup=5, iters=10)(blocked_matmul)
    bench(normal(256, 64), normal(256, 128))
    assert bench.benchmark_result.nc_latency.get_latency_percentile(99) > 1


def test_benchmark_writes_the_files_that_scripts_move_away(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bench = nki.benchmark(blocked_matmul, save_neff_name="file.neff", save_trace_name="mine.ntff")
    for _ in range(2):  # the second call replaces what the first one wrote
        bench(normal(256, 64), normal(256, 128))
        recorded = portable.loads((tmp_path / "file.neff").read_bytes(), chips.get("trn2"))
        assert "nc_matmul" in routine_text(recorded.trace.routine)
        (tmp_path / "file.neff").rename("mine.neff")
        found = timeline.load(tmp_path / "mine.ntff")
        assert found.total == blocked_matmul.timeline(normal(256, 64), normal(256, 128)).total


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (40, 100), (32, 33)])
def test_vector_engine_transposes_large_tiles_in_blocks(rows, columns):
    @nki.jit
    def turned(x):
        out = nl.ndarray((columns, rows), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nisa.nc_transpose(nl.load(x), engine=nisa.vector_engine))
        return out

    x = normal(rows, columns)
    np.testing.assert_array_equal(turned(x), x.T)
    blocks = -(-rows // 32) * -(-columns // 32)
    assert len(turned.trace(x).routine) == 2 + blocks


@pytest.mark.parametrize("buffer", [nl.psum, nl.sbuf])
def test_independent_iterations_share_a_sum_however_it_is_written(buffer):
    """total[...] = total + x is the associative reduction that total += x is; x - total is none."""

    def kernel(x, w, step):
        total = nl.zeros((64, 256), dtype=nl.float32, buffer=buffer)
        for k in nl.affine_range(4):
            step(total, nisa.nc_matmul(nl.load(w[k]), nl.load(x[k])))
        out = nl.ndarray((64, 256), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    def add(total, product):
        total[...] = nl.add(total, product)

    def plus(total, product):
        total[...] = total + product

    def turned(total, product):
        total[...] = nl.subtract(product, total)

    x, w = normal(4, 128, 256), normal(4, 128, 64)
    expected = np.einsum("kpm,kpn->mn", w, x)
    for step in (add, plus):
        np.testing.assert_allclose(nki.jit(kernel)(x, w, step), expected, rtol=0, atol=1e-3)
    with pytest.raises(ConstraintError, match="TRN434"):
        nki.jit(kernel)(x, w, turned)


def test_imports_of_both_dialects_resolve_here():
    program = (
        "import trnlab.nki; trnlab.nki.install_imports(override=True)\n"
        "import nki, nki.isa as nisa, nki.language as nl, neuron_dtypes\n"
        "from neuronxcc import nki as old\n"
        "import neuronxcc.nki.language as ol\n"
        "from neuronxcc.nki.typing import tensor\n"
        "assert nl.ndarray and nisa.nc_matmul and old.baremetal and ol.arange\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
