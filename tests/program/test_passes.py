# SPDX-License-Identifier: Apache-2.0
"""The passes over a recorded kernel: each does what it says, and none changes a value that may not change."""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.compiler as ncc
import trnlab.nki.neuronxcc.isa as nisa
import trnlab.nki.neuronxcc.language as nl
from trnlab import policy
from trnlab.errors import CapacityError
from trnlab.program import passes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((128, 2048)).astype(np.float32)
W = RNG.standard_normal((128, 128)).astype(np.float32)


@pytest.fixture
def without(monkeypatch):
    """Turns passes off by name."""

    def off(*names):
        monkeypatch.setenv(policy.VARIABLE, ",".join(f"{name}=off" for name in names))

    return off


def one_tile():
    @nki.jit
    def doubled(x):
        """One tile for all iterations, declared before the loop."""
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        for j in nl.sequential_range(4):
            tile[...] = nl.load(x[:, nl.ds(512 * j, 512)])
            nl.store(out[:, nl.ds(512 * j, 512)], nl.add(tile, tile))
        return out

    return doubled


def versions_of(kernel, *arguments):
    """Names of the tiles that a pass has made."""
    return [b.name for b in kernel.trace(*arguments).routine.buffers if "'" in b.name]


def test_a_tile_that_is_overwritten_is_a_new_tile(without):
    without("coalesce")
    kernel = one_tile()
    assert len(versions_of(kernel, X)) == 3, "one for each iteration after the first"
    np.testing.assert_array_equal(kernel(X), 2 * X)
    renamed = kernel.timeline(X).total
    without("versions", "coalesce")
    kept = one_tile()
    assert not versions_of(kept, X)
    np.testing.assert_array_equal(kept(X), 2 * X)
    assert renamed < 0.8 * kept.timeline(X).total, "loads no longer wait for the last reader"


