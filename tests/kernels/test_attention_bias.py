# SPDX-License-Identifier: Apache-2.0
"""Attention with a bias of any values: forward and backward against float64, and what it costs."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attention_problem import BF16_UNIT, CHIPS, Problem, builder, by_tokens, exact, heads_first, run, tensors, worst
from biased_attention import case, shifted
from test_attention_backward import exact_gradients

from trnlab.kernels.attention import attention_forward
from trnlab.kernels.attention_backward import attention_backward
from trnlab.kernels.attention_backward_segments import attention_backward_segments
from trnlab.kernels.attention_segments import attention_forward_segments
from trnlab.kernels.view import full
from trnlab.numerics.dtypes import dtype
from trnlab.sim.checks import Scene, check_routine
from trnlab.sim.functional import Machine
from trnlab.sim.timing import time_routine

KINDS = ("plain", "large", "hidden", "lowest")


def short_segments(*args, **options):
    attention_forward_segments(*args, longest=128, **options)


def short_segments_backward(*args, **options):
    attention_backward_segments(*args, longest=128, **options)


def forward_routine(p):
    b = builder(p)
    q, k, v = (by_tokens(b, n, s, p.kind) for n, s in (("q", p.q_shape), ("k", p.k_shape), ("v", p.v_shape)))
    batch, heads, queries, keys = p.bias
    bias = full(b.param("bias", (batch, heads, keys, queries), "float32"))
    out = by_tokens(b, "out", p.out_shape, p.kind)
    lse = full(b.param("lse", (p.batch, p.heads, p.queries), "float32"))
    free = b.sbuf_free
    beside = partial(attention_forward, side_by_side=True)
    kernel = {"fused": attention_forward, "segments": short_segments, "beside": beside}[p.form]
    kernel(b, q, k, v, out, lse, causal=p.causal, scale=p.scale, bias=bias, shifted=True)
    assert b.sbuf_free == free, "the call must release its tiles"
    return b.build()


def forward_inputs(p, q, k, v, bias):
    out, lse = np.zeros(p.out_shape, q.dtype), np.zeros((p.batch, p.heads, p.queries), np.float32)
    return [q, k, v, np.ascontiguousarray(bias.swapaxes(2, 3)), out, lse]


def forward(p, q, k, v, bias):
    """out [B, T, H, D] and lse [B, H, T] as the kernel computes them."""
    arrays = forward_inputs(p, q, k, v, bias)
    run(p, forward_routine(p), arrays)
    return arrays[-2:]


SHAPES = [
    Problem(batch=2, heads=4, queries=130, keys=200, depth=32, bias=(1, 4, 130, 200)),
    Problem(batch=2, heads=2, queries=300, depth=64, causal=True, bias=(1, 2, 300, 300)),
    Problem(heads=4, kv_heads=2, queries=140, keys=130, depth=128, causal=True, bias=(1, 4, 140, 130)),
    Problem(batch=3, heads=2, queries=64, depth=32, bias=(3, 1, 64, 64)),
    Problem(batch=5, heads=3, queries=49, depth=32, bias=(1, 3, 49, 49)),
    Problem(batch=2, heads=8, kv_heads=1, queries=40, depth=64, bias=(2, 8, 40, 40)),
    Problem(batch=2, heads=3, queries=150, keys=700, depth=64, bias=(1, 1, 150, 700)),
    Problem(batch=2, heads=4, queries=200, depth=64, bias=(2, 4, 1, 200)),
    Problem(batch=2, heads=4, queries=200, depth=64, causal=True, bias=(1, 4, 1, 200)),
    Problem(batch=2, heads=2, queries=600, depth=80, bias=(1, 2, 600, 600)),
    Problem(batch=4, heads=4, queries=49, depth=16, value_depth=64, bias=(1, 4, 49, 49)),
    Problem(batch=2, heads=2, queries=130, keys=200, depth=64, value_depth=48, bias=(2, 2, 1, 200)),
]
SEGMENTS = [replace(p, form="segments") for p in (SHAPES[1], SHAPES[2], SHAPES[6], SHAPES[8])]


def hostile_kinds(p):
    """Where causality hides keys that all queries' bias is of, that has its largest among them."""
    return KINDS[:1] if p.causal and p.bias[2] == 1 else KINDS


