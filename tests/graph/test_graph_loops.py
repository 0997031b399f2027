# SPDX-License-Identifier: Apache-2.0
"""loop: what rounds read and write, that it is checked, and what else knows of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from trnlab.errors import GraphError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.canonical import canonical_hash
from trnlab.graph.flops import model_flops
from trnlab.graph.interpret import interpret
from trnlab.graph.loops import Body, LoopInput, LoopWindow, Write
from trnlab.graph.parse import parse
from trnlab.graph.text import to_text
from trnlab.numerics.dtypes import float32


def summing(rounds=3, read=(0, 2), write=(4, -2), carry=0):
    """Rows of [3, 2] added up; each sum so far goes into a row of another [3, 2], the last row first."""
    b = GraphBuilder("round")
    total = b.add(b.input("total", (2,), float32), b.input("row", (2,), float32))
    b.output(total)
    b.output(b.reshape(total, (1, 2)))
    return Body(
        b.build(),
        rounds,
        (LoopInput(0, None, carry), LoopInput(1, LoopWindow(*read))),
        (Write(), Write(LoopWindow(*write), 2)),
    )


def graph(body):
    b = GraphBuilder("g")
    operands = b.input("first", (2,), float32), b.input("x", (3, 2), float32), b.input("into", (3, 2), float32)
    for value in b.loop(body, *operands):
        b.output(value)
    return b.build()


ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_a_loop_carries_reads_and_writes():
    total, seen = interpret(graph(summing()), [np.ones(2, np.float32), ROWS, -np.ones((3, 2), np.float32)])
    assert_array_equal(total, 1 + ROWS.sum(0))
    assert_array_equal(seen, (1 + ROWS.cumsum(0))[::-1])


def test_what_no_round_writes_stays():
    body = summing(2)
    assert not body.filled(1, 6)
    _, seen = interpret(graph(body), [np.ones(2, np.float32), ROWS, -np.ones((3, 2), np.float32)])
    assert_array_equal(seen[0], [-1, -1])


@pytest.mark.parametrize(
    "body",
    [
        summing(0),
        summing(4),
        summing(read=(-1, 2)),
        summing(write=(0, 3)),
        summing(carry=1),
        Body(summing().graph, 3, summing().reads[:1], summing().writes),
        Body(summing().graph, 3, summing().reads, (Write(), Write(LoopWindow(0, 2)))),
    ],
)
def test_what_does_not_fit_is_refused(body):
    with pytest.raises(GraphError):
        graph(body)


def test_filling_takes_windows_that_meet_and_reach_both_ends():
    assert LoopWindow(0, 2).fills(2, 3, 6)
    assert LoopWindow(4, -2).fills(2, 3, 6)
    assert not LoopWindow(0, 3).fills(2, 2, 5)
    assert not LoopWindow(0, 2).fills(2, 3, 7)
    assert not LoopWindow(1, 2).fills(2, 3, 7)


def test_its_identity_is_what_rounds_do():
    assert canonical_hash(graph(summing())) == canonical_hash(graph(summing()))
    assert canonical_hash(graph(summing())) != canonical_hash(graph(summing(2)))
    assert canonical_hash(graph(summing())) != canonical_hash(graph(summing(write=(0, 2))))


def test_text_shows_the_round_and_cannot_be_read_back():
    text = to_text(graph(summing()))
    assert "graph @round" in text
    with pytest.raises(GraphError, match="loop"):
        parse(text)


def test_operations_count_in_each_round():
    b = GraphBuilder("round")
    x = b.input("x", (4, 4), float32)
    b.output(b.matmul(x, x))
    g = GraphBuilder("g")
    g.output(*g.loop(Body(b.build(), 5, (LoopInput(0, None, 0),), (Write(),)), g.input("x", (4, 4), float32)))
    assert model_flops(g.build()) == 5 * 2 * 4**3
