# SPDX-License-Identifier: Apache-2.0
"""No legal kernel is refused for room: kernels as people write them, which keep more tiles than there is memory.

Each was refused once: it fills its tiles in one loop and uses them in another, at sizes that are ordinary.
"""

from __future__ import annotations

import numpy as np
import pytest

import trnlab.nki as new
import trnlab.nki.isa as new_isa
import trnlab.nki.language as new_nl
import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.isa as nisa
import trnlab.nki.neuronxcc.language as nl
from trnlab import policy
from trnlab.errors import CapacityError
from trnlab.lang.allocation import _Fitting
from trnlab.program.passes.spill import _Leave, _reload_places

P, F = 128, 512


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4 * np.abs(expected).max())


@nki.jit
def score_tiles(q, k, v):
    """32 tiles of scores in PSUM, 8 banks each, all filled before one is read; q, k [64, 4096], v [4096, 64]."""
    (d, n), tiles = q.shape, q.shape[1] // P
    out = nl.ndarray((n, d), dtype=q.dtype, buffer=nl.shared_hbm)
    qs, ks = nl.load(q), nl.load(k)
    vs = nl.ndarray((tiles, nl.par_dim(P), d), dtype=v.dtype, buffer=nl.sbuf)
    for t in nl.affine_range(tiles):
        vs[t] = nl.load(v[nl.ds(t * P, P), :])
    scores = nl.ndarray((tiles, nl.par_dim(P), n), dtype=nl.float32, buffer=nl.psum)
    for t in nl.affine_range(tiles):
        for c in nl.affine_range(n // F):
            scores[t, :, nl.ds(c * F, F)] = nisa.nc_matmul(qs[:, nl.ds(t * P, P)], ks[:, nl.ds(c * F, F)])
    high = nl.ndarray((tiles, nl.par_dim(P), 1), dtype=nl.float32, buffer=nl.sbuf)
    for t in nl.affine_range(tiles):
        high[t] = nl.max(scores[t], axis=1, keepdims=True)
    weights = nl.ndarray((tiles, nl.par_dim(P), n), dtype=nl.float32, buffer=nl.sbuf)
    for t in nl.affine_range(tiles):
        weights[t] = nl.exp(nl.subtract(scores[t], high[t]))
    for t in nl.affine_range(tiles):
        total = nl.sum(weights[t], axis=1, keepdims=True)
        sums = nl.zeros((P, d), dtype=nl.float32, buffer=nl.psum)
        for s in nl.affine_range(tiles):
            turned = nisa.tensor_copy(nisa.nc_transpose(weights[t, :, nl.ds(s * P, P)]))
            sums += nisa.nc_matmul(turned, vs[s])
        nl.store(out[nl.ds(t * P, P), :], nl.divide(sums, total))
    return out


@pytest.mark.parametrize("n", [4096])
def test_thirty_two_score_tiles_in_psum(n):
    trace = score_tiles.trace(np.zeros((64, n), "f4"), np.zeros((64, n), "f4"), np.zeros((n, 64), "f4"))
    assert trace.routine.sbuf_bytes <= 208 * 1024


def test_score_tiles_have_the_values_of_attention():
    """The same kernel with eight tiles of two banks."""
    q, k, v = 0.3 * normal(64, 1024), 0.3 * normal(64, 1024, seed=1), normal(1024, 64, seed=2)
    close(score_tiles(q, k, v), softmax(q.T @ k) @ v)


@nki.jit
def blocked(lhs_t, rhs, block):
    """fp32, all blocks of the result kept in SBUF over all of K: lhs_t [K, M], rhs [K, N]."""
    (k, m), n = lhs_t.shape, rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    results = nl.zeros((m // P, n // F, nl.par_dim(P), F), dtype=nl.float32, buffer=nl.sbuf)
    for kb in nl.sequential_range(k // block):
        left = nl.ndarray((block // P, nl.par_dim(P), m), dtype=lhs_t.dtype, buffer=nl.sbuf)
        right = nl.ndarray((block // P, nl.par_dim(P), n), dtype=rhs.dtype, buffer=nl.sbuf)
        for i in nl.affine_range(block // P):
            left[i] = nl.load(lhs_t[nl.ds(kb * block + i * P, P), :])
            right[i] = nl.load(rhs[nl.ds(kb * block + i * P, P), :])
        for mi in nl.affine_range(m // P):
            for ni in nl.affine_range(n // F):
                part = nl.zeros((P, F), dtype=nl.float32, buffer=nl.psum)
                for i in nl.affine_range(block // P):
                    part += nisa.nc_matmul(left[i, :, nl.ds(mi * P, P)], right[i, :, nl.ds(ni * F, F)])
                results[mi, ni] += part
    for mi in nl.affine_range(m // P):
        for ni in nl.affine_range(n // F):
            nl.store(out[nl.ds(mi * P, P), nl.ds(ni * F, F)], results[mi, ni])
    return out


def test_fp32_matmul_with_large_blocks():
    """Results of 128 KiB per partition, and operands of as much again."""
    lhs_t, rhs = normal(2048, 1024), normal(2048, 2048, seed=1)
    close(blocked(lhs_t, rhs, 1024), lhs_t.T.astype(np.float64) @ rhs)
    big = blocked.trace(np.zeros((2048, 2048), "f4"), np.zeros((2048, 2048), "f4"), 2048)
    assert sum(s.saved for s in big.routine.spills) > 0


@nki.jit
def batched_softmax(a, b):
    """softmax(a[i].T @ b[i]) of a batch; all products first, then all maxima, then all exponentials."""
    batch, _, m = a.shape
    n = b.shape[2]
    out = nl.ndarray((batch, m, n), dtype=a.dtype, buffer=nl.shared_hbm)
    products = nl.ndarray((batch, nl.par_dim(m), n), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(batch):
        left, right = nl.load(a[i]), nl.load(b[i])
        for c in nl.affine_range(n // F):
            products[i, :, nl.ds(c * F, F)] = nisa.nc_matmul(left, right[:, nl.ds(c * F, F)])
    exps = nl.ndarray((batch, nl.par_dim(m), n), dtype=nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(batch):
        exps[i] = nl.exp(nl.subtract(products[i], nl.max(products[i], axis=1, keepdims=True)))
    for i in nl.affine_range(batch):
        nl.store(out[i], nl.divide(exps[i], nl.sum(exps[i], axis=1, keepdims=True)))
    return out


def test_batched_matmuls_with_softmax():
    a, b = 0.3 * normal(16, 64, 128), 0.3 * normal(16, 64, 2048, seed=1)
    close(batched_softmax(a, b), softmax(np.swapaxes(a, 1, 2) @ b))


@nki.jit
def grouped(q, k, v):
    """Eight heads of queries for each of two of keys; q [16, 128, n], k [2, 128, n], v [2, n, 128]."""
    heads, d, n = q.shape
    out = nl.ndarray((heads, n, d), dtype=q.dtype, buffer=nl.shared_hbm)
    keys = nl.ndarray((k.shape[0], nl.par_dim(d), n), dtype=k.dtype, buffer=nl.sbuf)
    values = nl.ndarray((k.shape[0], n // P, nl.par_dim(P), d), dtype=v.dtype, buffer=nl.sbuf)
    queries = nl.ndarray((heads, nl.par_dim(d), n), dtype=q.dtype, buffer=nl.sbuf)
    for g in nl.affine_range(k.shape[0]):
        keys[g] = nl.load(k[g])
        for s in nl.affine_range(n // P):
            values[g, s] = nl.load(v[g, nl.ds(s * P, P), :])
    for h in nl.affine_range(heads):
        queries[h] = nl.load(q[h])
    scores = nl.ndarray((heads, n // P, nl.par_dim(P), n), dtype=nl.float32, buffer=nl.sbuf)
    for h in nl.affine_range(heads):
        for t in nl.affine_range(n // P):
            scores[h, t] = nl.copy(nisa.nc_matmul(queries[h, :, nl.ds(t * P, P)], keys[h // (heads // k.shape[0])]))
    for h in nl.affine_range(heads):
        for t in nl.affine_range(n // P):
            weights = nl.softmax(scores[h, t], axis=1)
            sums = nl.zeros((P, d), dtype=nl.float32, buffer=nl.psum)
            for s in nl.affine_range(n // P):
                turned = nisa.tensor_copy(nisa.nc_transpose(weights[:, nl.ds(s * P, P)]))
                sums += nisa.nc_matmul(turned, values[h // (heads // k.shape[0]), s])
            nl.store(out[h, nl.ds(t * P, P), :], sums)
    return out


def test_grouped_query_attention():
    """64 tiles of scores of 2 KiB, 16 of queries, and whatever else."""
    q, k, v = 0.2 * normal(16, 128, 512), 0.2 * normal(2, 128, 512, seed=1), normal(2, 512, 128, seed=2)
    expected = np.stack([softmax(q[h].T @ k[h // 8]) @ v[h // 8] for h in range(16)])
    close(grouped(q, k, v), expected)


@nki.jit
def low_rank(x_t, w, a, b):
    """y = x @ w + (x @ a) @ b: x_t [K, M], w [K, N], a [K, R], b [R, N], every operand loaded before any is used."""
    (k, m), n, r = x_t.shape, w.shape[1], a.shape[1]
    out = nl.ndarray((m, n), dtype=x_t.dtype, buffer=nl.shared_hbm)
    xs = nl.ndarray((k // P, nl.par_dim(P), m), dtype=x_t.dtype, buffer=nl.sbuf)
    ws = nl.ndarray((k // P, nl.par_dim(P), n), dtype=w.dtype, buffer=nl.sbuf)
    downs = nl.ndarray((k // P, nl.par_dim(P), r), dtype=a.dtype, buffer=nl.sbuf)
    for i in nl.affine_range(k // P):
        xs[i] = nl.load(x_t[nl.ds(i * P, P), :])
        ws[i] = nl.load(w[nl.ds(i * P, P), :])
        downs[i] = nl.load(a[nl.ds(i * P, P), :])
    up = nl.load(b)
    narrow = nl.zeros((r, m), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(k // P):
        narrow += nisa.nc_matmul(downs[i], xs[i])
    adapted = nl.copy(narrow)
    for t in nl.affine_range(m // P):
        for c in nl.affine_range(n // F):
            sums = nl.zeros((P, F), dtype=nl.float32, buffer=nl.psum)
            for i in nl.affine_range(k // P):
                sums += nisa.nc_matmul(xs[i, :, nl.ds(t * P, P)], ws[i, :, nl.ds(c * F, F)])
            sums += nisa.nc_matmul(adapted[:, nl.ds(t * P, P)], up[:, nl.ds(c * F, F)])
            nl.store(out[nl.ds(t * P, P), nl.ds(c * F, F)], sums)
    return out


def test_low_rank_adapter_of_ordinary_size():
    """2048 x 2048 weights in fp32 are 128 KiB a partition, and 512 columns of x 32 KiB more."""
    x, w, a, b = normal(512, 2048), normal(2048, 2048, seed=1), normal(2048, 64, seed=2), normal(64, 2048, seed=3)
    close(low_rank(np.ascontiguousarray(x.T), w, a, b), x.astype(np.float64) @ w + (x.astype(np.float64) @ a) @ b)
    wide = low_rank.trace(*(np.zeros(s, "f4") for s in ((4096, 512), (4096, 2048), (4096, 64), (64, 2048))))
    assert wide.routine.spills


@new.jit
def new_score_tiles(q, k):
    """The new dialect: twelve sums in PSUM, read in two rounds; q [64, 128], k [64, 6144]."""
    out = new_nl.ndarray((12, 128, 512), dtype=q.dtype, buffer=new_nl.shared_hbm)
    qs, ks = new_nl.load(q), new_nl.load(k)
    sums = [new_nl.ndarray((128, 512), dtype=new_nl.float32, buffer=new_nl.psum) for _ in range(12)]
    for i in range(12):
        new_isa.nc_matmul(dst=sums[i], stationary=qs, moving=ks[:, 512 * i : 512 * i + 512])
    for i in range(12):
        high = new_nl.max(sums[i], axis=1, keepdims=True)
        tile = new_nl.ndarray((128, 512), dtype=new_nl.float32)
        new_isa.tensor_scalar(dst=tile, data=sums[11 - i], op0=new_nl.subtract, operand0=high)
        new_nl.store(out[i], tile)
    return out


def test_the_new_dialect_has_room_too():
    q, k = normal(64, 128), normal(64, 6144, seed=1)
    scores = np.stack([q.T @ k[:, 512 * i : 512 * i + 512] for i in range(12)])
    close(new_score_tiles(q, k), scores[::-1] - scores.max(axis=2, keepdims=True))
    assert {(s.source, s.target) for s in new_score_tiles.trace(q, k).routine.spills} <= {("psum", "sbuf")}


@pytest.mark.parametrize(
    ("kernel", "shapes", "code"),
    [
        (new_score_tiles, [(64, 128), (64, 6144)], "TRN502"),
        (low_rank, [(4096, 512), (4096, 2048), (4096, 64), (64, 2048)], "TRN501"),
    ],
)
def test_what_is_refused_with_room_switched_off_names_the_options(kernel, shapes, code):
    with policy.use(demand=False, spill=False), pytest.raises(CapacityError) as raised:
        kernel.trace(*(np.zeros(shape, "f4") for shape in shapes))
    assert raised.value.code == code
    assert "--schedule demand=on,spill=on" in str(raised.value)


def test_where_the_order_is_fixed_tiles_are_spilled_in_that_order(capsys):
    """Values that are shown are those of that place."""

    @new.jit
    def kernel(x):
        out = new_nl.ndarray((128, 2048), dtype=x.dtype, buffer=new_nl.shared_hbm)
        with new_nl.no_reorder():
            tiles = [new_nl.multiply(new_nl.load(x), float(i)) for i in range(30)]
            total = tiles[0]
            for tile in [*tiles[1:], *reversed(tiles)]:
                total = new_nl.add(total, tile)
                new_nl.device_print("total", total[0:1, 0:1])
            new_nl.store(out, total)
        return out

    x = normal(128, 2048)
    close(kernel(x), 2 * sum(range(30)) * x)
    assert kernel.trace(x).routine.spills
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("total")]
    shown = [float(line.split()[1].strip("[]")) for line in lines]
    np.testing.assert_allclose(shown, np.cumsum([*range(1, 30), *reversed(range(30))]) * x[0, 0], rtol=1e-5)


@nki.jit
def kept_for_later(x):
    """Blocks [128, 512] of x are changed and kept, all of them, before one is used; x [rows, 512]."""
    count = x.shape[0] // P
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray((count, nl.par_dim(P), F), dtype=x.dtype, buffer=nl.sbuf)
    for i in nl.sequential_range(count):
        kept[i] = nl.exp(nl.load(x[nl.ds(i * P, P)]))
    for i in nl.sequential_range(count):
        nl.store(out[nl.ds(i * P, P)], nl.multiply(kept[i], 2.0))
    return out


def test_sbuf_is_spilled_in_the_order_of_the_kernel():
    """K0048: nothing is computed later for want of room; 128 tiles of 2 KiB, of which SBUF holds less than all."""
    x = normal(128 * P, F)
    routine = kept_for_later.trace(x).routine
    assert "demand" not in [change.option for change in routine.changes]
    left = sum(s.saved for s in routine.spills) / x.nbytes
    assert 0.3 < left < 0.7, "as many as do not fit beside room for several iterations"
    np.testing.assert_allclose(kept_for_later(x), 2 * np.exp(x), rtol=1e-6)


def test_tiles_come_back_before_they_are_needed():
    """Eight are on their way at a time, and none comes back sooner than it has left."""
    leaves = [_Leave(tile, after=10, before=100 + 10 * tile) for tile in range(12)]
    late = _Leave(12, after=195, before=230)
    assert _reload_places([*leaves, late], 8)[7:] == [99, 109, 119, 129, 139, 195]


def test_large_tiles_come_back_one_by_one():
    """Eight of 28 KiB would fill SBUF, so that others had to leave for them (ADR 123)."""
    leaves = [_Leave(tile, after=10, before=100 + 10 * tile) for tile in range(4)]
    assert _reload_places(leaves, 8, [28672] * 4, 23429) == [99, 109, 119, 129]
    assert _reload_places(leaves, 8, [10240] * 4, 23429) == [99, 99, 109, 119]


def test_reloads_that_do_not_run_ahead_come_when_their_tile_is_needed():
    leaves = [_Leave(tile, after=10, before=100 + 10 * tile) for tile in range(3)]
    assert _reload_places(leaves, 0) == [99, 109, 119]


@nki.jit
def neighbours(x, tiles):
    """x [tiles * 128, 4096]: each tile plus the next one, all loaded before the first sum."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray((tiles, nl.par_dim(P), x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    for t in nl.affine_range(tiles):
        kept[t] = nl.load(x[nl.ds(t * P, P), :])
    for t in nl.affine_range(tiles):
        nl.store(out[nl.ds(t * P, P), :], nl.add(kept[t], kept[(t + 1) % tiles]))
    return out


def test_what_reloads_ahead_leave_no_room_for_is_reloaded_when_it_is_needed(monkeypatch):
    """NKIBench's matmul of 4096 x 5120 x 12288 needs this; here the attempts before it are taken to have failed."""
    spill, used = _Fitting._spill, []

    def only_late(self, full, ahead=8):
        used.append(ahead)
        return full if ahead else spill(self, full, ahead)

    monkeypatch.setattr(_Fitting, "_spill", only_late)
    monkeypatch.setattr(_Fitting, "_by_demand", lambda self, full: full)
    x = normal(16 * P, 4096)
    close(neighbours(x, 16), x + np.roll(x, -P, axis=0))
    assert used[-1] == 0