BESIDE = [
    Problem(batch=4, heads=6, queries=49, depth=16, value_depth=64, bias=(1, 6, 49, 49), form="beside"),
    Problem(batch=2, heads=3, queries=300, depth=32, causal=True, bias=(1, 3, 300, 300), form="beside"),
    Problem(batch=3, heads=5, queries=98, depth=32, bias=(3, 5, 98, 98), form="beside"),
    Problem(batch=2, heads=4, queries=200, depth=8, bias=(2, 4, 1, 200), form="beside"),
]
CASES = [(p, kind) for p in (*SHAPES, *SEGMENTS) for kind in hostile_kinds(p)]
FORWARD = [*CASES, *((p, kind) for p in BESIDE for kind in hostile_kinds(p))]


@pytest.mark.parametrize(("p", "kind"), FORWARD, ids=str)
def test_fp32_is_right_to_five_digits(p, kind):
    (q, k, v, _), bias = case(p, kind)
    out, lse = forward(p, q, k, v, bias)
    _, expected, expected_lse = exact(p, q, k, v, bias)
    assert worst(heads_first(p, out), expected) <= 1e-5
    alive = heads_first(p, out).any(-1)
    assert (alive == (np.abs(expected).max(-1) > 0)).all()
    assert worst(lse[alive], expected_lse[alive]) <= 1e-5
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("p", "kind"), FORWARD, ids=str)
def test_bf16_is_as_right_as_the_format_allows(p, kind, chip):
    """Against exact attention of the same rounded inputs and the bias in float32: what is said in test_attention."""
    p = replace(p, kind="bfloat16", chip=chip)
    (q, k, v, _), bias = case(p, kind)
    out, lse = forward(p, q, k, v, bias)
    _, expected, expected_lse = exact(p, q, k, v, bias)
    allowed = BF16_UNIT * (2 * np.abs(v.astype(np.float64)).max() + np.abs(expected)) * 1.01
    assert (np.abs(heads_first(p, out) - expected) <= allowed).all()
    alive = heads_first(p, out).any(-1)
    assert (alive == (np.abs(expected).max(-1) > 0)).all()
    assert np.abs(lse - expected_lse)[alive].max() <= 1.01 * BF16_UNIT + 1e-5 * np.abs(expected_lse).max()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("p", [SHAPES[0], SHAPES[1], SHAPES[2]], ids=str)
def test_a_bias_that_makes_up_for_scores_of_thousands_loses_nothing(p, chip):
    """Beside bf16 products the bias is added in fp32: sums of +-3000 are off by 2^-11 at most, far less than P is
    rounded by."""
    p = replace(p, kind="bfloat16", chip=chip, spread=1000.0)
    (q, k, v, dout), noise = tensors(replace(p, bias=(p.batch, p.heads, *p.bias[2:])))
    wide = [heads_first(p, x) for x in (q, k)]
    scores = p.scale * wide[0] @ wide[1].swapaxes(-1, -2)
    assert np.abs(scores).max() > 3000
    bias = shifted(p, (noise - scores).astype(np.float32))
    p = replace(p, bias=bias.shape)
    out, lse = forward(p, q, k, v, bias)
    _, expected, _ = exact(p, q, k, v, bias)
    allowed = BF16_UNIT * (2 * np.abs(v.astype(np.float64)).max() + np.abs(expected)) * 1.01 + 2e-3
    assert (np.abs(heads_first(p, out) - expected) <= allowed).all()
    inputs = (dout, q, k, v, out, lse)
    of_bias, error = exact_of_bias(p, *inputs[:4], bias)
    *_, dbias = backward(p, inputs, bias, False)
    assert (np.abs(dbias - of_bias) <= 1.5 * error + 2e-3 * np.abs(of_bias).max()).all()


