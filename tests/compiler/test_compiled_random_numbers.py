# SPDX-License-Identifier: Apache-2.0
"""Random numbers on the chip: those of the definition, bit for bit, however the loop is cut; known answers."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, execute, random

from trnlab.chips import catalog
from trnlab.graph.interpret import interpret
from trnlab.numerics import threefry
from trnlab.program import Builder, hbm_view
from trnlab.sim.functional import Machine

SEED = np.array([7, -3], np.int32)


def draw(shape, *, seed=SEED, first=0):
    graph = build(lambda b, s: b.rng_uniform(shape, s, first), seed)
    return execute(graph, [seed])[0]


def numbers(shape, *, seed=SEED, first=0):
    """The definition, in NumPy."""
    counters = np.uint64(first) + np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64)
    bits = threefry.block(seed.view(np.uint32), counters)[0]
    return ((bits >> 8).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)


ANSWERS = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "counter", "block"), ANSWERS)
def test_threefry_gives_the_published_answers(key, counter, block):
    counters = np.array([counter[0] | counter[1] << 32], np.uint64)
    assert tuple(int(word[0]) for word in threefry.block(np.array(key, np.uint32), counters)) == block


@pytest.mark.parametrize("shape", [(), (1000,), (130, 33), (2, 3, 65, 65), (3, 20_000)])
@pytest.mark.parametrize("first", [0, 5, 2**32 - 100, 2**40 + 3])
def test_the_chip_draws_the_numbers_of_the_definition(shape, first):
    """Places decide, not how many rows and columns a sweep takes; the count goes on beyond 32 bits."""
    found = draw(shape, first=first)
    assert np.array_equal(found, numbers(shape, first=first))
    graph = build(lambda b, s: b.rng_uniform(shape, s, first), SEED)
    assert np.array_equal(found, interpret(graph, [SEED])[0])


def test_a_row_in_pieces_draws_the_same():
    """Rows too long for SBUF go through it in chunks, the last one narrower, and more than once."""
    x = random(3, 60_000)

    def function(b, s, x):
        highest = b.reduce(x, (1,), "maximum", keepdims=True)
        return b.add(b.rng_uniform(x.shape, s), b.multiply(b.subtract(x, highest), 0.0))

    assert np.array_equal(execute(build(function, SEED, x), [SEED, x])[0], numbers(x.shape))


@pytest.mark.parametrize("dt", ["int32", "uint32", "uint8"])
def test_bits_of_a_key(dt):
    """The instruction by its compiled loop, and by its definition where there is none, draws what it is asked for."""
    chip, first, step = catalog.get("trn1"), 2**32 - 700, 1000
    b = Builder("bits", chip)
    key, out = b.param("key", (1, 2), "int32"), b.param("out", (128, 40), dt)
    tile, keys = b.tile((128, 40), dt), b.tile((128, 2), "int32")
    b.dma_copy(dst=keys, src=hbm_view(key.buffer, 0, ((0, 128), (1, 2))))
    b.rng(dst=tile, key=keys, first=first, step=step)
    b.dma_copy(dst=out, src=tile)
    found = np.zeros((128, 40), dt)
    Machine(chip).call(b.build(), [SEED.reshape(1, 2), found])
    places = (first + step * np.arange(128)[:, None] + np.arange(40)).astype(np.uint64)
    assert np.array_equal(found, threefry.block(SEED.view(np.uint32), places)[0].astype(dt))


def test_the_seed_decides():
    assert np.array_equal(draw((130, 33)), draw((130, 33)))
    for seed in ([8, -3], [7, -2]):
        assert not np.isin(draw((130, 33)), draw((130, 33), seed=np.array(seed, np.int32))).mean() > 0.01


def test_a_mask_is_the_same_wherever_it_is_used():
    """Dropout forward and backward: what one drops the other drops, though other loops read the mask."""
    x, g = random(300, 70), random(300, 70, seed=1)

    def function(b, x, g, w, s):
        keep = b.compare(b.rng_uniform(x.shape, s, 3), "GE", 0.25)
        y = b.multiply(b.select(keep, x, 0.0), 1 / 0.75)
        out = b.matmul(y, w)
        back = b.dot_general(g, w, ((1,), (0,)))
        return y, out, b.multiply(b.select(keep, back, 0.0), 1 / 0.75)

    inputs = [x, g, np.eye(70, dtype=np.float32), SEED]
    y, out, dx = execute(build(function, *inputs), inputs)
    kept = y != 0
    assert abs(kept.mean() - 0.75) <= 5 * np.sqrt(0.1875 / kept.size)
    assert np.allclose(y[kept], x[kept] / 0.75, rtol=1e-6)
    assert np.allclose(out, y, rtol=1e-6)
    assert np.array_equal(dx != 0, kept)
