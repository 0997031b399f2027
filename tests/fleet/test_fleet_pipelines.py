# SPDX-License-Identifier: Apache-2.0
"""Simulated pipelines take what the published formulas say, and hold as many microbatches."""

from __future__ import annotations

import pytest

from trnlab.fleet.search.pipeline import Times, order, simulate

SHAPES = [
    (1, 4, 1),
    (2, 2, 1),
    (4, 4, 1),
    (4, 32, 1),
    (8, 64, 1),
    (3, 7, 1),
    (4, 8, 2),
    (8, 16, 4),
    (2, 2, 3),
    (4, 8, 4),
]


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), SHAPES)
def test_bubbles_are_those_of_the_formula(ranks, microbatches, chunks):
    """(p - 1) / (v m) of the ideal time (Narayanan et al. 2021), for passes back of twice the time forward."""
    stages = ranks * chunks
    run = simulate(Times([1.0 / chunks] * stages, [2.0 / chunks] * stages), ranks, microbatches)
    ideal = 3.0 * microbatches
    assert run.total / ideal - 1 == pytest.approx((ranks - 1) / (chunks * microbatches))
    assert run.busy == pytest.approx([ideal] * ranks)


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), SHAPES)
def test_activations_held_are_those_of_the_formula(ranks, microbatches, chunks):
    """1F1B holds min(m, p - i) microbatches on rank i; interleaved, the first rank p v + p - 1 chunks of them
    (Korthikanti et al. 2022), as far as there are so many."""
    stages = ranks * chunks
    run = simulate(Times([1.0] * stages, [2.0] * stages), ranks, microbatches)
    if chunks == 1:
        assert run.held == tuple(min(microbatches, ranks - i) for i in range(ranks))
    else:
        assert run.held[0] == min(microbatches * chunks, ranks * chunks + ranks - 1)


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), SHAPES)
def test_every_pass_is_made_once(ranks, microbatches, chunks):
    for rank in range(ranks):
        done = order(rank, ranks, microbatches, chunks)
        assert len(set(done)) == len(done) == 2 * microbatches * chunks
        for work in done:
            if work.backward:
                assert done.index(work._replace(backward=False)) < done.index(work)


def test_the_slowest_stage_sets_the_pace():
    run = simulate(Times([1.0, 3.0], [2.0, 6.0]), 2, 50)
    assert run.total == pytest.approx(50 * 9.0 + 3.0)


def test_sending_is_waited_for_once_in_each_direction():
    free = simulate(Times([1.0] * 4, [2.0] * 4), 4, 1)
    sent = simulate(Times([1.0] * 4, [2.0] * 4, 0.5), 4, 1)
    assert sent.total == pytest.approx(free.total + 6 * 0.5)