@pytest.mark.parametrize("p", [SHAPES[1], SHAPES[4], SHAPES[8], *BESIDE], ids=str)
def test_the_order_of_the_timeline_gives_the_same_bits(p):
    p = replace(p, kind="bfloat16", chip="trn1")
    (q, k, v, _), bias = case(p, "plain")
    expected = forward(p, q, k, v, bias)
    routine, arrays = forward_routine(p), forward_inputs(p, q, k, v, bias)
    order = np.argsort(time_routine(routine, CHIPS["trn1"]).start, kind="stable")
    assert (np.diff(order) < 0).any()
    Machine(CHIPS["trn1"]).call(routine, arrays, order=order)
    assert (arrays[-2].view(np.uint16) == expected[0].view(np.uint16)).all()
    assert (arrays[-1] == expected[1]).all()


# -- backward --------------------------------------------------------------------------------------------------------


def backward_routine(p, summed):
    """Parameters dout, q, k, v, out, lse, dq, dk, dv, bias and dbias."""
    b = builder(p)
    shapes = {"dout": p.out_shape, "q": p.q_shape, "k": p.k_shape, "v": p.v_shape, "out": p.out_shape}
    inputs = [by_tokens(b, n, shape, p.kind) for n, shape in shapes.items()]
    lse = full(b.param("lse", (p.batch, p.heads, p.queries), "float32"))
    grads = [by_tokens(b, n, s, p.kind) for n, s in (("dq", p.q_shape), ("dk", p.k_shape), ("dv", p.v_shape))]
    bias = full(b.param("bias", p.bias, "float32"))
    dbias = full(b.param("dbias", (1 if summed else p.batch, p.heads, p.queries, p.k_shape[1]), "float32"))
    free = b.sbuf_free
    kernel = attention_backward if p.form == "fused" else short_segments_backward
    options = {"causal": p.causal, "scale": p.scale, "bias": bias, "shifted": True, "dbias": dbias}
    kernel(b, *inputs, lse, *grads, **options)
    assert b.sbuf_free == free, "the call must release its tiles"
    return b.build()


def backward_case(p, kind):
    """dout, q, k, v, out and lse, and the shifted bias."""
    (q, k, v, dout), bias = case(p, kind)
    _, out, lse = exact(p, q, k, v, bias)
    out = np.ascontiguousarray(out.transpose(0, 2, 1, 3)).astype(dtype(p.kind).numpy)
    return (dout, q, k, v, out, lse.astype(np.float32)), bias


def backward_inputs(p, inputs, bias, summed):
    """All parameters; results hold NaN, which whatever is not written keeps."""
    grads = [np.full_like(x, np.nan) for x in inputs[1:4]]
    dbias = np.full((1 if summed else p.batch, p.heads, p.queries, p.k_shape[1]), np.nan, np.float32)
    return [*inputs, *grads, bias, dbias]


def backward(p, inputs, bias, summed):
    """dq, dk, dv [B, T, H, D] and dbias as the kernel computes them."""
    arrays = backward_inputs(p, inputs, bias, summed)
    run(p, backward_routine(p, summed), arrays)
    return *arrays[6:9], arrays[-1]


def exact_of_bias(p, dout, q, k, v, bias):
    """The gradient of the scores before their scale, [B, H, T, S], and the bound of its bf16 errors."""
    weights, out, _ = exact(p, q, k, v, bias)
    v, dout = (heads_first(p, x) for x in (v, dout))
    centred = dout @ v.swapaxes(-1, -2) - (dout * out).sum(-1, keepdims=True)
    error = weights * (3 * np.abs(centred) + (np.abs(dout) * np.abs(out)).sum(-1, keepdims=True))
    return weights * centred, BF16_UNIT * error


def each_and_sum(p, exact_grad, error):
    """The same for one element of the batch each, and of the sum, as `summed` says."""
    return {False: (exact_grad, error), True: (exact_grad.sum(0, keepdims=True), error.sum(0, keepdims=True))}


