# SPDX-License-Identifier: Apache-2.0
"""Attention backward: gradients against calculus in float64 and against autograd, and what they cost."""

from dataclasses import replace

import numpy as np
import pytest
from attention_problem import BF16_UNIT, CHIPS, Problem, builder, by_tokens, exact, heads_first, run, tensors, worst

from trnlab.isa import REGISTRY
from trnlab.isa.base import Engine
from trnlab.kernels.attention import attention_forward
from trnlab.kernels.attention_backward import attention_backward
from trnlab.kernels.attention_backward_segments import attention_backward_segments
from trnlab.kernels.attention_blocks_backward import attention_backward_blocks
from trnlab.kernels.view import full
from trnlab.numerics.dtypes import dtype
from trnlab.sim.functional import Machine
from trnlab.sim.timing import time_routine


def record(p, b, names):
    """Views [B, H, T, D] by name."""
    shapes = {"k": p.k_shape, "dk": p.k_shape, "v": p.v_shape, "dv": p.v_shape, "q": p.q_shape, "dq": p.q_shape}
    shapes = {n: shapes.get(n, p.out_shape) for n in names}
    return {n: by_tokens(b, n, shape, p.kind) for n, shape in shapes.items()}


def short_segments(*args, **options):
    attention_backward_segments(*args, longest=128, **options)


def backward_routine(p):
    """Parameters dout, q, k, v, out, lse, dq, dk, dv and, last, bias."""
    b = builder(p)
    inputs = record(p, b, ("dout", "q", "k", "v", "out"))
    lse = full(b.param("lse", (p.batch, p.heads, p.queries), "float32"))
    grads = record(p, b, ("dq", "dk", "dv"))
    bias = full(b.param("bias", p.bias, "float32")) if p.bias is not None else None
    free = b.sbuf_free
    forms = {"fused": attention_backward, "blocks": attention_backward_blocks, "segments": short_segments}
    forms[p.form](b, *inputs.values(), lse, *grads.values(), causal=p.causal, scale=p.scale, bias=bias)
    assert b.sbuf_free == free, "the call must release its tiles"
    return b.build()


def backward(p, dout, q, k, v, out, lse, bias=None):
    """dq, dk, dv as the kernel computes them, [B, T, H, D]."""
    grads = [np.zeros_like(x) for x in (q, k, v)]
    run(p, backward_routine(p), [dout, q, k, v, out, lse, *grads, *([bias] if bias is not None else [])])
    return grads


def shared(p, grad):
    """Sum what the query heads that share a key head contribute: [B, H, S, D] to [B, Hkv, S, D]."""
    b, h, s, d = grad.shape
    return grad.reshape(b, p.kv_heads or h, -1, s, d).sum(2)


def exact_gradients(p, dout, q, k, v, bias):
    """The formulas in float64, as [B, H or Hkv, ...]; with the bound of their bf16 errors."""
    weights, out, _ = exact(p, q, k, v, bias)
    q, k, v, dout = (heads_first(p, x) for x in (q, k, v, dout))
    dweights = dout @ v.swapaxes(-1, -2)
    centred = dweights - (dout * out).sum(-1, keepdims=True)
    ds = weights * centred * p.scale
    # dS: P is rounded, dS is rounded, and delta is made of a rounded output. dV: P is rounded.
    ds_error = weights * (2 * np.abs(centred) + (np.abs(dout) * np.abs(out)).sum(-1, keepdims=True)) * p.scale
    grads = ds @ k, shared(p, ds.swapaxes(-1, -2) @ q), shared(p, weights.swapaxes(-1, -2) @ dout)
    errors = (
        ds_error @ np.abs(k),
        shared(p, ds_error.swapaxes(-1, -2) @ np.abs(q)),
        shared(p, weights.swapaxes(-1, -2) @ np.abs(dout)),
    )
    return grads, [BF16_UNIT * (e + np.abs(g)) for e, g in zip(errors, grads)]


def case(p):
    """Inputs of the backward kernel in the problem's format, and the bias."""
    (q, k, v, dout), bias = tensors(p)
    _, out, lse = exact(p, q, k, v, bias)
    out = np.ascontiguousarray(out.transpose(0, 2, 1, 3)).astype(dtype(p.kind).numpy)
    return (dout, q, k, v, out, lse.astype(np.float32)), bias


