# SPDX-License-Identifier: Apache-2.0
"""Images whose channels lie side by side in memory, as tokens of a transformer do that a convolution reads: they are
turned once, on the PE array, instead of loaded element by element."""

import ml_dtypes
import numpy as np
import pytest
from compiled import BF16, FP32, build, error, execute_in_both_orders, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.interpret import interpret
from trnlab.sim.timing import time_program

CHIP = chips.get("trn1")
N, H, W, C = 2, 33, 40, 40
HOSTILE = [np.inf, -np.inf, np.nan, -0.0]
POOL = {"window": (3, 3), "window_strides": (2, 2), "padding_low": (1, 1), "places": (17, 20)}


def dense(b, x, w):
    return b.convolution(x, w, padding=((1, 1), (1, 1)))


def by_channel(b, x, w):
    return b.convolution(x, b.reshape(b.slice_dim(w, 1, 0, 1), (C, 1, 3, 3)), padding=((1, 1), (1, 1)), groups=C)


def weight_gradient(b, x, w):
    """Both operands are images: each channel's by its own."""
    turned = b.transpose(x, (1, 0, 2, 3))
    return b.convolution(turned, turned, padding=((1, 1), (1, 1)), batch_groups=C)


def resized(b, x, w):
    return b.op("trn.resize", x, rule="linear", places=(66, 80))


def largest(b, x, w):
    return b.op("trn.max_pool", x, **POOL)


READERS = (dense, by_channel, weight_gradient, resized, largest)


def of_tokens(read):
    return lambda b, t, w: read(b, b.reshape(b.transpose(t, (0, 2, 1)), (N, C, H, W)), w)


def of_images(read):
    return lambda b, t, w: read(b, b.reshape(t, (N, C, H, W)), w)


def given(kind):
    return random(N, H * W, C).astype(kind), (random(C, C, 3, 3, seed=1) / 8).astype(kind)


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("read", READERS)
def test_readers_of_turned_images_agree_with_the_graph(read, kind):
    inputs = given(kind)
    graph = build(of_tokens(read), *inputs)
    expected = interpret(graph, list(inputs))
    for got, want in zip(execute_in_both_orders(graph, list(inputs)), expected, strict=True):
        assert error(got, want) <= (FP32 if kind is np.float32 else BF16)


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_numbers_that_are_none_stay_where_they_are(kind):
    tokens, weight = given(kind)
    tokens.reshape(-1)[np.arange(40) * 1000 + 7] = np.resize(HOSTILE, 40).astype(kind)
    graph = build(of_tokens(largest), tokens, weight)
    (got,), (want,) = execute_in_both_orders(graph, [tokens, weight]), interpret(graph, [tokens, weight])
    assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize("read", READERS)
def test_a_turned_image_costs_a_copy_and_no_more(read):
    """The copy takes some 10 us; loaded element by element, readers took 50 to 300 us longer."""
    inputs = given(ml_dtypes.bfloat16)
    turned, plain = (
        time_program(compile(build(made(read), *inputs), CHIP, {"precision": "fp32"}), CHIP).total
        for made in (of_tokens, of_images)
    )
    assert turned < plain + 20e6, f"{turned / 1e6:.0f} us, as images {plain / 1e6:.0f} us"
