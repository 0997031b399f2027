# SPDX-License-Identifier: Apache-2.0
"""What kernels of earlier releases import and write: modules, arguments, grids and offsets that are taken today."""

from __future__ import annotations

import importlib
import sys
import warnings

import numpy as np
import pytest

import trnlab.nki
import trnlab.nki.language as new_nl
import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.isa as nisa
import trnlab.nki.neuronxcc.language as nl
from trnlab.errors import ConstraintError, UsageError
from trnlab.nki import imports
from trnlab.nki.neuronxcc import iterators, nccl, private_api, typing

RNG = np.random.default_rng(0)


@pytest.fixture
def installed(monkeypatch):
    """The vendor's names find trnlab within the test."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = dict(sys.modules)
    imports.install_imports(override=True)
    yield
    for name in [n for n in sys.modules if n.split(".")[0] in (*imports.ROOTS, "nki_samples")]:
        del sys.modules[name]
    sys.modules.update({n: m for n, m in before.items() if n.split(".")[0] in imports.ROOTS})


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("neuronxcc.nki.kernels.attention", "aws-neuron/nki-samples"),
        ("neuronxcc.nki._pre_prod_kernels.blockwise_mm", "nobody has published"),
        ("neuronxcc.nki._private_kernels.mlp", "aws-neuron/nki-library"),
        ("neuronxcc.starfish.penguin", "internals have no counterpart"),
        ("nki.compiler.kernel_builder", "nki.simulate"),
    ],
)
def test_what_cannot_be_there_says_where_it_is(installed, module, says):
    """As an ImportError, which scripts catch to take another way."""
    with pytest.raises(ModuleNotFoundError, match=says):
        importlib.import_module(module)


def test_kernels_of_the_samples_are_found_where_they_are_published(installed, tmp_path, monkeypatch):
    """neuronxcc.nki.kernels is nki_samples.reference, once that is on the path."""
    folder = tmp_path / "nki_samples" / "reference"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "attention.py").write_text("from neuronxcc.nki import language as nl\nflash_fwd = nl.par_dim\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("neuronxcc.nki.kernels.attention").flash_fwd is nl.par_dim


def test_a_private_name_that_is_not_there_is_an_import_error():
    with pytest.raises(ImportError, match=r"core_barrier.*not 'cc_div'"):
        from trnlab.nki.neuronxcc.private_api import cc_div  # noqa: F401


def test_a_number_in_a_tile_of_floats_is_an_offset():
    """As max8 and nc_find_index8 leave it, copied into a tile of the values' format."""

    @nki.jit
    def choose(index, table):
        all_of_them = nl.load(index)
        one = nl.ndarray((1, 1), dtype=np.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=one[0:1, 0:1], src=all_of_them[2:3, 1:2])
        out = nl.ndarray(table.shape[1:], dtype=table.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(table[one[0, 0], :, :]))
        return out

    table = RNG.standard_normal((8, 64, 32)).astype(np.float32)
    index = np.zeros((4, 2), np.float32)
    index[2, 1] = 5
    with pytest.warns(UserWarning, match="converted to int32"):
        result = choose(index, table)
    np.testing.assert_array_equal(result, table[5])


def test_a_range_is_an_index():
    """Of Python, in both dialects, with its step."""

    @nki.jit
    def old(x):
        out = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x[range(128), :])
        nl.store(out, tile[:, range(0, 16, 2)])
        return out

    @trnlab.nki.jit
    def new(x):
        out = new_nl.ndarray((128, 8), x.dtype, buffer=new_nl.shared_hbm)
        for step in new_nl.range(1):
            new_nl.store(out, new_nl.load(x)[:, range(step, 16, 2)])
        return out

    x = RNG.standard_normal((128, 16)).astype(np.float32)
    np.testing.assert_array_equal(old(x), x[:, ::2])
    np.testing.assert_array_equal(new(x), x[:, ::2])


