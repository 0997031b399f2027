# SPDX-License-Identifier: Apache-2.0
"""Random convolutions for tests: every attribute, one to three dimensions of space."""

import random

from trnlab.errors import GraphError
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import float32


def random_convolution(seed):
    """A graph of one convolution with a result that is not empty."""
    rng = random.Random(seed)
    while True:
        rank = rng.choice([1, 2, 2, 3])
        groups, batches = rng.choice([(1, 1), (1, 1), (2, 1), (3, 1), (1, 2)])
        channels, out, images = rng.choice([1, 2, 4]), rng.choice([1, 2, 3]), rng.choice([1, 2])
        size, window = ([rng.randint(1, most) for _ in range(rank)] for most in (9, 5))
        strides, dilation, spread = ([rng.choice([1, 1, 2, 3]) for _ in range(rank)] for _ in range(3))
        low, high = ([rng.randint(-1, 3) for _ in range(rank)] for _ in range(2))
        b = GraphBuilder(f"convolution{seed}")
        x = b.input("x", (images * batches, channels * groups, *size), float32)
        w = b.input("w", (out * groups * batches, channels, *window), float32)
        try:
            y = b.convolution(
                x,
                w,
                strides=strides,
                padding=(low, high),
                dilation=dilation,
                spread=spread,
                reverse=rng.random() < 0.4,
                groups=groups,
                batch_groups=batches,
            )
        except GraphError:
            continue  # cropped to less than nothing
        if 0 not in y.shape:
            b.output(y)
            return b.build()
