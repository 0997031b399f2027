# SPDX-License-Identifier: Apache-2.0
"""Rows of a table by distance are looked up once a distance, and are those of every place."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, execute, random

from trnlab.compiler.rewriting.recognize import recognize_distances
from trnlab.graph.interpret import interpret
from trnlab.graph.passes import simplify
from trnlab.graph.verify import verify
from trnlab.numerics.dtypes import int32


def looked_up(pairs, number, heads_first=True):
    """Rows by a number made of the places of queries and keys."""

    def function(b, table):
        found = b.take_rows(table, number(b, b.iota(pairs, int32, 0), b.iota(pairs, int32, 1)))
        return b.transpose(found, (2, 0, 1)) if heads_first else found

    return function


def clipped(b, rows, columns):
    """The distance, at most 9 to either side."""
    return b.add(b.clamp(-9, b.subtract(columns, rows), 9), 9)


def count_looked_up(graph):
    """Rows that are looked up, after recognition."""
    after = graph.copy()
    simplify(after)
    recognize_distances(after)
    simplify(after)
    verify(after)
    return sum(
        op.result.shape[0] * (op.result.shape[1] if len(op.result.shape) == 3 else 1)
        for op in after.ops
        if op.name == "gather"
    )


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("pairs", [(130, 140), (150, 150), (151, 150), (100, 700)], ids=str)
def test_each_place_has_its_row(pairs, heads_first, chip):
    """Numbers that are none stay where they are."""
    table = random(19, 5)
    table[3, 2], table[17, 1], table[9, 0] = np.inf, np.nan, -0.0
    graph = build(looked_up(pairs, clipped, heads_first), table)
    assert count_looked_up(graph) == sum(pairs)
    (got,), (expected,) = execute(graph, [table], chip=chip), interpret(graph, [table])
    np.testing.assert_array_equal(got, expected)


NEARLY = {
    "more queries than keys": ((200, 150), clipped),
    "few places": ((20, 30), clipped),
    "sums": ((150, 150), lambda b, rows, columns: b.minimum(b.add(rows, columns), b.constant(18, int32, rows.shape))),
    "one place is other": (
        (150, 150),
        lambda b, rows, columns: b.select(
            b.and_(b.compare(rows, "EQ", 149), b.compare(columns, "EQ", 149)), 0, clipped(b, rows, columns)
        ),
    ),
}


@pytest.mark.parametrize("name", NEARLY)
def test_what_hangs_on_more_than_distance_is_looked_up_everywhere(name):
    pairs, number = NEARLY[name]
    table = random(19, 5)
    graph = build(looked_up(pairs, number), table)
    assert count_looked_up(graph) == pairs[0] * pairs[1]
    np.testing.assert_array_equal(execute(graph, [table])[0], interpret(graph, [table])[0])


def test_numbers_that_hang_on_data_are_looked_up_everywhere():
    ids = np.subtract.outer(np.arange(150), np.arange(150)).astype(np.int32) + 149
    table = random(300, 5)
    graph = build(lambda b, table, ids: b.take_rows(table, ids), table, ids)
    assert count_looked_up(graph) == ids.size
