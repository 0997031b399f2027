# SPDX-License-Identifier: Apache-2.0
"""Attention with a learned bias by distance (T5, arXiv:1910.10683, section 2.1), and convolutions of frames of sound.

Scores, and their gradients, are in memory: the bias has a gradient, which no kernel of attention gives (the public
implementation writes them out as well).
"""

from __future__ import annotations

from trnlab.fleet.layers.shares import Rank
from trnlab.fleet.layers.tape import Tape
from trnlab.fleet.models.encoder_decoder import Relative
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32, int32


def bias_of(layers: Rank, a: Relative, length: int) -> Value:
    """[N, T, T] of a rank's heads: a row of the table for each pair of places, by the bucket of their distance."""
    tape, b = layers.tape, layers.tape.b
    rows = tape.embedded(tape.weight("distances", a.buckets, layers.part(a.heads)), tape.given((length,) * 2, int32))
    turned = b.transpose(rows, (2, 0, 1))
    return tape.then(turned, lambda d: tape.send_back(rows, b.transpose(d, (1, 2, 0))))


def attention(tape: Tape, q: Value, k: Value, v: Value, bias: Value, causal: bool, again: bool) -> Value:
    """softmax(q k^T + bias) v of q, k and v [B, N, T, D]. again: see `Tape.written_attention`."""
    b, heads = tape.b, ((0, 1), (0, 1))
    kept = _probabilities(tape, q, k, bias, causal)
    out = b.dot_general(kept[1], v, ((3,), (2,)), heads, dt=tape.form)

    def back(d: Value) -> None:
        weight, p = _probabilities(tape, b.optimization_barrier(q), k, bias, causal) if again else kept
        grown = b.optimization_barrier(b.dot_general(d, v, ((3,), (3,)), heads, dt=tape.form))
        wide = b.convert(grown, float32)
        mean = b.reduce(b.multiply(wide, weight), (-1,), keepdims=True)
        ds = b.optimization_barrier(b.convert(b.multiply(weight, b.subtract(wide, mean)), tape.form))
        tape.send_back(bias, b.convert(b.reduce(b.convert(ds, float32), (0,)), tape.form))
        tape.send_back(v, b.dot_general(p, d, ((2,), (2,)), heads, dt=tape.form))
        tape.send_back(q, b.dot_general(ds, k, ((3,), (2,)), heads, dt=tape.form))
        tape.send_back(k, b.dot_general(ds, q, ((2,), (2,)), heads, dt=tape.form))

    return tape.then(out, back)


def _probabilities(tape: Tape, q: Value, k: Value, bias: Value, causal: bool) -> tuple[Value, Value]:
    """In float32, which the way back of the softmax reads, and as the products read them."""
    b = tape.b
    scores = b.optimization_barrier(b.dot_general(q, k, ((3,), (3,)), ((0, 1), (0, 1)), dt=tape.form))
    wide = b.add(b.convert(scores, float32), b.broadcast_in_dim(b.convert(bias, float32), scores.shape, (1, 2, 3)))
    p = b.optimization_barrier(tape.softmax(wide, causal))
    return p, b.convert(p, tape.form)


def convolved(layers: Rank, x: Value, hidden: int) -> Value:
    """Frames [B, 2 S, mels] through both convolutions of Whisper's encoder -> [B, S, hidden]: products of what their
    taps look at. A frame at the edge of what a rank has is taken for one of the sequence."""
    tape, (batch, frames, _) = layers.tape, x.shape
    looked = tape.beside(tape.beside(tape.moved(x, 1), x, 2), tape.moved(x, -1), 2)
    y = tape.activation(layers.linear("conv_1", looked, hidden, bias=True), "gelu")
    pairs = tape.reshaped(y, (batch, frames // 2, 2 * hidden))
    before = tape.moved(tape.cut(pairs, 2, hidden, 2 * hidden), 1)
    y = tape.add(layers.linear("conv_2", pairs, hidden, bias=True), layers.linear("conv_2_before", before, hidden))
    return tape.activation(y, "gelu")