@pytest.mark.parametrize(("p", "kind"), CASES, ids=str)
def test_fp32_gradients_are_right_to_five_digits(p, kind):
    inputs, bias = backward_case(p, kind)
    expected, _ = exact_gradients(p, *inputs[:4], bias)

    def largest(exact_grad):
        """Where a bias leaves a query one key, gradients are zero, but for what cancels: terms of the size of dout .
        v."""
        return max(np.abs(exact_grad).max(), p.depth**0.5 if kind == "large" else 0)

    for summed, (of_bias, _) in each_and_sum(p, *exact_of_bias(p, *inputs[:4], bias)).items():
        *grads, dbias = backward(p, inputs, bias, summed)
        for grad, exact_grad, heads in zip(grads, expected, (p.heads, *(p.kv_heads or p.heads,) * 2)):
            error = np.abs(heads_first(replace(p, heads=heads), grad) - exact_grad).max()
            assert error <= 1e-5 * largest(exact_grad)
        assert np.abs(dbias - of_bias).max() <= 1e-5 * largest(of_bias)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("p", "kind"), CASES[::2], ids=str)
def test_bf16_gradients_are_as_right_as_the_format_allows(p, kind, chip):
    """What is said in test_attention_backward; those of the bias are of dS, rounded once more."""
    p = replace(p, kind="bfloat16", chip=chip)
    inputs, bias = backward_case(p, kind)
    expected, errors = exact_gradients(p, *inputs[:4], bias)
    for summed, (of_bias, error_of_bias) in each_and_sum(p, *exact_of_bias(p, *inputs[:4], bias)).items():
        *grads, dbias = backward(p, inputs, bias, summed)
        for grad, exact_grad, error, heads in zip(grads, expected, errors, (p.heads, *(p.kv_heads or p.heads,) * 2)):
            found = heads_first(replace(p, heads=heads), grad)
            assert (np.abs(found - exact_grad) <= 1.01 * error + 1e-5 * np.abs(exact_grad).max()).all()
        assert (np.abs(dbias - of_bias) <= 1.01 * error_of_bias + 1e-5 * np.abs(of_bias).max()).all()


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("p", [SHAPES[1], SHAPES[4], SHAPES[8]], ids=str)
def test_gradients_in_the_order_of_the_timeline_are_the_same_bits(p, summed):
    p = replace(p, kind="bfloat16", chip="trn1")
    inputs, bias = backward_case(p, "plain")
    expected = backward(p, inputs, bias, summed)
    routine, arrays = backward_routine(p, summed), backward_inputs(p, inputs, bias, summed)
    order = np.argsort(time_routine(routine, CHIPS["trn1"]).start, kind="stable")
    assert (np.diff(order) < 0).any()
    Machine(CHIPS["trn1"]).call(routine, arrays, order=order)
    for got, wanted in zip((*arrays[6:9], arrays[-1]), expected):
        assert got.tobytes() == wanted.tobytes()


def findings(routine, filled):
    """What the checks find where so many of the first parameters have contents."""
    scene = Scene(filled=frozenset(routine.params[:filled]), observed=frozenset(routine.params))
    return check_routine(routine, CHIPS["trn1"], scene)


@pytest.mark.parametrize("p", [SHAPES[1], SHAPES[4], SHAPES[8]], ids=str)
def test_the_checks_find_nothing(p):
    """But for inputs that are not there."""
    p = replace(p, kind="bfloat16", chip="trn1")
    forward, options = forward_routine(p), {"summed": p.bias[0] == 1}
    assert not findings(forward, 4)
    assert findings(forward, 3)
    backward = backward_routine(p, **options)
    inputs = [*backward.params[:6], backward.params[9]]
    scene = Scene(filled=frozenset(inputs), observed=frozenset(backward.params))
    assert not check_routine(backward, CHIPS["trn1"], scene)
