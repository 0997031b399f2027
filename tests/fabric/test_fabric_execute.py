# SPDX-License-Identifier: Apache-2.0
"""One rank's part of a schedule: ranks by themselves compute what the schedule computes for all, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

from trnlab.fabric import build, choice, collectives, parse, threads, values
from trnlab.fabric.execute import part

WORLDS = [
    ("trn1.32xlarge", 2),
    ("trn1.32xlarge", 4),
    ("trn1.32xlarge", 6),
    ("trn1.32xlarge", 8),
    ("2xtrn1.32xlarge", 8),
]
FORMATS = [np.float32, ml_dtypes.bfloat16, np.float16, np.int32, np.int8]


def inputs_of(ranks, count, dtype, seed=0):
    made = np.random.default_rng(seed).standard_normal((ranks, count)) * 50
    return [row.astype(dtype) for row in made]


def algorithms(target, ranks):
    network = build(parse(target))
    placed = network.cluster.placed(ranks)
    for inside in choice.NAMES:
        yield choice.algorithm(range(ranks), network, placed, inside=inside)


def same(schedule, inputs, reduction="sum"):
    for mine, meant in zip(threads.run(schedule, inputs, reduction), values.run(schedule, inputs, reduction)):
        assert mine.dtype == meant.dtype
        assert mine.tobytes() == meant.tobytes()


@pytest.mark.parametrize(("target", "ranks"), WORLDS)
@pytest.mark.parametrize("dtype", FORMATS, ids=lambda dtype: np.dtype(dtype).name)
def test_parts_of_ranks_equal_the_whole(target, ranks, dtype):
    for algorithm in algorithms(target, ranks):
        for made in (collectives.all_reduce, collectives.reduce_scatter, collectives.all_gather):
            same(made(algorithm, [range(ranks)]), inputs_of(ranks, 5 * ranks, dtype))


@pytest.mark.parametrize("reduction", ["sum", "min", "max", "prod"])
def test_sizes_that_fill_no_slot_and_reductions(reduction):
    for algorithm in algorithms("trn1.32xlarge", 4):
        for count in (0, 1, 2, 3, 7, 37):
            same(collectives.all_reduce(algorithm, [range(4)]), inputs_of(4, count, np.float32), reduction)
    same(collectives.all_reduce_at_once(4, [range(4)]), inputs_of(4, 9, ml_dtypes.bfloat16), reduction)


def test_collectives_without_reduction_and_groups_side_by_side():
    groups = [[0, 2], [3, 1]]
    pair = choice.DirectMesh(2)
    for schedule in (
        collectives.all_to_all(4, [range(4)]),
        collectives.broadcast(4, [range(4)], 2),
        collectives.permute([(0, 1), (1, 2), (3, 3)], 4),
        collectives.all_to_all(2, groups),
        collectives.all_reduce(pair, groups),
        collectives.broadcast(2, groups, 1),
    ):
        same(schedule, inputs_of(4, 8, np.float32))


def test_bits_are_the_same_whichever_rank_comes_late():
    schedule = collectives.all_reduce(next(algorithms("trn1.32xlarge", 4)), [range(4)])
    inputs = inputs_of(4, 1001, np.float32)
    first = threads.run(schedule, inputs)
    assert all(again.tobytes() == first[0].tobytes() for _ in range(5) for again in threads.run(schedule, inputs))


def test_a_rank_outside_of_the_groups_does_nothing():
    schedule = collectives.all_reduce(choice.DirectMesh(2), [[0, 2]])
    assert part(schedule, 1).steps == ()


def test_a_partner_that_sends_nothing_is_named():
    schedule = collectives.all_reduce(choice.DirectMesh(2), [range(2)])
    with pytest.raises(TimeoutError, match="rank 1 sent nothing to rank 0"):
        part(schedule, 0).run(np.ones(4, np.float32), threads.Hub(2, patience_s=0.05).of(0))
