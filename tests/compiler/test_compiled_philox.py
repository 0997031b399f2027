# SPDX-License-Identifier: Apache-2.0
"""Philox on the chip: the published answers, and the definition's words however the loop is cut."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, execute

from trnlab.graph.interpret import interpret
from trnlab.numerics import philox

STATE = np.array([7, 0xFFFFFFF0, 0xFFFFFFFE, 0xFFFFFFFF, 5, 0], np.uint32)  # whose counter carries at block 2
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
ANSWERS = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0xA4093822, 0x299F31D0), PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def graph_of(shape):
    return build(lambda b, s: b.rng_philox(shape, s), STATE)


@pytest.mark.parametrize(("key", "counter", "block"), ANSWERS)
def test_philox_gives_the_published_answers(key, counter, block):
    found = philox.block(np.array(key, np.uint32), np.array(counter, np.uint32))
    assert tuple(map(int, found)) == block


def test_words_count_through_blocks_and_the_counter_wraps():
    full = np.array([1, 2, *[0xFFFFFFFF] * 4], np.uint32)
    found = philox.words(full, np.arange(8, dtype=np.uint64))
    assert tuple(found[4:]) == philox.block(np.array([1, 2], np.uint32), np.zeros(4, np.uint32))


@pytest.mark.parametrize("shape", [(), (3,), (130, 33), (2, 3, 65, 7)])
def test_the_chip_draws_the_words_of_the_definition(shape):
    expected = philox.words(STATE, np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64)).reshape(shape)
    assert np.array_equal(interpret(graph_of(shape), [STATE])[0], expected)
    assert np.array_equal(execute(graph_of(shape), [STATE])[0], expected)


def test_words_feed_a_mask_in_the_same_loop():
    def function(b, s, x):
        keep = b.compare(b.shift_right_logical(b.rng_philox(x.shape, s), 9), "LT", 1 << 22)
        return b.select(keep, x, 0.0)

    x = np.ones((64, 300), np.float32)
    graph = build(function, STATE, x)
    found = execute(graph, [STATE, x])[0]
    assert np.array_equal(found, interpret(graph, [STATE, x])[0])
    assert 0.45 < found.mean() < 0.55
