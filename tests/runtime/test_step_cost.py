# SPDX-License-Identifier: Apache-2.0
"""Whose the time of a step is, where calls run beside each other."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from trnlab.errors import Location
from trnlab.runtime import step_cost
from trnlab.runtime.step_cost import phases_by_lines, shares


@pytest.mark.parametrize(
    ("spans", "want"),
    [
        ([(0, 10), (10, 15)], [10, 5]),
        ([(5, 10), (12, 15)], [10, 5]),  # before the first and between them nothing runs
        ([(0, 10), (4, 15)], [10, 5]),
        ([(0, 100), (0, 40), (40, 80)], [20, 40, 40]),  # others cover most of the first
        ([(0, 10), (10, 100), (97, 98)], [10, 89, 1]),  # ends before the long one, and is not taken for it
        ([(0, 10), (0, 0), (10, 12)], [10, 0, 2]),  # one of no instructions
        ([(3, 9), (3, 9)], [9, 0]),
        ([], []),
    ],
)
def test_time_is_of_the_call_that_ends_first_of_those_that_run(spans, want):
    assert shares([start for start, _ in spans], [end for _, end in spans]) == want


@pytest.mark.parametrize("seed", range(20))
def test_shares_add_up_and_none_is_more_than_its_call_takes(seed):
    """Of any calls, but for what passes while none runs."""
    draw = random.Random(seed)
    starts = [draw.randrange(50) for _ in range(12)]
    ends = [start + draw.randrange(1, 30) for start in starts]
    found = shares(starts, ends)
    assert sum(found) == max(ends)
    idle = max(ends) - len({t for a, b in zip(starts, ends) for t in range(a, b)})
    assert all(0 <= share <= end - start + idle for share, start, end in zip(found, starts, ends))


def test_what_is_computed_of_gradients_is_of_the_update(monkeypatch):
    """Norms and updates come as soon as a gradient is there, in the order of the program: their lines are the
    optimizer's. What the backward pass goes on from is its own, whatever its line."""
    calls = [  # label, phase of the line, what it writes, what it reads
        ("dot", "forward", "h", "x"),
        ("dot", "forward", "loss", "h"),
        ("dot", "backward", "g2", "loss h"),
        ("rows", "", "norm2", "g2"),
        ("rows", "", "sum2", "g2"),  # a sum of gradients has no line of its own
        ("rows", "forward", "mask", "x"),
        ("dot", "backward", "g1", "sum2 mask"),
        ("rows", "", "norm1", "g1"),
    ]
    names: dict[str, int] = {}
    made = []
    for label, phase, result, read in calls:
        args = tuple(names.setdefault(name, len(names)) for name in (*read.split(), result))
        made.append(SimpleNamespace(label=label, loc=Location("f", 1, phase=phase), args=args, own={args[-1]}))
    monkeypatch.setattr(step_cost, "_written", lambda call, program: frozenset(call.own))
    found = phases_by_lines(SimpleNamespace(calls=made), ())
    assert found == ["forward", "forward", "backward", "update", "backward", "forward", "backward", "update"]
