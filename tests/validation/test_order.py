# SPDX-License-Identifier: Apache-2.0
"""Kendall's tau of variants: pairs that the chip tells apart, ties, and problems that are never mixed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trnlab.validation import sources
from trnlab.validation.sources.catalogue import load
from trnlab.validation.sources.order import correlations, overall, pairs
from trnlab.validation.sources.results import TimedKernel

KERNEL = load()[0]


def variants(*times: tuple[float, float | None], problem: str = "p", chip: str = "trn1") -> list[TimedKernel]:
    """Kernels by what was measured and predicted."""
    return [
        TimedKernel(replace(KERNEL, problem=problem, chip=chip, measured=measured), predicted)
        for measured, predicted in times
    ]


@pytest.mark.parametrize(
    ("times", "tau"),
    [
        (((3, 30), (2, 20), (1, 10)), 1.0),
        (((3, 10), (2, 20), (1, 30)), -1.0),
        (((3, 30), (2, 10), (1, 20)), pytest.approx(1 / 3)),
        (((2, 10), (1, 10)), 0.0),  # told apart there, the very same here: neither for nor against
        (((1.04, 10), (1, 20)), None),  # the chip does not tell them apart
        (((2, None), (1, 10)), None),  # a refusal has no place in an order
    ],
)
def test_tau_counts_pairs_that_the_chip_tells_apart(
    times: tuple[tuple[float, float | None], ...], tau: float | None
) -> None:
    assert overall(correlations(variants(*times))).tau == tau


def test_ties_of_the_chip_are_counted_beside_it() -> None:
    (found,) = correlations(variants((1.04, 10.0), (1.0, 10.2), (1.02, 20.0)))
    assert (found.pairs, found.tied) == (0, (1, 3))


def test_problems_and_chips_are_not_compared_with_each_other() -> None:
    some = variants((3, 1), (1, 3)) + variants((3, 3), (1, 1), problem="q") + variants((3, 3), (1, 1), chip="trn2")
    found = correlations(some)
    assert [c.tau for c in found] == [-1.0, 1.0, 1.0]
    assert (overall(found).pairs, overall(found).tau) == (3, pytest.approx(1 / 3))


def test_the_recorded_ladders_have_the_pairs_of_the_report() -> None:
    results = [row.timed for row in sources.recorded()]
    all_of_them, (count, wrong) = overall(correlations(results)), pairs(results)
    assert (all_of_them.pairs, all_of_them.concordant) == (count, count - len(wrong))
    assert sources.to_json(sources.recorded())["pairs"]["tau"] == all_of_them.tau