def test_more_cores_than_there_are_share_two():
    """nl.nc(4) asks for cores that no logical core has: every program runs, and that is said."""

    @nki.jit
    def twice(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        rows = slice(nl.program_id(0) * 32, (nl.program_id(0) + 1) * 32)
        nl.store(out[rows, :], nl.load(x[rows, :]) * 2.0)
        return out

    x = RNG.standard_normal((128, 16)).astype(np.float32)
    with pytest.warns(UserWarning, match=r"nl.nc\(4\): a logical core has at most 2"):
        launched = twice[nl.nc(4)]
    assert len(launched.grid.cores) == 2
    np.testing.assert_array_equal(launched(x), x * 2)


def test_the_partition_of_earlier_releases_is_a_size():
    with pytest.warns(UserWarning, match="par_dim"):
        assert new_nl.par_dim(64) == 64


def test_a_mutable_tensor_by_its_older_name():
    assert typing.tensor[typing.mutable] is typing.mutable_tensor


def test_collectives_of_the_old_dialect():
    """Plain groups; the sum over two ranks, and what each gathers."""

    @nki.jit
    def both(x):
        total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        gathered = nl.ndarray((2 * x.shape[0], x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
        nccl.all_reduce(op=np.add, srcs=[x], dsts=[total], replica_groups=[[0, 1]], dtype=x.dtype)
        nccl.all_gather(op=np.add, srcs=[x], dsts=[gathered], replica_groups=[[0, 1]], all_gather_dim=0)
        return total, gathered

    parts = RNG.standard_normal((2, 64, 16)).astype(np.float32)
    for total, gathered in trnlab.nki.simulate(both, ranks=2)(trnlab.nki.per_rank(list(parts))):
        np.testing.assert_array_equal(total, parts.sum(0))
        np.testing.assert_array_equal(gathered, parts.reshape(128, 16))


def test_cores_exchange_tiles_through_the_private_names():
    @nki.jit
    def sum_of_both(x):
        out = nl.ndarray((2, *x.shape[1:]), dtype=x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        mine = nl.load(x[me])
        other = nl.zeros(mine.shape, dtype=mine.dtype)
        private_api.sendrecv(src=mine, dst=other, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nl.store(out[me], mine + other)
        private_api.core_barrier(out, (0, 1))
        return out

    x = RNG.standard_normal((2, 64, 16)).astype(np.float32)
    np.testing.assert_array_equal(sum_of_both[nl.nc(2)](x), np.stack([x.sum(0)] * 2))


def test_what_only_one_program_does():
    """A block of its own where there is one program along the axes, refused where there are more."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        with iterators.sync_program((0,)):
            nl.store(out, nl.load(x))
        return out

    x = RNG.standard_normal((64, 16)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(kernel[1](x), x)
    with pytest.raises(ConstraintError, match="TRN414"):
        kernel[2](x)


def test_a_loop_that_only_the_compiler_can_repeat_is_refused():
    @nki.jit
    def kernel(x):
        with private_api.do_while(x):
            return x

    with pytest.raises(ConstraintError, match=r"TRN414.*\n(.*\n)*.*nl.while_loop"):
        kernel(np.ones((1, 1), np.int32))


def test_a_core_with_nothing_to_do_may_slice_its_share():
    """An empty slice is a view; only an instruction on it is refused."""

    @trnlab.nki.jit
    def share(x, use):
        out = new_nl.ndarray(x.shape, x.dtype, buffer=new_nl.shared_hbm)
        mine = new_nl.ds(0, x.shape[0] if new_nl.program_id(0) else 0)
        for row in range(x[mine].shape[0]):
            new_nl.store(out[mine][row : row + 1], new_nl.load(x[row : row + 1]))
        if use:
            new_nl.store(out[0:0], new_nl.load(x[0:0]))
        return out

    x = RNG.standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_array_equal(share[2](x, False), x)
    with pytest.raises(ConstraintError, match="TRN410"):
        share[2](x, True)


def test_bits_of_one_number_reach_all_partitions():
    """A [1, 1] tile of 32 bits next to a column: 0xFFFFFFFD and -(2**31) + 1 are no float32."""

    @nki.jit
    def kernel(x, bit, large):
        out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nl.store(out[0], nl.bitwise_and(tile, nl.invert(nl.load(bit))))
        nl.store(out[1], nl.bitwise_or(tile, nl.load(large)))
        return out

    x = np.arange(128, dtype=np.uint32)[:, None]
    bit, large = np.array([[2]], np.uint32), np.array([[0x80000001]], np.uint32)
    np.testing.assert_array_equal(kernel(x, bit, large), np.stack([x & ~bit, x | large]))


def test_none_is_a_new_dimension():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((64, 4, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nl.store(out, nl.add(tile[:, None, :], nl.zeros((64, 4, 8), dtype=x.dtype)))
        return out

    x = RNG.standard_normal((64, 8)).astype(np.float32)
    np.testing.assert_array_equal(kernel(x), np.repeat(x[:, None], 4, 1))


def test_masks_joined_by_or_where_one_is_decided():
    @nki.jit
    def kernel(x, rows, late):
        out = nl.zeros(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        p, f = nl.mgrid[0:64, 0:8]
        mask = (p < rows) | (f < late)
        nl.store(out[p, f], nl.load(x[p, f], mask=mask), mask=mask)
        return out

    x = RNG.standard_normal((64, 8)).astype(np.float32)
    expected = np.where(np.arange(64)[:, None] < 50, x, 0)
    np.testing.assert_array_equal(kernel(x, 50, 0), expected)
    np.testing.assert_array_equal(kernel(x, 50, 8), x)
    with pytest.raises(ConstraintError, match="TRN411"):
        kernel(x, 50, 4)


def test_columns_that_nobody_uses_may_be_undefined_in_a_sum():
    """A last tile that is not full, summed up whole in PSUM: an alarm only where an undefined column is stored."""

    def kernel(w, x, stored):
        columns = x.shape[1]
        out = nl.ndarray((128, stored), dtype=np.float32, buffer=nl.shared_hbm)
        total = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
        weights = nl.load(w)
        for _ in range(2):
            tile = nl.ndarray((128, 512), dtype=np.float32, buffer=nl.sbuf)
            tile[:, 0:columns] = nl.load(x)
            total += nisa.nc_matmul(weights, tile)
        nl.store(out, nl.copy(total)[:, 0:stored])
        return out

    w, x = (RNG.standard_normal(shape).astype(np.float32) for shape in ((128, 128), (128, 20)))
    np.testing.assert_allclose(nki.jit(kernel)(w, x, 20), 2 * w.T @ x, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConstraintError, match="TRN430"):
        nki.jit(kernel)(w, x, 21)


def test_kernels_that_nobody_has_published_can_be_imported_and_are_refused_when_they_are_called(installed):
    """optimum-neuron imports them with its models, of which only some call them."""
    for module, name in (
        ("attention", "attention_isa_kernel"),
        ("cumsum", "cumsum"),
        ("llama3_transformer", "matmul_o_proj"),
    ):
        kernel = getattr(importlib.import_module(f"neuronxcc.nki._private_kernels.{module}"), name)
        with pytest.raises(UsageError, match="nki-library") as caught:
            kernel(1, 2)
        assert caught.value.code == "TRN296"