def test_what_is_read_or_written_in_part_is_no_new_tile():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        half = nl.zeros((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        for j in nl.sequential_range(4):
            half[:, 0:256] = nl.load(x[:, nl.ds(512 * j, 256)])
            total += half
        nl.store(out, total)
        return out

    assert not versions_of(kernel, X)
    expected = np.zeros((128, 512), np.float32)
    for j in range(4):
        expected[:, :256] += X[:, 512 * j : 512 * j + 256]
    np.testing.assert_array_equal(kernel(X), expected)


@pytest.mark.parametrize("seed", range(12))
def test_random_kernels_compute_the_same_bits_renamed(seed, without):
    """Loads, sums and products over a few tiles, all of them or a part, in random order."""

    def made():
        rng = np.random.default_rng(seed)

        @nki.jit
        def kernel(x):
            out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
            tiles = [nl.zeros((128, 512), dtype=x.dtype, buffer=nl.sbuf) for _ in range(4)]
            for _ in range(30):
                a, b, c = (tiles[i] for i in rng.integers(0, 4, 3))
                columns = slice(0, 512) if rng.random() < 0.6 else slice(128, 384)
                if rng.random() < 0.3:
                    a[:, columns] = nl.load(x[:, 512:1024][:, columns])
                else:
                    a[:, columns] = (nl.add if rng.random() < 0.5 else nl.multiply)(b[:, columns], c[:, columns])
            for t in tiles[1:]:
                tiles[0][...] = nl.add(tiles[0], t)
            nl.store(out, tiles[0])
            return out

        return kernel

    with np.errstate(all="ignore"):
        renamed = made()(X)
        without("versions")
        np.testing.assert_array_equal(renamed, made()(X))


def named_product():
    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        weights = nl.load(w)
        total = nl.zeros((128, 512), dtype=nl.float32, buffer=nl.psum)
        for j in nl.sequential_range(4):
            product = nisa.nc_matmul(weights, nl.load(x[:, nl.ds(512 * j, 512)]))
            total += product
        nl.store(out, total)
        return out

    return kernel


def kinds_of(kernel, *arguments):
    return [op.name for op in (lambda t: [t.ops[i] for i in t.op])(kernel.timeline(*arguments))]


def test_a_named_product_is_accumulated_in_psum(without):
    expected = sum(W.T @ X[:, 512 * j : 512 * j + 512] for j in range(4))
    kernel = named_product()
    kinds = kinds_of(kernel, X, W)
    assert kinds.count("nc_matmul") == 4
    assert "tensor_tensor" not in kinds
    np.testing.assert_allclose(kernel(X, W), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    without("accumulate")
    written = named_product()
    assert kinds_of(written, X, W).count("tensor_tensor") == 4
    np.testing.assert_allclose(kernel(X, W), written(X, W), rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_product_that_is_used_twice_stays():
    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((2, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((128, 512), dtype=nl.float32, buffer=nl.psum)
        product = nisa.nc_matmul(nl.load(w), nl.load(x[:, 0:512]))
        total += product
        nl.store(out[0], total)
        nl.store(out[1], product)
        return out

    assert "tensor_tensor" in kinds_of(kernel, X, W)
    expected = W.T @ X[:, :512]
    for part in kernel(X, W):
        np.testing.assert_allclose(part, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_adding_to_psum_adds_whatever_made_the_value():
    """`psum += value` of an instruction that is no matmul, not named: it is added, it does not replace."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((128, 512), dtype=nl.float32, buffer=nl.psum)
        for j in nl.sequential_range(3):
            tile = nl.load(x[:, nl.ds(512 * j, 512)])
            total += nisa.tensor_tensor(tile, tile, op=nl.multiply)
        nl.store(out, total)
        return out

    squares = np.square(X).reshape(128, 4, 512)
    np.testing.assert_allclose(kernel(X), squares[:, 0] + squares[:, 1] + squares[:, 2], rtol=1e-6)


def filled_first(count, ordered=False):
    """Fills `count` banks of PSUM, and reads them only then."""

    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((count, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        sums = nl.ndarray((count, nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
        weights, data = nl.load(w), nl.load(x)
        for i in nl.affine_range(count):
            sums[i] = nisa.nc_matmul(weights, data[:, nl.ds(512 * (i % 4), 512)])
        scale = nl.ndarray((nl.par_dim(128), count), dtype=nl.float32, buffer=nl.sbuf)
        for i in nl.affine_range(count):
            scale[:, i] = nisa.tensor_reduce(nl.max, sums[i], axis=1)
        for i in nl.affine_range(count):
            nl.store(out[i], nisa.tensor_scalar(sums[i], nl.subtract, scale[:, i]))
        return out

    return kernel


def test_tiles_that_are_filled_long_before_they_are_read_move_to_where_they_are_read():
    """24 banks of PSUM where there are eight: each is filled when it is needed, and the values are the same."""
    expected = [W.T @ X[:, 512 * (i % 4) : 512 * (i % 4) + 512] for i in range(24)]
    got = filled_first(24)(X, W)
    for one, product in zip(got, expected):
        want = product - product.max(axis=1, keepdims=True)
        np.testing.assert_allclose(one, want, rtol=0, atol=2e-5 * np.abs(product).max())
    np.testing.assert_array_equal(got[:8], filled_first(8)(X, W), "eight fit as they are written")


def test_more_sbuf_than_there_is_is_used_when_it_is_needed():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((64, 128, 2048), dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = nl.ndarray((64, nl.par_dim(128), 2048), dtype=x.dtype, buffer=nl.sbuf)
        for i in nl.affine_range(64):
            tiles[i] = nl.load(x)
        for i in nl.affine_range(64):
            nl.store(out[i], nl.multiply(tiles[i], float(i)))
        return out

    np.testing.assert_array_equal(kernel(X), np.stack([X * np.float32(i) for i in range(64)]))
    assert kernel.trace(X).routine.sbuf_bytes <= 208 * 1024


def read_twice(address=None):
    @nki.jit
    def kernel(x):
        """Every tile is read twice, the first one first and last: whatever the order, all are alive in between."""
        out = nl.ndarray((128, 2048), dtype=x.dtype, buffer=nl.shared_hbm)
        buffer = nl.sbuf if address is None else ncc.sbuf.mod_alloc(base_addr=address)
        tiles = nl.ndarray((40, nl.par_dim(128), 2048), dtype=x.dtype, buffer=nl.sbuf)
        total = nl.zeros((128, 2048), dtype=x.dtype, buffer=buffer)
        for i in nl.sequential_range(40):
            tiles[i] = nl.multiply(nl.load(x), float(i))
        for i in [*range(40), *reversed(range(40))]:
            total[...] = nl.add(nl.multiply(total, 0.5), tiles[i])
        nl.store(out, total)
        return out

    return kernel


def test_what_does_not_fit_whatever_the_order_is_spilled_to_hbm():
    total = np.zeros_like(X)
    for i in [*range(40), *reversed(range(40))]:
        total = total * np.float32(0.5) + X * np.float32(i)
    kernel = read_twice()
    np.testing.assert_array_equal(kernel(X), total)
    routine = kernel.trace(X).routine
    assert routine.scratch_bytes > 10 * 2**20
    assert {b.name for b in routine.buffers if b.kind == "scratch"} <= {f"{b.name} spilled" for b in routine.buffers}


def test_gaps_between_tiles_that_stay_are_made_wider_by_spilling(without):
    without("demand")

    @nki.jit
    def kernel(x):
        """Of six tiles each second one stays while a larger one comes: by bytes it fits, but in no gap."""
        wide = nl.ndarray((2, 20480), dtype=x.dtype, buffer=nl.shared_hbm)
        out = nl.ndarray((3, 2, 8192), dtype=x.dtype, buffer=nl.shared_hbm)
        highest = nl.ndarray((2, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = [nl.load(x[i, :, 0:8192]) for i in range(6)]
        most = nl.max(tiles[0], axis=1)
        for tile in tiles[1:]:
            most = nl.maximum(most, nl.max(tile, axis=1))
        nl.store(highest, most)
        nl.store(wide, nl.load(x[6]))
        for i in range(3):
            nl.store(out[i], tiles[2 * i])
        return wide, out, highest

    x = RNG.standard_normal((7, 2, 20480)).astype(np.float32)
    wide, out, highest = kernel(x)
    np.testing.assert_array_equal(wide, x[6])
    np.testing.assert_array_equal(out, x[0:6:2, :, :8192])
    np.testing.assert_array_equal(highest[:, 0], x[:6, :, :8192].max((0, 2)))
    assert kernel.trace(x).routine.spills


def test_sums_that_psum_cannot_hold_are_kept_in_sbuf():
    """Twelve products that are all needed by the last instruction of each of two rounds."""

    @nki.jit
    def kernel(x, w):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        sums = nl.ndarray((12, nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
        weights, data = nl.load(w), nl.load(x)
        total = nl.zeros((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        for i in nl.affine_range(12):
            sums[i] = nisa.nc_matmul(weights, data[:, nl.ds(128 * i, 512)])
        for i in [*range(12), *reversed(range(12))]:
            total[...] = nl.add(nl.multiply(total, 0.5), sums[i])
        nl.store(out, total)
        return out

    total = np.zeros((128, 512))
    for i in [*range(12), *reversed(range(12))]:
        total = total * 0.5 + W.T.astype(np.float64) @ X[:, 128 * i : 128 * i + 512]
    np.testing.assert_allclose(kernel(X, W), total, rtol=0, atol=1e-5 * np.abs(total).max())
    assert kernel.trace(X, W).routine.scratch_bytes == 0


def test_tiles_with_addresses_are_not_spilled():
    with pytest.raises(CapacityError, match="does not fit in SBUF") as raised:
        read_twice(address=0)(X)
    assert raised.value.code == "TRN501"


def repeated_work():
    @nki.jit
    def kernel(x, w):
        """Negates the same column and transposes the same tile in every iteration."""
        out = nl.ndarray((4, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        weights = nl.load(w)
        highest = nl.ndarray((nl.par_dim(128), 1), dtype=nl.float32, buffer=nl.sbuf)
        highest[...] = nisa.tensor_reduce(nl.max, weights, axis=1)
        for j in nl.affine_range(4):
            turned = nisa.tensor_copy(nisa.nc_transpose(weights))
            negated = nisa.tensor_scalar(highest, nl.multiply, -1.0)
            product = nisa.nc_matmul(turned, nl.load(x[:, nl.ds(512 * j, 512)]))
            nl.store(out[j], nisa.tensor_scalar(product, nl.add, negated))
        return out

    return kernel


def test_what_was_computed_before_is_not_computed_again(without):
    expected = np.stack([W @ X[:, 512 * j : 512 * j + 512] - W.max(axis=1, keepdims=True) for j in range(4)])
    got, kinds = repeated_work()(X, W), kinds_of(repeated_work(), X, W)
    assert [kinds.count(name) for name in ("nc_transpose", "tensor_scalar", "nc_matmul")] == [1, 5, 4]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    without("reuse")
    np.testing.assert_array_equal(got, repeated_work()(X, W))
    assert kinds_of(repeated_work(), X, W).count("nc_transpose") == 4


def test_what_was_overwritten_is_computed_again():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((3, 128, 256), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        tile[...] = nl.load(x[:, 0:512])
        for i in nl.sequential_range(3):
            nl.store(out[i], nl.multiply(tile[:, 0:256], 2.0))
            tile[:, 0:128] = nl.add(tile[:, 0:128], 1.0)
        return out

    expected = np.stack([X[:, :256]] * 3)
    for i in range(3):
        expected[i, :, :128] += np.float32(i)
    np.testing.assert_allclose(kernel(X), 2 * expected, rtol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_random_kernels_compute_the_same_bits_with_results_used_again(seed, without):
    """Few operations on few tiles, so that many are the same."""

    def made():
        rng = np.random.default_rng(seed)

        @nki.jit
        def kernel(x):
            out = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.shared_hbm)
            tiles = [nl.load(x[:, 256 * i : 256 * i + 256]) for i in range(3)]
            total = nl.zeros((128, 256), dtype=x.dtype, buffer=nl.sbuf)
            for _ in range(40):
                a, b = (tiles[i] for i in rng.integers(0, 3, 2))
                if rng.random() < 0.15:
                    a[:, 64:128] = nl.add(b[:, 0:64], 0.5)
                else:
                    total[...] = nl.add(total, nl.multiply(nl.subtract(a, b), 0.25))
            nl.store(out, total)
            return out

        return kernel

    first, fewer = made()(X), len(made().timeline(X))
    without("reuse")
    np.testing.assert_array_equal(first, made()(X))
    assert fewer < len(made().timeline(X))


def test_every_pass_is_an_option():
    recording = [o.name for o in policy.options() if o.stage == policy.RECORDING and isinstance(o.default, bool)]
    assert list(passes.PASSES) == recording, "in the order in which they run"
    assert all(o.about for o in policy.options())


def nested(inner_first):
    """The inverse of a block that only one of two loops changes, in the innermost loop."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 2048), dtype=x.dtype, buffer=nl.shared_hbm)
        loaded = nl.load(x)
        for i in nl.affine_range(4):
            for j in nl.affine_range(4):
                which = i if inner_first else j
                part = nisa.reciprocal(data=loaded[:, nl.ds(512 * which, 512)])
                nl.store(out[:, nl.ds(512 * i + 128 * j, 128)], part[:, nl.ds(0, 128)])
        return out

    return kernel


def inverses_of(kernel):
    with policy.use(merge=False):
        timeline = kernel.timeline(X)
    return sum(timeline.ops[o].kind == "vector.reciprocal" for o in timeline.op)


def test_results_move_out_of_the_loops_that_do_not_change_them():
    """Out of the inner loop, four are left; an outer loop repeats what its inner loop makes anew each time."""
    assert inverses_of(nested(inner_first=True)) == 4
    assert inverses_of(nested(inner_first=False)) == 16
    with policy.use(reuse_out_of="all"):
        assert inverses_of(nested(inner_first=False)) == 4