FP32 = [
    *(Problem(queries=t, causal=c, depth=64) for t in (1, 77, 128, 130, 300) for c in (False, True)),
    *(Problem(depth=d, causal=True, queries=200, heads=3) for d in (16, 32, 64, 80, 96, 128)),
    Problem(queries=1024, depth=64, causal=True, chip="trn1"),
    Problem(heads=1, queries=100, keys=1300, depth=128),
    Problem(heads=2, queries=1100, depth=128, causal=True),
    Problem(queries=1, keys=300),
    Problem(queries=260, keys=1),
    Problem(batch=9, heads=1, queries=100, causal=True),
    Problem(batch=3, heads=5, queries=128, depth=64),
    Problem(heads=6, kv_heads=2, depth=64, causal=True),
    Problem(heads=8, kv_heads=1, queries=40),
    Problem(heads=4, kv_heads=2, queries=200, keys=700, depth=96),
    *(Problem(queries=t, keys=s, causal=True, kv_heads=1) for t, s in ((300, 200), (700, 513), (260, 1))),
]
BIASED = [
    Problem(batch=2, keys=200, bias=(2, 2, 130, 200)),
    Problem(batch=2, keys=200, bias=(1, 1, 1, 200)),
    Problem(causal=True, bias=(1, 2, 130, 130)),
    Problem(causal=True, queries=300, keys=200, bias=(1, 1, 300, 200)),
]
HIDING = [replace(p, hides=True) for p in BIASED]
WIDE = [Problem(queries=150, keys=140, depth=d, causal=c) for d in (130, 256) for c in (False, True)]
WIDE_FUSED = [*WIDE, Problem(heads=4, kv_heads=2, queries=300, depth=192, causal=True), replace(WIDE[2], chip="trn1")]
VALUES = [
    *(Problem(batch=3, heads=4, queries=49, depth=d, value_depth=e) for d, e in ((16, 32), (16, 64), (32, 64))),
    Problem(heads=4, kv_heads=2, queries=300, depth=192, value_depth=128, causal=True),
    Problem(queries=150, keys=140, depth=64, value_depth=256),
    Problem(queries=150, keys=140, depth=128, value_depth=1),
    Problem(batch=2, keys=200, depth=112, value_depth=48, bias=(1, 1, 130, 200), hides=True),
    Problem(batch=2, heads=5, queries=20, depth=8, value_depth=24, chip="trn1"),
    Problem(queries=129, depth=256, value_depth=255, causal=True, chip="trn1"),
]
WIDE_FORMS = [replace(p, form=form) for p in VALUES[2:] for form in ("blocks", "segments")]
SEGMENTS = [replace(p, form="segments") for p in (*FP32[3:10:3], *FP32[16:], *HIDING)]
BLOCKS = [replace(p, form="blocks") for p in (*FP32[::3], *BIASED, *HIDING, *WIDE)]


@pytest.mark.parametrize("p", [*FP32, *HIDING, *BLOCKS, *SEGMENTS, *WIDE_FUSED, *VALUES, *WIDE_FORMS], ids=str)
def test_fp32_gradients_are_right_to_five_digits(p):
    inputs, bias = case(p)
    got = backward(p, *inputs, bias)
    expected, _ = exact_gradients(p, *inputs[:4], bias)
    for grad, exact_grad, heads in zip(got, expected, (p.heads, *(p.kv_heads or p.heads,) * 2)):
        error = np.abs(heads_first(replace(p, heads=heads), grad) - exact_grad).max()
        largest = np.abs(exact_grad).max()
        if p.k_shape[1] == 1:  # dq and dk are zero, but for what cancels: terms of the size of dout . v
            largest = max(largest, p.depth**0.5)
        assert error <= 1e-5 * largest


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    "p",
    [
        Problem(heads=4, queries=128, causal=True),
        Problem(queries=300, depth=64),
        Problem(heads=1, queries=700, depth=128, causal=True),
        Problem(heads=4, kv_heads=2, queries=130, keys=200, depth=96),
        Problem(keys=200, bias=(1, 1, 130, 200), hides=True),
        Problem(keys=700, bias=(1, 1, 130, 700), form="blocks"),
        Problem(heads=4, kv_heads=2, queries=300, depth=128, causal=True, form="segments"),
        Problem(heads=4, queries=300, depth=192, value_depth=128, causal=True),
        Problem(batch=3, heads=4, queries=49, depth=16, value_depth=64),
    ],
    ids=str,
)
def test_bf16_gradients_are_as_right_as_the_format_allows(p, chip):
    """Every rounding to bf16 is off by at most u = 2^-8 of what is rounded: P, dS, the output in delta, the result.
    The bound adds up what these can do, element by element; a tenth more for their products.
    """
    p = replace(p, kind="bfloat16", chip=chip)
    inputs, bias = case(p)
    got = backward(p, *inputs, bias)
    expected, allowed = exact_gradients(p, *inputs[:4], bias)
    for grad, exact_grad, bound, heads in zip(got, expected, allowed, (p.heads, *(p.kv_heads or p.heads,) * 2)):
        error = np.abs(heads_first(replace(p, heads=heads), grad) - exact_grad)
        assert (error <= 1.1 * bound + 1e-6 * np.abs(exact_grad).max()).all()


