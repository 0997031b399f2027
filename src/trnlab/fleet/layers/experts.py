# SPDX-License-Identifier: Apache-2.0
"""A layer's experts on one rank of training: a router, rows sent to experts, their networks, and rows taken back.

As Megatron-LM's dispatcher by all-to-all has it: a rank routes its own part of the sequence, sends each row to the
ranks of its experts, the tensor group gathers what came, and each of its ranks has a part of every network's columns.
Every expert has as many places for each rank's rows as an even router fills, times `capacity`. What is sent to other
ranks is timed apart; here a barrier stands for it, with buffers of the same size. At which place of a buffer a row
stands is given, and not computed.

T tokens of this rank, H hidden size, E experts, n = E / expert of them on this rank, C places of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from trnlab.fleet.layers.sizes import Experts
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.grad.builder import GradientBuilder
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32


def places(experts: Experts, tokens: int) -> int:
    """C: rows of `tokens` tokens that an expert takes."""
    return math.ceil(tokens * experts.active * experts.capacity / experts.count)


def through(b: GradientBuilder, x: Value, ranks: int, count: int, networks: Callable[[Value], Value]) -> Value:
    """Rows x [E C, H] sent to `ranks` ranks that have `count` experts each, through their networks
    [count, ranks C, H] -> the same, and sent back."""
    room, hidden = x.shape[0] // (ranks * count), x.shape[1]
    sent = b.reshape(exchanged(b, x), (ranks, count, room, hidden))
    came = b.reshape(b.transpose(sent, (1, 0, 2, 3)), (count, ranks * room, hidden))
    back = b.reshape(networks(came), (count, ranks, room, hidden))
    return exchanged(b, b.reshape(b.transpose(back, (1, 0, 2, 3)), x.shape))


def exchanged(b: GradientBuilder, x: Value) -> Value:
    """What came for x from other ranks, which is as much: here x itself, behind a barrier both ways."""
    with b.at(None, "exchange"):
        return b.with_gradient(
            lambda x: (b.optimization_barrier(x),), [x], lambda d, *_: [b.optimization_barrier(d)]
        )[0]


class ExpertRows:
    """Where rows of T tokens stand in a buffer of P places, k of each. token: of each place [P], or any where none
    stands; places: of each token [T, k]; entry: of each place, which of the T k it is, or T k where none stands. All
    ways are reads of rows, the gradients' too."""

    def __init__(self, b: GradientBuilder, token: Value, places: Value, entry: Value) -> None:
        self.b, self.token, self.places, self.entry = b, token, places, entry

    def sent(self, x: Value) -> Value:
        """Rows of x [T, H] at their places [P, H]."""
        b = self.b

        def back(d: Value, *_: Sequence[Value]) -> list[Value]:
            return [b.reduce(b.convert(b.take_rows(d, self.places), float32), (1,))]

        with b.at(None, "permute"):
            return b.with_gradient(lambda x: (b.take_rows(x, self.token),), [x], back)[0]

    def added_up(self, x: Value, weights: Value) -> Value:
        """Each token's rows of x [P, H], added up by weights [T, k] in float32: [T, H]."""
        with self.b.at(None, "permute"):
            return self.b.with_gradient(self._summed, [x, weights], self._of_rows)[0]

    def _summed(self, x: Value, weights: Value) -> tuple[Value, ...]:
        b = self.b
        rows = b.convert(b.take_rows(x, self.places), float32)
        y = b.reduce(b.multiply(rows, b.broadcast_in_dim(weights, rows.shape, (0, 1))), (1,))
        return (b.convert(y, x.dtype),)

    def _of_rows(self, d: Value, inputs: Sequence[Value], _: Sequence[Value]) -> list[Value]:
        b, (x, weights), (tokens, each) = self.b, inputs, self.places.shape
        wide = b.broadcast_in_dim(b.convert(d, float32), (tokens, each, x.shape[1]), (0, 2))
        again = b.convert(b.take_rows(b.optimization_barrier(x), self.places), float32)
        of_weights = b.reduce(b.multiply(wide, again), (2,))
        flat = b.pad(b.reshape(weights, (tokens * each, 1)), (0, 0), (1, 0))
        scale = b.broadcast_to(b.take_rows(flat, self.entry), x.shape)
        spread = b.convert(b.take_rows(d, self.token), float32)
        return [b.multiply(spread, scale), of_weights]


def routed(b: GradientBuilder, x: Value, weight: Value, active: int) -> Value:
    """The weights [T, active] of the experts that a token goes to, from x [T, H] and the router's weight [E, H]: the
    largest of a softmax in float32, divided by their sum."""

    def forward(x: Value, weight: Value) -> tuple[Value, ...]:
        hits, tops, total = chosen(b, b.dot_general(x, weight, ((1,), (1,))), active)
        return b.divide(b.concatenate(tops, 1), total), *hits

    def back(dy: Value, inputs: Sequence[Value], results: Sequence[Value]) -> list[Value]:
        (x, weight), (y, *hits) = inputs, results
        inner = b.reduce(b.multiply(dy, y), (1,), keepdims=True)
        d = b.multiply(b.subtract(dy, inner), y)  # of the logarithms of what was chosen
        spread = [b.multiply(b.convert(hit, float32), b.slice_dim(d, 1, i, i + 1)) for i, hit in enumerate(hits)]
        of_logits = b.convert(summed(b, spread), x.dtype)
        of_weight = b.dot_general(of_logits, x, ((0,), (0,)))
        return [b.dot_general(of_logits, weight, ((1,), (0,)), dt=x.dtype), of_weight]

    with b.at(None, "router"):
        return b.with_gradient(forward, [x, weight], back)[0]


def chosen(b: GraphBuilder, logits: Value, active: int) -> tuple[list[Value], list[Value], Value]:
    """Choose the `active` largest of logits [T, E] in turn: where each is [T, E], how much it grew [T, 1], and the
    sum of all."""
    left = b.exponential(b.subtract(logits, b.reduce(logits, (1,), "maximum", keepdims=True)))
    hits, tops = [], []
    for _ in range(active):
        tops.append(b.reduce(left, (1,), "maximum", keepdims=True))
        hits.append(b.compare(left, "GE", tops[-1]))
        left = b.select(hits[-1], -1.0, left)
    return hits, tops, summed(b, tops)


def summed(b: GraphBuilder, values: Sequence[Value]) -> Value:
    """The sum of values of one shape."""
    total = values[0]
    for value in values[1:]:
        total = b.add(total, value)
    return total
