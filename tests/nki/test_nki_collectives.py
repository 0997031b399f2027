# SPDX-License-Identifier: Apache-2.0
"""Collectives between simulated ranks: numbers against NumPy, what is refused, meetings that cannot happen."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.collectives as ncc
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.errors import ConstraintError, RunError, UsageError

RNG = np.random.default_rng(11)
GROUPS = [[[0, 1, 2, 3]], [[2, 0], [1, 3]]]


def shards(ranks, shape, dtype=np.float32):
    if np.issubdtype(dtype, np.integer):
        return [RNG.integers(0, 100, shape).astype(dtype) for _ in range(ranks)]
    return [RNG.standard_normal(shape).astype(dtype) for _ in range(ranks)]


def through(x, shape, dtype, collective, in_sbuf=False):
    """x copied to where the collective reads, and its result copied out."""
    out = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)
    where = nl.sbuf if in_sbuf else nl.shared_hbm
    src, dst = nl.ndarray(x.shape, dtype=dtype, buffer=where), nl.ndarray(shape, dtype=dtype, buffer=where)
    nisa.dma_copy(src, x)
    if nl.num_programs() > 1 and not in_sbuf:
        nisa.core_barrier(src, (0, 1))
    collective([src], [dst])
    nisa.dma_copy(out, dst)
    return out


@nki.jit
def reducing(x, group, op="add", in_sbuf=False):
    ops = {"add": nl.add, "minimum": nl.minimum, "maximum": nl.maximum}
    return through(x, x.shape, x.dtype, lambda s, d: ncc.all_reduce(s, d, group, ops[op]), in_sbuf)


@nki.jit
def gathering(x, group, dim=0, in_sbuf=False):
    n, (rows, columns) = len(group.ranks[0]), x.shape
    shape = (n * rows, columns) if dim == 0 else (rows, n * columns)
    return through(x, shape, x.dtype, lambda s, d: ncc.all_gather(s, d, group, dim), in_sbuf)


@nki.jit
def scattering(x, group, in_sbuf=False):
    shape = (x.shape[0] // len(group.ranks[0]), x.shape[1])
    return through(x, shape, x.dtype, lambda s, d: ncc.reduce_scatter(s, d, group, 0, nl.add), in_sbuf)


@nki.jit
def exchanging(x, group):
    return through(x, x.shape, x.dtype, lambda s, d: ncc.all_to_all(s, d, group, 0))


def run(kernel, xs, groups, **options):
    return nki.simulate(kernel, ranks=len(xs))(nki.per_rank(xs), ncc.ReplicaGroup(groups), **options)


def of_group(groups, rank, values):
    group = next(g for g in groups if rank in g)
    return group.index(rank), [values[r] for r in group]


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("in_sbuf", [False, True])
def test_all_reduce(groups, cores, in_sbuf):
    xs = shards(4, (16, 8))
    for op, reduce in (("add", sum), ("minimum", np.minimum.reduce), ("maximum", np.maximum.reduce)):
        got = run(reducing[cores], xs, groups, op=op, in_sbuf=in_sbuf)
        for rank in range(4):
            _, mine = of_group(groups, rank, xs)
            np.testing.assert_array_equal(got[rank], reduce(mine[1:], mine[0]) if op == "add" else reduce(mine))


def test_sums_of_narrow_formats_are_rounded_once_and_integers_are_exact():
    xs = shards(4, (4, 64), ml_dtypes.bfloat16)
    wide = sum(x.astype(np.float32) for x in xs)
    assert run(reducing, xs, [[0, 1, 2, 3]])[3].tobytes() == wide.astype(ml_dtypes.bfloat16).tobytes()
    whole = shards(2, (4, 8), np.int32)
    np.testing.assert_array_equal(run(reducing, whole, [[0, 1]])[0], whole[0] + whole[1])


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("dim", "in_sbuf"), [(0, False), (0, True), (1, True)])
@pytest.mark.parametrize("cores", [1, 2])
def test_all_gather(groups, dim, in_sbuf, cores):
    xs = shards(4, (8, 6))
    got = run(gathering[cores], xs, groups, dim=dim, in_sbuf=in_sbuf)
    for rank in range(4):
        np.testing.assert_array_equal(got[rank], np.concatenate(of_group(groups, rank, xs)[1], axis=dim))


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("in_sbuf", [False, True])
def test_reduce_scatter(groups, in_sbuf):
    xs = shards(4, (8, 6))
    got = run(scattering, xs, groups, in_sbuf=in_sbuf)
    for rank in range(4):
        at, mine = of_group(groups, rank, xs)
        np.testing.assert_array_equal(got[rank], np.split(sum(mine[1:], mine[0]), len(mine))[at])


@pytest.mark.parametrize("groups", GROUPS)
def test_all_to_all(groups):
    xs = shards(4, (8, 6), np.int16)
    got = run(exchanging, xs, groups)
    for rank in range(4):
        at, mine = of_group(groups, rank, xs)
        np.testing.assert_array_equal(got[rank], np.concatenate([np.split(x, len(mine))[at] for x in mine]))


def test_permute_sends_along_pairs_and_leaves_others_alone():
    @nki.jit
    def kernel(x):
        def permute(s, d):
            nisa.dma_copy(d[0], s[0])
            ncc.collective_permute(s, d, source_target_pairs=[(0, 2), (2, 1)])

        return through(x, x.shape, x.dtype, permute)

    xs = shards(4, (4, 6))
    got = nki.simulate(kernel, ranks=4)(nki.per_rank(xs))
    for mine, expected in zip(got, (xs[0], xs[2], xs[0], xs[3])):
        np.testing.assert_array_equal(mine, expected)


@nki.jit
def ring(x, group):
    """An all-gather by steps around the ring, on two channels; the rank of each step's data chooses the place."""
    n, (rows, columns) = len(group.ranks[0]), x.shape
    out = nl.ndarray((n, rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    half = columns // 2
    buffers = [nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2)]
    nisa.dma_copy(buffers[0], x)
    for step in range(n):
        now, then = buffers[step % 2], buffers[1 - step % 2]
        at = ncc.collective_permute_implicit_current_processing_rank_id(step, group)
        nisa.dma_copy(out.ap([[columns, rows], [1, columns]], scalar_offset=at, indirect_dim=0), now)
        if step + 1 < n:
            ncc.collective_permute_implicit(
                [[now[:, :half]], [now[:, half:]]], [[then[:, :half]], [then[:, half:]]], group, channel_ids=[0, 1]
            )
    return out


@pytest.mark.parametrize("group", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_around_the_ring(group):
    xs = shards(4, (8, 6))
    for got in run(ring, xs, [group]):
        np.testing.assert_array_equal(got, np.stack(xs))


def test_permute_and_reduce():
    @nki.jit
    def kernel(x, y, group):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        dst = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        ncc.collective_permute_implicit_reduce([[x]], [[y]], [[dst]], group, nl.maximum)
        nisa.dma_copy(out, dst)
        return out

    xs, ys = shards(3, (4, 6)), shards(3, (4, 6))
    got = nki.simulate(kernel, ranks=3)(nki.per_rank(xs), nki.per_rank(ys), ncc.ReplicaGroup([[0, 1, 2]]))
    for rank in range(3):
        np.testing.assert_array_equal(got[rank], np.maximum(xs[rank - 1], ys[rank - 1]))


def test_rank_ids_choose_data():
    @nki.jit
    def kernel(table):
        out = nl.ndarray(table.shape[1:], dtype=table.dtype, buffer=nl.shared_hbm)
        _, h, w = table.shape
        nisa.dma_copy(out, table.ap([[w, h], [1, w]], scalar_offset=ncc.rank_id(), indirect_dim=0))
        return out

    table = shards(1, (3, 4, 5))[0]
    for rank, got in enumerate(nki.simulate(kernel, ranks=3)(table)):
        np.testing.assert_array_equal(got, table[rank])


# -- lengths known when they run ------------------------------------------------------------------------------------
@nki.jit
def sending(x, metadata, group, known=False, has_rdispls=False, room=32):
    out = nl.ndarray((room,), dtype=x.dtype, buffer=nl.shared_hbm)
    ncc.all_to_all_v([x], [out], group, metadata, recv_counts_known=known, has_rdispls=has_rdispls)
    return out, metadata


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("has_rdispls", [False, True])
def test_all_to_all_v(known, has_rdispls):
    ranks, part = 4, 8
    counts = RNG.integers(0, part + 1, (ranks, ranks)).astype(np.uint32)  # sender, receiver
    starts = RNG.integers(0, 20, (ranks, ranks)).astype(np.uint32)
    xs = shards(ranks, (28,))
    to = np.stack([np.cumsum(counts[:, r]) - counts[:, r] for r in range(ranks)]).astype(np.uint32)
    rows = [(counts[r], starts[r], np.full(ranks, 99), to[r])[: 3 + has_rdispls] for r in range(ranks)]
    metadata = [np.stack(r).astype(np.uint32) for r in rows]
    got = nki.simulate(sending, ranks=4)(
        nki.per_rank(xs), nki.per_rank(metadata), ncc.ReplicaGroup([[0, 1, 2, 3]]), known, has_rdispls
    )
    for r, (out, numbers) in enumerate(got):
        for s in range(ranks):
            at = to[r, s] if has_rdispls else part * s
            sent = xs[s][starts[s, r] : starts[s, r] + counts[s, r]]
            np.testing.assert_array_equal(out[at : at + counts[s, r]], sent)
        np.testing.assert_array_equal(numbers[2], 99 if known else counts[:, r])


def test_pieces_that_do_not_fit_are_told():
    metadata = np.array([[9, 0], [0, 0], [0, 0]], np.uint32)
    with pytest.raises(RunError) as caught:
        nki.simulate(sending, ranks=2)(shards(1, (28,))[0], metadata, ncc.ReplicaGroup([[0, 1]]), room=16)
    assert caught.value.code == "TRN800"
    assert "9 elements from 0 on" in caught.value.got


def test_all_gather_v():
    @nki.jit
    def kernel(x, metadata, group):
        out = nl.ndarray((32,), dtype=x.dtype, buffer=nl.shared_hbm)
        ncc.all_gather_v([x], [out], group, metadata)
        nisa.core_barrier(out, (0, 1))
        return out, metadata

    xs, counts = shards(4, (28,)), [3, 0, 8, 5]
    metadata = [np.array([[n, 7, 7, 7], [r, 7, 7, 7], [0] * 4], np.uint32) for r, n in enumerate(counts)]
    group = ncc.ReplicaGroup([[0, 1, 2, 3]])
    got = nki.simulate(kernel[2], ranks=4)(nki.per_rank(xs), nki.per_rank(metadata), group)
    for out, numbers in got:
        for s, n in enumerate(counts):
            np.testing.assert_array_equal(out[8 * s : 8 * s + n], xs[s][s : s + n])
        assert numbers[2].tolist() == counts
    with pytest.raises(ConstraintError, match="not supported by the runtime"):
        nki.simulate(kernel[1], ranks=4)(nki.per_rank(xs), nki.per_rank(metadata), group)


# -- ranks ----------------------------------------------------------------------------------------------------------
def test_ranks_have_memory_of_their_own():
    @nki.jit
    def kernel(x, own, group):
        t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(t, own)
        nisa.dma_copy(x, t)
        nisa.dma_copy(own, x)
        return x

    x, own = np.zeros((4, 4), np.float32), shards(3, (4, 4))
    before = [a.copy() for a in own]
    got = nki.simulate(kernel, ranks=3)(x, nki.per_rank(own), ncc.ReplicaGroup([[0, 1, 2]]))
    for mine, expected in zip(got, before):
        np.testing.assert_array_equal(mine, expected)
    assert not x.any(), "what all ranks were given is not written"
    with pytest.raises(UsageError, match="one value for each rank"):
        nki.simulate(kernel, ranks=2)(x, nki.per_rank(own), None)
    with pytest.raises(UsageError, match="number of ranks"):
        nki.simulate(kernel, ranks=0)


def test_a_value_that_came_from_another_rank_decides_a_loop():
    """Ranks are recorded together where one needs what another sends."""

    @nki.jit
    def kernel(n, group):
        out = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        most, total = (nl.ndarray((1, 1), dtype=d, buffer=nl.sbuf) for d in (nl.int32, nl.float32))
        mine = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(mine, n)
        ncc.all_reduce([mine], [most], group, nl.maximum)
        nisa.memset(total, 0.0)
        for _ in nl.dynamic_range(0, nisa.register_alloc(most)):
            nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=1.0)
        nisa.dma_copy(out, total)
        return out

    numbers = [np.array([[n]], np.int32) for n in (2, 5, 3)]
    got = nki.simulate(kernel, ranks=3)(nki.per_rank(numbers), ncc.ReplicaGroup([[0, 1, 2]]))
    assert [float(g[0, 0]) for g in got] == [5, 5, 5]


def refused(kernel, *args, ranks=2):
    with pytest.raises(ConstraintError) as caught:
        nki.simulate(kernel, ranks=ranks)(*args)
    return caught.value


X = np.zeros((4, 4), np.float32)


def test_a_rank_that_does_not_exist_is_told():
    error = refused(reducing, X, ncc.ReplicaGroup([[0, 1, 2]]))
    assert error.code == "TRN440"
    assert "rank 2" in error.what
    assert "ranks=N" in error.remedy
    with pytest.raises(ConstraintError, match="rank 1"):
        reducing(X, ncc.ReplicaGroup([[0, 1]]))


def test_a_core_that_does_not_come_to_a_joint_collective_is_told():
    @nki.jit
    def kernel(x, group):
        dst = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        if nl.program_id(0) == 0:
            ncc.all_reduce([x], [dst], group, nl.add)
        return dst

    error = refused(kernel[2], X, ncc.ReplicaGroup([[0, 1]]))
    assert error.code == "TRN440"
    assert "core 1" in error.what


@pytest.mark.parametrize(
    ("kernel", "group", "options", "code"),
    [
        (reducing, [[0, 1], [1]], {}, "TRN411"),
        (reducing, [[0], [1, 2]], {}, "TRN411"),
        (gathering, [[0, 1]], {"dim": 1}, "TRN411"),
        (scattering, [[0, 1, 2]], {}, "TRN409"),
    ],
)
def test_refusals(kernel, group, options, code):
    made = nki.Kernel(lambda x: kernel.function(x, ncc.ReplicaGroup(group), **options))
    made.function.__name__ = "made"
    assert refused(made, X).code == code


def test_what_is_no_group_is_told():
    with pytest.raises(ConstraintError, match="named by a ReplicaGroup"):
        nki.simulate(nki.Kernel(lambda x: ncc.all_reduce([x], [x], [[0, 1]], nl.add)), ranks=2)(X)
