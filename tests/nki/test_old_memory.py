# SPDX-License-Identifier: Apache-2.0
"""Memory of the old dialect: allocation, assignment, formats of results, indices known at run time, zeros in PSUM."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trnlab import isa
from trnlab.errors import ConstraintError, RunError
from trnlab.isa.base import Memory
from trnlab.lang.formats import format_of
from trnlab.nki import checks
from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import compiler as ncc
from trnlab.nki.neuronxcc import elementwise as each
from trnlab.nki.neuronxcc import isa as nisa
from trnlab.nki.neuronxcc import language as nl
from trnlab.nki.typing import tensor

RNG = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def places(kernel, memory, *arrays):
    """Address of each tile by name."""
    buffers = kernel.trace(*arrays).routine.buffers
    return {b.name: b.address for b in buffers if b.memory is memory}


def instructions(kernel, *arrays):
    return [isa.BY_OPCODE[int(code)].name for code in kernel.trace(*arrays).routine.opcode]


# -- allocation -----------------------------------------------------------------------------------------------------
@nki.jit
def allocated(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    n = x.shape[0] // 128
    at = 4096
    for i in nl.affine_range(n):
        turns = nl.ndarray(
            (n, nl.par_dim(128), 64),
            dtype=x.dtype,
            name="turns",
            buffer=ncc.sbuf.mod_alloc(base_addr=at, num_free_tiles=(2,)),
        )
        at += 512  # happens once: the body of the loop is the same in every iteration
        sums = nl.ndarray(
            (n, nl.par_dim(64), 64),
            dtype=nl.float32,
            name="sums",
            buffer=ncc.psum.mod_alloc(base_bank=3, num_bank_tiles=(2,)),
        )
        chosen = nl.ndarray(
            (nl.par_dim(64), 64),
            dtype=x.dtype,
            name="chosen",
            buffer=ncc.sbuf.alloc(lambda idx, pdim_size, fdim_size: (0, 8192 + fdim_size)),
        )
        turns[i] = nl.load(x[i * 128 : (i + 1) * 128, :])
        sums[i] = nisa.nc_matmul(turns[i], turns[i])
        chosen[...] = nl.copy(sums[i])
        nl.store(out[i * 128 : i * 128 + 64, :], chosen)
        nl.store(out[i * 128 + 64 : (i + 1) * 128, :], chosen)
    return out


def test_tiles_lie_where_allocators_put_them():
    x = normal(384, 64)
    got = allocated(x)
    wanted = np.concatenate([np.tile(b.T @ b, (2, 1)) for b in np.split(x, 3)])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    sbuf = places(allocated, Memory.SBUF, x)
    assert [sbuf[f"turns[{i}]"] for i in range(3)] == [4096, 4096 + 256, 4096]
    assert sbuf["chosen"] == 8192 + 256
    assert [places(allocated, Memory.PSUM, x)[f"sums[{i}]"] for i in range(3)] == [3 * 2048, 4 * 2048, 3 * 2048]


def test_addresses_may_be_left_to_trnlab():
    free = ncc.force_auto_alloc(nki.jit(lambda x: allocated.function(x)))
    x = normal(128, 64)
    assert places(free, Memory.SBUF, x)["turns[0]"] != 4096


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (lambda: ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2, 2)), "for each dimension that numbers tiles"),
        (lambda: ncc.sbuf.alloc(lambda idx, pdim_size, fdim_size: (0, 0, 0)), "gives the place of a tile"),
        (lambda: ncc.psum.mod_alloc(base_bank=8), "lies within one bank"),
        (lambda: "sbuf", "not a memory region"),
    ],
)
def test_allocators_that_make_no_sense(buffer, message):
    @nki.jit
    def kernel(x):
        tiles = nl.ndarray((2, nl.par_dim(128), 64), dtype=nl.float32, buffer=buffer())
        nisa.memset((128, 64), 0, nl.float32)
        tiles[0] = nl.load(x)

    with pytest.raises(ConstraintError, match=message):
        kernel(normal(128, 64))


# -- assignment -----------------------------------------------------------------------------------------------------
@nki.jit
def named(x):
    out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
    buffer = nl.ndarray(x.shape, dtype=x.dtype)
    powers = nl.exp(nl.load(x))
    buffer[...] = powers
    buffer[...] = 0.0
    nl.store(out[0], powers)
    buffer[...] = nl.where(nl.load(x) > 0, powers, -1.0)
    nl.store(out[1], buffer)
    return out


def test_a_value_that_has_a_name_keeps_what_it_holds():
    x = normal(8, 16)
    np.testing.assert_allclose(named(x), [np.exp(x), np.where(x > 0, np.exp(x), -1)], rtol=1e-5)


@nki.jit
def one_row(x):
    tile = nl.zeros((8, 4), dtype=nl.int32)
    for i in nl.static_range(8):
        tile[i, 1] = i * 5
    tile[3:4, 2:4] = nl.load(x[0:1, 0:2])
    return tile


def test_rows_that_no_engine_starts_on_are_written_by_dma():
    wanted = np.zeros((8, 4), np.int32)
    wanted[:, 1] = np.arange(8) * 5
    wanted[3, 2:] = [7, 9]
    np.testing.assert_array_equal(one_row(np.array([[7, 9]], np.int32)), wanted)


@nki.jit
def partly_summed(x):
    total = nl.zeros((64, 96), dtype=nl.float32, buffer=nl.psum)
    tile = nl.load(x)
    total[:, 32:64] += nisa.nc_matmul(tile, tile[:, 0:32])
    total[:, 32:64] += nisa.nc_matmul(tile, tile[:, 32:64])
    return nl.copy(total)


def test_zeros_of_psum_are_written_where_no_sum_was():
    x = normal(16, 64)
    wanted = np.zeros((64, 96), np.float32)
    wanted[:, 32:64] = x.T @ (x[:, :32] + x[:, 32:])
    np.testing.assert_allclose(partly_summed(x), wanted, rtol=1e-4, atol=1e-4)


# -- formats --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        ("int32", "float16", "float16"),
        ("uint16", "tfloat32", "tfloat32"),
        ("float32", "tfloat32", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float16", "bfloat16", "float32"),
        ("float8_e4m3", "float16", "float16"),
        ("float8_e4m3", "bfloat16", "bfloat16"),
        ("float8_e4m3", "float8_e5m2", "bfloat16"),
        ("int16", "int32", "int32"),
        ("uint8", "uint16", "uint16"),
        ("uint16", "int32", "int32"),
        ("int8", "uint8", "int16"),
        ("int8", "uint16", "int32"),
        ("int32", "uint32", "float32"),
        (2, "int8", "int32"),
        (1.2, "float16", "float32"),
        (np.float16(2), "float16", "float16"),
        (np.int8(2), "int8", "int8"),
        (True, "int8", "int16"),
        (2, "bfloat16", "bfloat16"),
    ],
)
def test_the_format_of_a_result(one, two, both):
    """The examples of "NKI Type Promotion" and "Weakly Typed Scalar Type Inference"."""

    @nki.jit
    def kernel(x):
        tiles = [nl.zeros((1, 4), dtype=k) if isinstance(k, str) else k for k in (one, two)]
        for x, y in (tiles, tiles[::-1]):
            assert each.promoted(x, y) == format_of(both)

    kernel(normal(1, 1))


# -- indices that are known at run time -----------------------------------------------------------------------------
@nki.jit
def moved(x, rows, starts):
    out = nl.ndarray((2, 2, 2 * rows.shape[0], 4), dtype=x.dtype, buffer=nl.shared_hbm)
    ip, jf = nl.arange(rows.shape[0])[:, None], nl.arange(4)[None, :]
    index = nl.load(rows)
    gathered = nl.load(x[1, index[ip, 0], jf])
    nl.store(out[0, 0], 0.0)
    nl.store(out[0, 0, ip, jf], gathered)
    everything = nl.load(x[0])
    offsets = nl.load(starts)
    nl.store(out[0, 1], 0.0)
    px, jx = nl.mgrid[0 : rows.shape[0], 0:2]
    for i in nl.affine_range(2):
        some = nisa.tensor_copy_dynamic_src(everything[px, offsets[0, i] + jx])
        nl.store(out[0, 1, px, 2 * i + jx], some)
    target = nl.zeros((2 * rows.shape[0], 4), dtype=x.dtype)
    nl.store(out[1, 0], target)
    nl.store(out[1, 0, index, jf], gathered)
    nl.store(out[1, 1], nl.add(target, 1.0))
    nl.atomic_rmw(out[1, 1, index, jf], value=gathered, op=np.add)
    return out


def test_rows_and_starts_that_tiles_choose():
    x, rows = normal(2, 8, 4), np.array([[1], [6], [3], [4]], np.int32)
    out = moved(x, rows, np.array([[2, 0]], np.int32))
    np.testing.assert_array_equal(out[0, 0, :4], x[1, rows[:, 0]])
    np.testing.assert_array_equal(out[0, 1, :4], np.concatenate([x[0, :4, 2:], x[0, :4, :2]], 1))
    scattered = np.zeros((8, 4), np.float32)
    scattered[rows[:, 0]] = x[1, rows[:, 0]]
    np.testing.assert_array_equal(out[1, 0], scattered)
    np.testing.assert_allclose(out[1, 1], scattered + 1, rtol=1e-6)


# -- decorators -----------------------------------------------------------------------------------------------------
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * 2)
    return out


def test_modes_and_targets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = normal(4, 4)
    for kernel in (
        nki.jit(mode="simulation")(double),
        nki.baremetal(save_neff_name="file.neff")(double),
        nki.trace(double),
        nki.jit(double, platform_target="trn1"),
    ):
        np.testing.assert_array_equal(kernel(x), x * 2)
    assert nki.jit(double, platform_target="gen4").chip.name == "trn3"
    bench = nki.jit(double, mode="benchmark", quiet=True)
    bench(tensor[[4, 4], nl.float32])
    assert bench.benchmark_result.nc_latency.get_latency_percentile(50) > 1
    np.testing.assert_array_equal(nki.simulate_kernel(bench, x), x * 2)
    with pytest.warns(UserWarning, match="sped"):
        nki.jit(double, sped=3)


def test_a_profile_is_a_folder(tmp_path):
    kernel = nki.profile(
        working_directory=str(tmp_path / "p"),
        save_neff_name="k.neff",
        save_trace_name="t.ntff",
        profile_nth=2,
        num_execs=4,
        quiet=True,
    )(double)
    kernel(normal(4, 4))
    names = sorted(p.name for p in (tmp_path / "p").iterdir())
    assert names == ["json_reports", "k.neff", "t_exec_2.ntff", "t_exec_4.ntff"]
    report = json.loads(next((tmp_path / "p" / "json_reports").iterdir()).read_text())
    assert report["summary"][0]["total_time"] * 1e6 == pytest.approx(
        kernel.benchmark_result.nc_latency.get_latency_percentile(99)
    )
    with pytest.raises(RunError, match="already there"):
        kernel(normal(4, 4))


@nki.jit
def odd_bytes(x):
    tile, one = nl.load(x), nl.ndarray((128, 1), dtype=nl.float32)
    one[...] = nl.sum(tile, axis=1)
    last = nl.ndarray((nl.par_dim(128), 3), dtype=nl.float16)
    last[:, 0] = nl.copy(one)
    last[:, 1:3] = nl.copy(tile[:, 0:2])
    return last


def test_partitions_of_an_odd_number_of_bytes_do_not_touch_each_other():
    x = normal(128, 4)
    wanted = np.concatenate([x.sum(1, keepdims=True), x[:, :2]], 1)
    np.testing.assert_allclose(odd_bytes(x).astype(np.float32), wanted, rtol=1e-2, atol=1e-2)


def test_a_machine_has_partitions_that_start_aligned():
    from trnlab import chips
    from trnlab.sim.functional import Machine

    assert Machine(chips.get("trn2"), sbuf_bytes=1346).sbuf.strides[0] % 64 == 0


# -- sums in PSUM of which a part is started anew -------------------------------------------------------------------
@pytest.mark.parametrize("form", ["start", "add", "pieces", "zeros"])
def test_a_sum_of_which_a_part_was_overwritten_keeps_the_rest(form):
    """What is zeroed when first read is what nothing has written, and += adds to whatever has."""

    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((32, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        weights, data = nl.load(w), nl.load(x)
        total = nl.zeros((32, 64), dtype=nl.float32, buffer=nl.psum)
        if form == "pieces":
            total[:, 0:48] += nisa.nc_matmul(weights, data[:, 0:48])
        elif form != "zeros":
            total += nisa.nc_matmul(weights, data)
        total[:, 48:64] = nisa.nc_matmul(weights, data[:, 40:56])
        if form != "start":
            total += nisa.nc_matmul(weights, data)
        nl.store(out, nl.multiply(total, 1.0))
        return out

    x, w = normal(32, 64), normal(32, 32)
    expected = np.zeros((32, 64), np.float32)
    if form != "zeros":
        expected += w.T @ x
    expected[:, 48:] = w.T @ x[:, 40:56]
    expected += (form != "start") * (w.T @ x)
    with checks(accumulation="off"):
        np.testing.assert_allclose(kernel(x, w), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