@pytest.mark.torch
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_forward_and_backward_agree_with_autograd(kv_heads):
    """The kernels' own out and lse go into the backward; float64 autograd of PyTorch's attention is the judge."""
    torch = pytest.importorskip("torch")
    p = Problem(batch=2, heads=4, kv_heads=kv_heads, queries=200, depth=64, causal=True)
    (q, k, v, dout), _ = tensors(p)
    b = builder(p)
    views = record(p, b, ("q", "k", "v", "out"))
    lse_ap = b.param("lse", (p.batch, p.heads, p.queries), "float32")
    attention_forward(b, *views.values(), full(lse_ap), causal=True, scale=p.scale)
    out, lse = np.zeros_like(q), np.zeros((p.batch, p.heads, p.queries), np.float32)
    run(p, b.build(), [q, k, v, out, lse])
    got = backward(p, dout, q, k, v, out, lse)
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (q, k, v)]
    result = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in leaves), is_causal=True, enable_gqa=True
    )
    result.backward(torch.tensor(dout, dtype=torch.float64).transpose(1, 2))
    assert worst(heads_first(p, out), result.detach().numpy()) <= 1e-5
    for grad, leaf in zip(got, leaves):
        assert worst(grad, leaf.grad.numpy()) <= 1e-5


@pytest.mark.parametrize("sizes", [(64, 64), (192, 128), (16, 64)])
def test_the_order_of_the_timeline_gives_the_same_bits(sizes):
    """Dependencies hold all that program order implies: executed as the clock has it, nothing changes."""
    p = Problem(batch=3, heads=4, kv_heads=2, queries=300, causal=True, kind="bfloat16", chip="trn1")
    p = replace(p, depth=sizes[0], value_depth=sizes[1])
    inputs, _ = case(p)
    expected = backward(p, *inputs)
    routine = backward_routine(p)
    order = np.argsort(time_routine(routine, CHIPS["trn1"]).start, kind="stable")
    assert (np.diff(order) < 0).any()
    got = [np.zeros_like(x) for x in expected]
    Machine(CHIPS["trn1"]).call(routine, [*inputs, *got], order=order)
    for x, y in zip(got, expected):
        assert (x.view(np.uint16) == y.view(np.uint16)).all()


def test_little_sbuf_changes_no_bit():
    """With room for one group of heads at a time nothing is loaded ahead; the arithmetic is the same."""
    p = Problem(batch=2, heads=2, queries=640, depth=128, causal=True, kind="bfloat16", chip="trn1")
    inputs, _ = case(p)
    expected = backward(p, *inputs)
    b = builder(p)
    b.sbuf_limit = 48 * 1024
    views = record(p, b, ("dout", "q", "k", "v", "out"))
    lse = full(b.param("lse", (p.batch, p.heads, p.queries), "float32"))
    grads = record(p, b, ("dq", "dk", "dv"))
    attention_backward(b, *views.values(), lse, *grads.values(), causal=True, scale=p.scale)
    got = [np.zeros_like(x) for x in expected]
    run(p, b.build(), [*inputs, *got])
    for x, y in zip(got, expected):
        assert (x.view(np.uint16) == y.view(np.uint16)).all()


def test_only_inputs_and_results_pass_through_hbm():
    p = Problem(batch=2, heads=4, queries=600, depth=64, kind="bfloat16")
    routine = backward_routine(p)
    copies = routine.opcode == REGISTRY["dma_copy"].opcode
    size = p.batch * p.heads * p.queries
    assert sum(routine.works[i].nbytes for i in routine.work[copies]) == 8 * size * p.depth * 2 + size * 4
    assert routine.scratch_bytes == 0


@pytest.mark.parametrize(("chip", "busy"), [("trn1", 0.45), ("trn2", 0.65)])
def test_the_pe_array_is_kept_busy_by_one_head(chip, busy):
    """4096 queries and keys, D = 128, bf16: the share of the time, from the first instruction on, of matmuls."""
    p = Problem(heads=1, queries=4096, depth=128, kind="bfloat16", chip=chip)
    routine = backward_routine(p)
    timeline = time_routine(routine, CHIPS[chip])
    matmuls = routine.opcode == REGISTRY["nc_matmul"].opcode
    assert (timeline.engine[matmuls] == Engine.TENSOR).all()
    active = (timeline.end - timeline.start)[matmuls].sum()
    assert active >= busy * (timeline.done.max() - timeline.startup)


def test_long_sequences_take_the_time_of_their_pairs():
    """8192 causal tokens of one head are not much more than twice two of 4096 and one pair that sees all of them."""
    times = {}
    for queries, form in ((4096, attention_backward), (8192, attention_backward_segments)):
        p = Problem(heads=1, queries=queries, depth=128, causal=True, kind="bfloat16", chip="trn1")
        b = builder(p)
        views = record(p, b, ("dout", "q", "k", "v", "out"))
        lse = full(b.param("lse", (1, 1, queries), "float32"))
        grads = record(p, b, ("dq", "dk", "dv"))
        form(b, *views.values(), lse, *grads.values(), causal=True, scale=p.scale)
        times[queries] = time_routine(b.build(), CHIPS["trn1"]).total
    assert times[8192] <= 6 * times[4096]
