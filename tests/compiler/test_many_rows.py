# SPDX-License-Identifier: Apache-2.0
"""What varies along many short rows is loaded, and stored, for several blocks of rows at once."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, check, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.emission.tilesource import MANY, MOST_KEPT, WINDOW
from trnlab.isa import REGISTRY

BLOCK = 128
ROWS = [(MANY - 1) * BLOCK, MANY * BLOCK, MANY * BLOCK + 1, (MANY + 1) * BLOCK + 77, 3 * WINDOW * BLOCK - 5]


def centred(b, x, scale):
    """Rows less their mean, scaled by numbers of rows; the means, too."""
    mean = b.multiply(b.reduce(x, (1,), keepdims=True), 1 / x.shape[1])
    return b.multiply(b.subtract(x, mean), scale), mean, b.reduce(x, (1,), "maximum")


def by_torch(x, scale):
    mean = x.mean(1, keepdim=True)
    return (x - mean) * scale, mean, x.amax(1)


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("rows", ROWS)
def test_numbers_of_rows(rows, chip):
    """Below and from the number of blocks on, with a last block that is not full, and a last window."""
    check(centred, by_torch, random(rows, 48), random(rows, 1, seed=1), tolerance=1e-5, chip=chip)


def test_in_bfloat16_they_are_rounded_once():
    def function(b, x):
        return b.convert(b.reduce(x, (1,)), "bfloat16"), b.convert(x, "bfloat16")

    x = random(MANY * BLOCK + 5, 32)
    check(function, lambda x: (x.sum(1).bfloat16(), x.bfloat16()), x, tolerance=2.0**-8)


def test_softmax_and_the_logarithm_of_its_sum():
    x = random(MANY * BLOCK + 3, 40) * 4

    def function(b, x):
        shifted = b.subtract(x, b.reduce(x, (1,), "maximum", keepdims=True))
        total = b.reduce(b.exponential(shifted), (1,), keepdims=True)
        return b.divide(b.exponential(shifted), total), b.log(total)

    def expected(x):
        shifted = x - x.amax(1, keepdim=True)
        return x.softmax(1), shifted.exp().sum(1, keepdim=True).log()

    check(function, expected, x, tolerance=1e-5)


def transfers(rows):
    """Transfers of a program over so many rows, for each block of them."""
    x, scale = np.zeros((rows, 48), np.float32), np.zeros((rows, 1), np.float32)
    program = compile(build(centred, x, scale), chips.get("trn2"), {"precision": "fp32"})
    opcodes = np.concatenate([program.routines[call.routine].opcode for call in program.calls])
    return (opcodes == REGISTRY["dma_copy"].opcode).sum() / (rows / BLOCK)


def test_there_are_fewer_transfers():
    """Of each block the row itself, there and back, and next to nothing else; with fewer or more blocks five."""
    assert transfers(MANY * BLOCK) < 2.2
    assert transfers((MANY - 1) * BLOCK) > 4.5
    assert transfers((MOST_KEPT + 1) * BLOCK) > 4.5


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("shape", [(8, 96, 14, 14), (3, 130, 7, 9), (2, 40, 5, 6, 3), (4, 5, 3, 2)], ids=str)
def test_sums_of_tensors_in_different_orders_go_by_the_rows_that_they_share(shape, chip):
    """Images before channels, and channels before images: whole images are rows, as long as there are enough."""
    x, y = random(*shape), random(shape[1], shape[0], *shape[2:], seed=1)
    order = (1, 0, *range(2, len(shape)))

    def function(b, x, y):
        return b.multiply(b.add(x, b.transpose(y, order)), 0.5)

    check(function, lambda x, y: (x + y.transpose(0, 1)) * 0.5, x, y, tolerance=1e-6, chip=chip)
    (routine,) = compile(build(function, x, y), chips.get(chip), {"precision": "fp32"}).routines
    images = shape[0] * shape[1]
    most = 12 * -(-images // BLOCK) if images >= BLOCK else np.inf
    assert (routine.opcode == REGISTRY["dma_copy"].opcode).sum() <= most
