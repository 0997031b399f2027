# SPDX-License-Identifier: Apache-2.0
"""A layer's experts on one rank: a router, rows sent to experts, their networks, and rows taken back.

As Megatron-LM's dispatcher by all-to-all has it: a rank routes its own part of the sequence, sends each row to the
ranks of its experts, the tensor group gathers what came, and each of its ranks has a part of every network's columns.
Every expert has as many places for each rank's rows as an even router fills, times `capacity`. What is sent to other
ranks is timed apart; here a barrier stands for it, with buffers of the same size. At which place of a buffer a row
stands is given, and not computed.

T tokens of this rank, H hidden size, E experts, n = E / expert of them on this rank, C places of each.
"""

from __future__ import annotations

import math

from trnlab.fleet.layers.shares import Rank
from trnlab.fleet.layers.tape import Tape
from trnlab.fleet.models.transformer import Dense, Experts
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32, int32


def places(experts: Experts, tokens: int) -> int:
    """C: rows of `tokens` tokens that an expert takes."""
    return math.ceil(tokens * experts.active * experts.capacity / experts.count)


def network(layers: Rank, name: str, experts: Experts, x: Value) -> Value:
    """x [B, S / t, H] -> the same."""
    tape, (batch, length, hidden) = layers.tape, x.shape
    tokens = batch * length
    flat = tape.reshaped(x, (tokens, hidden))
    weights = routed(tape, flat, tape.weight(name + "_router", experts.count, hidden), experts.active)
    room = places(experts, tokens)
    rows = Rows(tape, tokens, experts.active, experts.count * room)
    back = _computed(layers, name, experts, rows.sent(flat), room)
    out = tape.reshaped(rows.added_up(back, weights), x.shape)
    if not experts.shared:
        return out
    return tape.add(out, layers.dense(name + "_shared", Dense(experts.shared, experts.gated), x))


def _computed(layers: Rank, name: str, experts: Experts, sent: Value, room: int) -> Value:
    """Rows [E C, H] through their experts' networks: sent, computed and sent back."""
    tape, share, hidden = layers.tape, layers.share, sent.shape[1]
    here = experts.count // share.expert
    apart = (share.expert, here, room, hidden)
    came = tape.turned_about(tape.reshaped(_exchanged(tape, sent), apart), (1, 0, 2, 3))
    rows = layers.gathered(tape.reshaped(came, (here, share.expert * room, hidden)))
    width = layers.part(experts.size)

    def product(part: str, x: Value, size: int) -> Value:
        return tape.products(x, tape.weight(f"{name}_{part}", here, size, x.shape[-1]))

    if experts.gated:
        inner = tape.multiply(tape.activation(product("gate", rows, width), "silu"), product("up", rows, width))
    else:
        inner = tape.activation(product("up", rows, width), "gelu")
    out = layers.scattered(product("down", inner, hidden))
    out = tape.turned_about(tape.reshaped(out, (here, share.expert, room, hidden)), (1, 0, 2, 3))
    return _exchanged(tape, tape.reshaped(out, sent.shape))


def _exchanged(tape: Tape, x: Value) -> Value:
    """What came for x from other ranks, which is as much: here x itself, behind a barrier."""
    b = tape.b
    return tape.then(b.optimization_barrier(x), lambda d: tape.send_back(x, b.optimization_barrier(d)))


class Rows:
    """Where rows of T tokens stand in a buffer of P places, k of each. Given: the token of each place [P], or any
    where none stands; the places of each token [T, k]; and of each place, which of the T k it is, or T k where none
    stands. All ways are reads of rows, the gradients' too."""

    def __init__(self, tape: Tape, tokens: int, each: int, size: int) -> None:
        self.tape, self.tokens, self.each = tape, tokens, each
        self.token = tape.given((size,), int32)
        self.places = tape.given((tokens, each), int32)
        self.entry = tape.given((size,), int32)

    def sent(self, x: Value) -> Value:
        """Rows of x [T, H] at their places [P, H]."""
        b = self.tape.b

        def back(d: Value) -> None:
            rows = b.convert(b.take_rows(d, self.places), float32)
            self.tape.send_back(x, b.convert(b.reduce(rows, (1,)), self.tape.form))

        return self.tape.then(b.take_rows(x, self.token), back)

    def added_up(self, x: Value, weights: Value) -> Value:
        """Each token's rows of x [P, H], added up by weights [T, k] in float32: [T, H]."""
        b, form = self.tape.b, self.tape.form
        rows = b.convert(b.take_rows(x, self.places), float32)
        y = b.reduce(b.multiply(rows, b.broadcast_in_dim(weights, rows.shape, (0, 1))), (1,))

        def back(d: Value) -> None:
            wide = b.broadcast_in_dim(b.convert(d, float32), rows.shape, (0, 2))
            again = b.convert(b.take_rows(b.optimization_barrier(x), self.places), float32)
            self.tape.send_back(weights, b.reduce(b.multiply(wide, again), (2,)))
            flat = b.pad(b.reshape(weights, (self.tokens * self.each, 1)), (0, 0), (1, 0))
            scale = b.broadcast_to(b.take_rows(flat, self.entry), x.shape)
            spread = b.convert(b.take_rows(d, self.token), float32)
            self.tape.send_back(x, b.convert(b.multiply(spread, scale), form))

        return self.tape.then(b.convert(y, form), back)


def routed(tape: Tape, x: Value, weight: Value, active: int) -> Value:
    """The weights [T, active] of the experts that a token goes to, from x [T, H] and the router's weight [E, H]: the
    largest of a softmax in float32, divided by their sum."""
    b = tape.b
    logits = b.dot_general(x, weight, ((1,), (1,)))
    grown = b.exponential(b.subtract(logits, b.reduce(logits, (1,), "maximum", keepdims=True)))
    left, hits, tops = grown, [], []
    for _ in range(active):
        top = b.reduce(left, (1,), "maximum", keepdims=True)
        hits.append(b.compare(left, "GE", top))
        left = b.select(hits[-1], -1.0, left)
        tops.append(top)
    chosen = b.concatenate(tops, 1)
    total = b.reduce(chosen, (1,), keepdims=True)
    y = b.divide(chosen, total)

    def back(dy: Value) -> None:
        inner = b.reduce(b.multiply(dy, y), (1,), keepdims=True)
        d = b.multiply(b.subtract(dy, inner), y)  # of the logarithms of what was chosen
        spread = [b.multiply(b.convert(hit, float32), b.slice_dim(d, 1, i, i + 1)) for i, hit in enumerate(hits)]
        found = spread[0]
        for part in spread[1:]:
            found = b.add(found, part)
        of_logits = b.convert(found, tape.form)
        tape.send_back(weight, b.dot_general(of_logits, x, ((0,), (0,))))
        tape.send_back(x, b.dot_general(of_logits, weight, ((1,), (0,)), dt=tape.form))

    return tape.then(y, back)
