# SPDX-License-Identifier: Apache-2.0
"""Chains of views (reshape, transpose, slice, broadcast) of whatever lies in memory, against the interpreter.

A view that no strides can express becomes a copy, wherever in the chain it is and whatever it looks at: an input, a
computed value, an iota, a number, the results of attention, which lie in an order of their own.
"""

from __future__ import annotations

import numpy as np
import pytest
from compiled import execute

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.numerics.dtypes import float32

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 130)
MOST = 4000  # elements


class Chains:
    """A graph of random chains; the seed decides everything."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.b = GraphBuilder(f"views{seed}")
        self.inputs = []

    def integer(self, *bounds):
        return int(self.rng.integers(*bounds))

    def input(self, shape):
        self.inputs.append(self.rng.standard_normal(shape).astype(np.float32))
        return self.b.input(f"x{len(self.inputs)}", shape, float32)

    def sources(self):
        b, shape = self.b, tuple(int(self.rng.choice(SIZES)) for _ in range(self.integer(5)))
        while np.prod(shape, dtype=int) > MOST:
            shape = shape[1:]
        found = [self.input(shape)]
        if self.integer(3) == 0:
            found.append(b.iota(shape or (3,), float32, self.integer(max(len(shape), 1))))
        if self.integer(4) == 0:
            found.append(b.constant(3.0, float32, shape))
        if self.integer(4) == 0:
            q = self.input((2, 4, 6, 8))
            out, lse = b.attention(q, q, q)
            found += [out, *b.attention_backward(q, q, q, q, out, lse)]
        return found

    def reshaped(self, x):
        left, shape = x.type.size, []
        while left > 1 and len(shape) < 4:
            shape.append(int(self.rng.choice([d for d in range(1, left + 1) if left % d == 0])))
            left //= shape[-1]
        shape = [*shape, left] if left > 1 or not shape else shape
        if self.integer(3) == 0:
            shape.insert(self.integer(len(shape) + 1), 1)
        return self.b.reshape(x, tuple(shape))

    def transposed(self, x):
        return self.b.transpose(x, tuple(self.rng.permutation(len(x.shape)).tolist()))

    def sliced(self, x):
        if not x.shape:
            return x
        axis = self.integer(len(x.shape))
        low = self.integer(x.shape[axis])
        return self.b.slice_dim(x, axis, low, self.integer(low, x.shape[axis]) + 1, self.integer(1, 4))

    def expanded(self, x):
        if x.type.size > 600 or len(x.shape) > 4:
            return x
        rank = len(x.shape)
        if 1 in x.shape and self.integer(2):
            shape = tuple(self.integer(1, 4) if n == 1 else n for n in x.shape)
            return self.b.broadcast_in_dim(x, shape, range(rank))
        at = self.integer(rank + 1)
        shape = (*x.shape[:at], self.integer(1, 4), *x.shape[at:])
        return self.b.broadcast_in_dim(x, shape, tuple(d + (d >= at) for d in range(rank)))

    def computed(self, x):
        return (self.b.multiply(x, 2.0), self.b.add(x, x), x)[self.integer(3)]

    def graph(self):
        pool = self.sources()
        steps = (self.reshaped, self.transposed, self.sliced, self.expanded, self.computed)
        for i in range(self.integer(1, 4)):
            x = pool[self.integer(len(pool))]
            for _ in range(self.integer(1, 8)):
                x = steps[self.integer(len(steps))](x)
            pool.append(x)
            if x.shape and self.integer(3) == 0:
                x = self.b.reduce(x, (len(x.shape) - 1,), "add")
            elif len(x.shape) == 2 and self.integer(3) == 0:
                x = self.b.dot_general(x, x, ((1,), (1,)))
            self.b.output(x, f"out{i}")
        return self.b.build()


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_chains_of_views(first):
    for seed in range(first, first + 20):
        chains = Chains(seed)
        graph = chains.graph()
        expected = interpret(graph, [x.copy() for x in chains.inputs])
        for got, want in zip(execute(graph, [x.copy() for x in chains.inputs]), expected):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * max(np.abs(want).max(initial=0), 1))
