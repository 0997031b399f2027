# SPDX-License-Identifier: Apache-2.0
"""Attention of ranks that share a sequence (context parallelism).

Each rank has two pieces of a sequence, the i-th from its front and the i-th from its end, so that causality leaves
all ranks the same work. Keys and values of all ranks are gathered before a layer's attention, gathered once more on
the way back, and their gradients are summed and scattered (PyTorch's `context_parallel` with all-gather; Llama 3,
arXiv:2407.21783, section 3.3.2). What is built here is the first rank's part; gathering is timed apart.
"""

from __future__ import annotations

from trnlab.fleet.layers.tape import Tape
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32

Piece = tuple[Value, Value, Value, bool]  # queries, keys, values, whether causal


def attention(tape: Tape, q: Value, k: Value, v: Value, count: int, causal: bool, again: bool = False) -> Value:
    """q, k, v [B, N, S / count, D] of this rank's two pieces -> [B, N, S / count, D]; keys of other ranks are lent.
    again: the backward pass makes it once more."""
    whole = (*k.shape[:2], k.shape[2] * count, k.shape[3])
    keys, values = tape.lent(whole), tape.lent(whole)
    if not causal:
        return tape.attention(q, keys, values, False, again)
    half, before = q.shape[2] // 2, whole[2] - q.shape[2] // 2
    front, end = ([tape.cut(x, 2, i * half, (i + 1) * half) for x in (q, k, v)] for i in range(2))
    first = tape.attention(front[0], front[1], front[2], True, again)
    earlier = (tape.cut(keys, 2, 0, before), tape.cut(values, 2, 0, before))
    second = _merged(tape, (end[0], *earlier, False), (end[0], end[1], end[2], True), again)
    return tape.beside(first, second, 2)


def _merged(tape: Tape, one: Piece, two: Piece, again: bool) -> Value:
    """Attention of the same queries to the keys of both pieces, from that to each (Liu et al., arXiv:2310.01889)."""
    b = tape.b
    out, sums = _sum_of_pieces(tape, one, two)

    def back(d: Value) -> None:
        made = (out, sums)
        if again:
            q = b.optimization_barrier(one[0])
            made = _sum_of_pieces(tape, (q, *one[1:]), (q, *two[1:]))
        for q, k, v, causal in (one, two):
            for x, gradient in zip((q, k, v), b.attention_backward(d, q, k, v, *made, causal=causal)):
                tape.send_back(x, gradient)

    return tape.then(out, back)


def _sum_of_pieces(tape: Tape, one: Piece, two: Piece) -> tuple[Value, Value]:
    b = tape.b
    (x, m), (y, n) = (b.attention(q, k, v, causal=causal) for q, k, v, causal in (one, two))
    top = b.maximum(m, n)
    sums = b.add(top, b.log(b.add(b.exponential(b.subtract(m, top)), b.exponential(b.subtract(n, top)))))
    parts = (
        b.multiply(
            b.convert(out, float32), b.broadcast_in_dim(b.exponential(b.subtract(s, sums)), out.shape, (0, 1, 2))
        )
        for out, s in ((x, m), (y, n))
    )
    return b.convert(b.add(*parts), tape.form), sums
