# SPDX-License-Identifier: Apache-2.0
"""Attention of training stages: by a kernel, written out with its scores in memory, with a bias by distance, and of
ranks that share a sequence.

Of q [B, H, T, D], k and v [B, G, S, D]. A softmax whose scores lie in memory has a derivative of its own, which reads
what the products read; so has attention in two pieces. again: the backward pass makes all of it once more from the
queries (selective recomputation, Korthikanti et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.grad.builder import GradientBuilder
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import DType, float32, int32

HIDDEN = -10000.0  # a score that causality hides, as Megatron-LM has it


def _maybe_again(b: GradientBuilder, make: Callable[[Value], Value], q: Value, again: bool) -> Value:
    return b.recomputed(make, q) if again else make(q)


def fused(b: GradientBuilder, q: Value, k: Value, v: Value, causal: bool, again: bool) -> Value:
    """By a kernel that keeps no scores."""
    return _maybe_again(b, lambda q: b.attention(q, k, v, causal=causal)[0], q, again)


def written(b: GradientBuilder, q: Value, k: Value, v: Value, causal: bool, again: bool, cap: float = 0.0) -> Value:
    """As it is without a kernel for attention: scores of all pairs in memory, hidden ones included. cap: scores s
    become cap tanh(s / cap) where it is not 0."""
    form, heads, scale = q.dtype, ((0, 1), (0, 1)), q.shape[-1] ** -0.5
    grouped = b.reshape(q, (*k.shape[:2], q.shape[1] // k.shape[1], *q.shape[2:]))  # [B, G, H / G, T, D]

    def make(grouped: Value) -> Value:
        scores = b.optimization_barrier(b.dot_general(grouped, k, ((4,), (3,)), heads, dt=form))
        if cap:
            bent = b.tanh(b.multiply(b.convert(scores, float32), scale / cap))
            scores = b.convert(b.multiply(bent, cap), form)
        (p,) = b.with_gradient(probabilities, [scores], back)
        return b.dot_general(p, v, ((4,), (2,)), heads, dt=form)

    def probabilities(scores: Value) -> tuple[Value, ...]:
        found = softmax(b, b.multiply(b.convert(scores, float32), 1.0 if cap else scale), causal)
        return (b.optimization_barrier(b.convert(found, form)),)

    def back(d: Value, _: Sequence[Value], results: Sequence[Value]) -> list[Value]:
        return [_of_scores(b, d, b.convert(results[0], float32), form, 1.0 if cap else scale)]

    return b.reshape(_maybe_again(b, make, grouped, again), (*q.shape[:3], v.shape[3]))


def relative(b: GradientBuilder, q: Value, k: Value, v: Value, bias: Value, causal: bool, again: bool) -> Value:
    """softmax(q k^T + bias) v, with a learned bias [H, T, S] by distance (T5, arXiv:1910.10683, section 2.1). Scores,
    and their gradients, are in memory: the bias has a gradient, which no kernel of attention gives (the public
    implementation writes them out as well)."""
    form, heads = q.dtype, ((0, 1), (0, 1))

    def make(q: Value) -> Value:
        scores = b.optimization_barrier(b.dot_general(q, k, ((3,), (3,)), heads, dt=form))
        p, _ = b.with_gradient(probabilities, [scores, bias], back)
        return b.dot_general(p, v, ((3,), (2,)), heads, dt=form)

    def probabilities(scores: Value, bias: Value) -> tuple[Value, ...]:
        wide = b.broadcast_in_dim(b.convert(bias, float32), scores.shape, (1, 2, 3))
        p = b.optimization_barrier(softmax(b, b.add(b.convert(scores, float32), wide), causal))
        return b.convert(p, form), p

    def back(d: Value, _: Sequence[Value], results: Sequence[Value]) -> list[Value]:
        of_scores = _of_scores(b, d, results[1], form)
        return [of_scores, b.reduce(b.convert(of_scores, float32), (0,))]

    return _maybe_again(b, make, q, again)


def _of_scores(b: GraphBuilder, d: Value, p: Value, form: DType, scale: float = 1.0) -> Value:
    """The gradient of scores from that of their softmax p, which is in float32; both are in memory."""
    wide = b.convert(b.optimization_barrier(d), float32)
    mean = b.reduce(b.multiply(wide, p), (-1,), keepdims=True)
    found = b.multiply(p, b.subtract(wide, mean))
    return b.optimization_barrier(b.convert(found if scale == 1.0 else b.multiply(found, scale), form))


def softmax(b: GraphBuilder, wide: Value, causal: bool) -> Value:
    """Softmax of scores [..., T, S] in float32."""
    n = len(wide.shape)
    if causal:
        pairs = wide.shape[-2:]
        sees = b.compare(b.iota(pairs, int32, 0), "GE", b.iota(pairs, int32, 1))
        wide = b.select(b.broadcast_in_dim(sees, wide.shape, (n - 2, n - 1)), wide, HIDDEN)
    grown = b.exponential(b.subtract(wide, b.reduce(wide, (-1,), "maximum", keepdims=True)))
    return b.divide(grown, b.reduce(grown, (-1,), keepdims=True))


def divided(
    b: GradientBuilder, q: Value, k: Value, v: Value, whole: tuple[Value, Value], causal: bool, again: bool
) -> Value:
    """Attention of ranks that share a sequence (context parallelism), q, k and v of this rank's two pieces.

    Each rank has the i-th piece of a sequence from its front and the i-th from its end, so that causality leaves all
    ranks the same work. `whole`: keys and values of all ranks, which are gathered before a layer's attention and once
    more on the way back; their gradients are summed and scattered (PyTorch's `context_parallel` with all-gather;
    Llama 3, arXiv:2407.21783, section 3.3.2). What is built here is the first rank's part; gathering is timed apart.
    """
    keys, values = whole
    if not causal:
        return fused(b, q, keys, values, False, again)
    half, before = q.shape[2] // 2, keys.shape[2] - q.shape[2] // 2
    front, end = ([b.slice_dim(x, 2, i * half, (i + 1) * half) for x in (q, k, v)] for i in range(2))
    first = fused(b, front[0], front[1], front[2], True, again)
    earlier = (b.slice_dim(x, 2, 0, before) for x in whole)
    second = in_two_pieces(b, end[0], tuple(earlier), (end[1], end[2]), again)
    return b.concatenate([first, second], 2)


def in_two_pieces(
    b: GradientBuilder, q: Value, earlier: tuple[Value, ...], own: tuple[Value, ...], again: bool
) -> Value:
    """Attention of the same queries to earlier keys and, causally, to their own, from that to each (Liu et al.,
    arXiv:2310.01889)."""

    def forward(q: Value, k: Value, v: Value, own_k: Value, own_v: Value) -> tuple[Value, ...]:
        x, m = b.attention(q, k, v, causal=False)
        y, n = b.attention(q, own_k, own_v, causal=True)
        top = b.maximum(m, n)
        sums = b.add(top, b.log(b.add(b.exponential(b.subtract(m, top)), b.exponential(b.subtract(n, top)))))
        weighed = (
            b.multiply(
                b.convert(out, float32), b.broadcast_in_dim(b.exponential(b.subtract(s, sums)), out.shape, (0, 1, 2))
            )
            for out, s in ((x, m), (y, n))
        )
        return b.convert(b.add(*weighed), q.dtype), sums

    def back(d: Value, inputs: Sequence[Value], results: Sequence[Value]) -> list[Value]:
        q, k, v, own_k, own_v = inputs
        out, sums = results
        one, *of_earlier = b.attention_backward(d, q, k, v, out, sums, causal=False)
        two, *of_own = b.attention_backward(d, q, own_k, own_v, out, sums, causal=True)
        return [b.add(one, two), *of_earlier, *of_own]

    return _maybe_again(b, lambda q: b.with_gradient(forward, [q, *earlier, *own], back)[0], q, again)
