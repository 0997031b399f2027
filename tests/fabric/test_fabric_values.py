# SPDX-License-Identifier: Apache-2.0
"""Every algorithm, alone and in hierarchies, against NumPy: what ranks have at the end, and how much they sent."""

from __future__ import annotations

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

from trnlab.fabric import choice, cluster, collectives, network, values
from trnlab.fabric.algorithms import DirectMesh, Hierarchy, PairedRing, Recursive, Ring, SingleRank

SIZES = (0, 1, 7, 64)


def orders(n, count):
    draw = np.random.default_rng(n * 10 + count)
    return [draw.permutation(n).tolist() for _ in range(count)]


def paired(n, turn):
    return [(2 * i + turn, 2 * i + 1 - turn) for i in orders(n // 2, turn + 1)[0]]


def algorithms(n):
    yield DirectMesh(n)
    yield Ring([range(n)])
    yield Ring(orders(n, 3))
    if n & (n - 1) == 0:
        yield from (Recursive(n), Recursive(n, everywhere=True))
    if n % 2 == 0:
        yield PairedRing([paired(n, 0), paired(n, 1)])
    for x in (x for x in range(2, n) if n % x == 0):
        yield Hierarchy(Ring(orders(x, 2)), DirectMesh(n // x))
        yield Hierarchy(DirectMesh(x), Ring(orders(n // x, 3)))
        yield Hierarchy(DirectMesh(x), Hierarchy(Ring(orders(n // x, 2)), SingleRank(1)))


CASES = [(n, place) for n in (2, 3, 4, 6, 8, 12) for place in range(len(list(algorithms(n))))]


@pytest.mark.parametrize(("n", "place"), CASES)
def test_collectives_are_what_numpy_says(n, place):
    algorithm = list(algorithms(n))[place]
    groups = np.random.default_rng(7).permutation(2 * n).reshape(2, n).tolist()
    for size in SIZES:
        inputs = [np.random.default_rng(rank).integers(-50, 50, size).astype(np.int32) for rank in range(2 * n)]
        reduced = values.run(collectives.all_reduce(algorithm, groups), inputs)
        gathered = values.run(collectives.all_gather(algorithm, groups), inputs)
        for group in groups:
            total = np.sum([inputs[rank] for rank in group], axis=0, dtype=np.int32)
            for rank in group:
                np.testing.assert_array_equal(reduced[rank], total)
                np.testing.assert_array_equal(gathered[rank], np.concatenate([inputs[r] for r in group]))


@pytest.mark.parametrize(("n", "place"), CASES)
def test_reduce_scatter_leaves_each_position_its_part(n, place):
    algorithm = list(algorithms(n))[place]
    each = algorithm.channels * 3
    inputs = [np.arange(n * each, dtype=np.int32) * (rank + 1) for rank in range(n)]
    got = values.run(collectives.reduce_scatter(algorithm, [range(n)]), inputs)
    for position, (result, part) in enumerate(zip(got, np.split(sum(inputs), n))):
        np.testing.assert_array_equal(result, part, err_msg=str(position))


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_all_to_all_permute_and_broadcast(n):
    inputs = [np.arange(n * 2) + 100 * rank for rank in range(n)]
    for rank, got in enumerate(values.run(collectives.all_to_all(n, [range(n)]), inputs)):
        np.testing.assert_array_equal(got, np.concatenate([np.split(x, n)[rank] for x in inputs]))
    pairs = [(rank, (rank + 1) % n) for rank in range(n)]
    for (src, _), got in zip(pairs, np.roll(values.run(collectives.permute(pairs, n), inputs), -1, axis=0)):
        np.testing.assert_array_equal(got, inputs[src])
    for got in values.run(collectives.broadcast(n, [range(n)], root=n - 1), inputs):
        np.testing.assert_array_equal(got, inputs[n - 1])


@pytest.mark.parametrize("reduction", ["sum", "min", "max", "prod"])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.float16, ml_dtypes.bfloat16])
def test_reductions_of_every_format(reduction, dtype):
    inputs = [np.random.default_rng(rank).integers(1, 3, 24).astype(dtype) for rank in range(4)]
    meant = {"sum": np.sum, "min": np.min, "max": np.max, "prod": np.prod}[reduction]
    expected = meant(np.stack(inputs).astype(np.float64), axis=0).astype(dtype)
    for algorithm in algorithms(4):
        for got in values.run(collectives.all_reduce(algorithm, [range(4)]), inputs, reduction):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, expected)


def test_sums_of_narrow_formats_round_at_every_hop_of_a_ring_and_once_in_a_single_step():
    ones = [np.array([256 if rank == 0 else 1], ml_dtypes.bfloat16) for rank in range(4)]  # 256 + 1 rounds to 256
    ring = values.run(collectives.all_reduce(Ring([[0, 1, 2, 3]]), [range(4)]), [np.repeat(x, 4) for x in ones])
    assert set(np.concatenate(ring).astype(float)) == {256.0, 260.0}  # by where in the ring 256 comes in
    assert len({result.tobytes() for result in ring}) == 1  # and the same on all ranks
    once = values.run(collectives.all_reduce_at_once(4, [range(4)]), ones)
    assert [float(result[0]) for result in once] == [260.0] * 4


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16, 64])
def test_bytes_and_steps_are_those_of_the_formulas(n):
    """Traffic per rank: (N - 1) C for gather and scatter, twice that for all-reduce (internode page, tables)."""
    ring, mesh = Ring([range(n)]), DirectMesh(n)
    for algorithm, steps in (
        (ring, n - 1),
        (mesh, 1),
        *(((Recursive(n), n.bit_length() - 1),) if n & (n - 1) == 0 else ()),
    ):
        gather = collectives.all_gather(algorithm, [range(n)])
        reduce = collectives.all_reduce(algorithm, [range(n)])
        assert (gather.steps, reduce.steps) == (steps, 2 * steps)
        np.testing.assert_allclose(gather.sent(1.0), n - 1)
        np.testing.assert_allclose(reduce.sent(1.0), 2 * (n - 1))
    np.testing.assert_allclose(collectives.all_reduce_at_once(n, [range(n)]).sent(1.0), n - 1)  # of whole buffers


@pytest.mark.parametrize("pairs", [2, 4, 16])
def test_a_paired_ring_has_half_the_steps_of_a_ring(pairs):
    n = 2 * pairs
    schedule = collectives.all_gather(PairedRing([[(2 * i, 2 * i + 1) for i in range(pairs)]]), [range(n)])
    assert schedule.steps == n // 2


@pytest.mark.parametrize(
    ("target", "ranks"),
    [
        ("trn1.32xlarge", 32),
        ("trn1.32xlarge", 8),
        ("trn2.48xlarge", 64),
        ("inf2.24xlarge", 12),
        ("2xtrn1.32xlarge", 64),
        ("4xtrn2u.48xlarge", 64),
        ("3xtrn2.3xlarge", 12),
        ("trn3-gen1-ultraserver", 64),
    ],
)
def test_what_the_runtime_would_take_gives_the_right_sums_at_every_size(target, ranks):
    place = cluster.parse(target)
    net, placed = network.build(place), place.placed(ranks)
    group = np.random.default_rng(1).permutation(ranks).tolist()
    inputs = [np.random.default_rng(rank).integers(-9, 9, 100).astype(np.int32) for rank in range(ranks)]
    names = set()
    for inside, between, _ in choice.candidates(group, net, placed):
        algorithm = choice.algorithm(group, net, placed, inside=inside, between=between)
        names.add((algorithm.name, algorithm.channels, tuple(step.name for step in algorithm.all_gather())))
        for got in values.run(collectives.all_reduce(algorithm, [group]), inputs):
            np.testing.assert_array_equal(got, sum(inputs))
    assert len(names) > 1  # not one algorithm for all


@pytest.mark.parametrize("group", [(0, 1, 2, 3, 4, 5), (0, 3, 4), (0, 1, 2, 3, 4, 5, 32, 33, 34, 35, 36, 37)])
def test_groups_with_more_ranks_on_one_chip_than_on_another_are_served(group):
    place = cluster.parse("2xtrn2.48xlarge")
    net, placed = network.build(place), np.concatenate([np.arange(32) // 4, 16 + np.arange(32) // 4])
    inputs = [np.random.default_rng(rank).integers(-9, 9, 100).astype(np.int32) for rank in range(max(group) + 1)]
    for inside in ("mesh", "kangaring"):
        algorithm = choice.algorithm(group, net, placed, inside=inside)
        got = values.run(collectives.all_reduce(algorithm, [group]), inputs)
        for rank in group:
            np.testing.assert_array_equal(got[rank], sum(inputs[r] for r in group))


def test_no_two_moves_of_a_step_carry_what_the_pattern_does_not_say():
    """The two readings are of the same transfers: what values move adds up to what timing sees, step by step."""
    for n in (4, 8):
        for algorithm in algorithms(n):
            for phase in [*algorithm.all_gather(), *algorithm.reduce_scatter()]:
                for repetition in range(phase.times):
                    moves = phase.moves(repetition)
                    moved, said = np.zeros((n, n)), np.zeros((n, n))
                    np.add.at(moved, (moves.src, moves.dst), 1)
                    np.add.at(said, (phase.src, phase.dst), phase.units)
                    np.testing.assert_array_equal(moved, said)


def test_rings_share_no_wire():
    for target, rings in (("trn2.48xlarge", 4), ("inf2.48xlarge", 2)):
        net = network.build(cluster.parse(target))
        ways = choice.cycles(tuple(range(net.cluster.chips)), net.neighbours())
        used = [pair for way in ways for pair in pairwise((*way, way[0]))]
        assert len(ways) == rings
        assert len(set(used)) == len(used)
        assert set(used) <= net.neighbours()
