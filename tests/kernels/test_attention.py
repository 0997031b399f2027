# SPDX-License-Identifier: Apache-2.0
"""Attention forward: the right numbers for every shape and option, no scores in HBM, engines kept busy."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attention_problem import BF16_UNIT, CHIPS, Problem, builder, by_tokens, exact, heads_first, run, tensors, worst

from trnlab.errors import CapacityError
from trnlab.isa import REGISTRY
from trnlab.isa.base import Engine
from trnlab.kernels.attention import attention_forward
from trnlab.kernels.attention_blocks import attention_forward_blocks
from trnlab.kernels.attention_segments import attention_forward_segments
from trnlab.kernels.view import full
from trnlab.program import Builder
from trnlab.sim.checks import Scene, check_routine
from trnlab.sim.functional import Machine
from trnlab.sim.timing import time_routine


def short_segments(*args, **options):
    attention_forward_segments(*args, longest=128, **options)


def forward_routine(p):
    b = builder(p)
    q, k, v = (by_tokens(b, n, s, p.kind) for n, s in (("q", p.q_shape), ("k", p.k_shape), ("v", p.v_shape)))
    bias = full(b.param("bias", p.bias, "float32")) if p.bias is not None else None
    out = by_tokens(b, "out", p.out_shape, p.kind)
    lse = full(b.param("lse", (p.batch, p.heads, p.queries), "float32"))
    free = b.sbuf_free
    forms = {"fused": attention_forward, "blocks": attention_forward_blocks, "segments": short_segments}
    forms["beside"] = partial(attention_forward, side_by_side=True)
    forms[p.form](b, q, k, v, out, lse, causal=p.causal, scale=p.scale, bias=bias)
    assert b.sbuf_free == free, "the call must release its tiles"
    return b.build()


def forward(p, q, k, v, bias=None):
    """out [B, T, H, D] and lse [B, H, T] as the kernel computes them."""
    out, lse = np.zeros(p.out_shape, q.dtype), np.zeros((p.batch, p.heads, p.queries), np.float32)
    run(p, forward_routine(p), [q, k, v, *([bias] if bias is not None else []), out, lse])
    return out, lse


FP32 = [
    *(Problem(queries=t, causal=c, depth=64) for t in (1, 77, 128, 130, 300) for c in (False, True)),
    *(Problem(depth=d, causal=True, queries=200) for d in (16, 32, 64, 80, 96, 128)),
    Problem(queries=1024, depth=64, causal=True, chip="trn1"),
    Problem(heads=1, queries=600, depth=128),
    Problem(heads=1, queries=100, keys=1300, depth=128),
    Problem(queries=1, keys=300),
    Problem(queries=260, keys=1),
    Problem(batch=3, heads=4, queries=100, causal=True),
    Problem(batch=2, heads=1, queries=128, depth=128),
    Problem(heads=6, kv_heads=2, depth=64, causal=True),
    Problem(heads=8, kv_heads=1, queries=40),
    Problem(heads=4, kv_heads=2, queries=600, keys=300, depth=16),
]
BIASES = ((2, 2, 130, 200), (1, 1, 130, 200), (2, 1, 1, 200), (1, 2, 1, 200))
BIASED = [
    *(Problem(batch=2, keys=200, bias=shape) for shape in BIASES),
    Problem(causal=True, bias=(1, 2, 130, 130)),
    Problem(causal=True, queries=300, keys=200, bias=(1, 1, 300, 200)),
]
UNEVEN = [Problem(queries=t, keys=s, causal=True, kv_heads=1) for t, s in ((300, 200), (700, 513), (260, 1))]
HIDING = [replace(p, hides=True) for p in BIASED]
WIDE = [Problem(queries=150, keys=140, depth=d, causal=c) for d in (130, 256) for c in (False, True)]
WIDE_FUSED = [*WIDE, Problem(heads=4, kv_heads=2, queries=300, depth=192, causal=True), replace(WIDE[2], chip="trn1")]
# Values wider or narrower than queries and keys: LeViT, latent attention, what fills a bank or leaves no quadrant.
VALUES = [
    *(Problem(batch=3, heads=4, queries=49, depth=16, value_depth=e) for e in (32, 64)),
    Problem(heads=4, kv_heads=2, queries=300, depth=192, value_depth=128, causal=True),
    Problem(queries=150, keys=140, depth=64, value_depth=256),
    Problem(queries=150, keys=140, depth=128, value_depth=1),
    Problem(batch=2, keys=200, depth=112, value_depth=48, bias=(1, 1, 130, 200), hides=True),
    Problem(batch=2, heads=5, queries=20, depth=8, value_depth=24, chip="trn1"),
    Problem(queries=129, depth=256, value_depth=255, causal=True, chip="trn1"),
]
# Narrow heads beside each other: a few of them, packs that are not full, several blocks, and short ones of any width.
BESIDE = [
    replace(p, form="beside", chip=chip)
    for chip in CHIPS
    for p in (
        Problem(heads=5, queries=42, depth=8),
        Problem(batch=2, heads=32, queries=42, depth=8),
        Problem(heads=6, queries=200, depth=16),
        Problem(batch=3, heads=3, queries=130, keys=300, depth=32),
        Problem(heads=5, queries=150, depth=48, causal=True),
        Problem(heads=3, queries=400, depth=63, causal=True),
        Problem(batch=2, heads=9, queries=49, depth=64),
        Problem(heads=4, queries=300, keys=200, bias=(1, 1, 300, 200), hides=True),
        Problem(batch=2, heads=4, queries=40, keys=20, bias=(2, 1, 40, 20), hides=True),
        Problem(batch=2, heads=4, queries=40, bias=(2, 4, 40, 40), hides=True),
        Problem(heads=1, queries=600, depth=31, value_depth=128),
        Problem(batch=3, heads=4, queries=49, depth=16, value_depth=64),
        Problem(heads=8, kv_heads=2, queries=40, depth=8),
        Problem(heads=2, queries=1, keys=3, depth=1),
    )
]
WIDE_FORMS = [replace(p, form=form) for p in VALUES[1:] for form in ("blocks", "segments")]
BLOCKS = [replace(p, form="blocks") for p in (*FP32[::3], *BIASED, *HIDING, *UNEVEN, *WIDE)]


SEGMENTS = [replace(p, form="segments") for p in (*FP32[1:12:3], *FP32[13:18], *HIDING, *UNEVEN)]


@pytest.mark.parametrize(
    "p", [*FP32, *HIDING, *UNEVEN, *BLOCKS, *SEGMENTS, *WIDE_FUSED, *VALUES, *WIDE_FORMS, *BESIDE], ids=str
)
def test_fp32_is_right_to_five_digits(p):
    (q, k, v, _), bias = tensors(p)
    out, lse = forward(p, q, k, v, bias)
    _, expected, expected_lse = exact(p, q, k, v, bias)
    assert worst(heads_first(p, out), expected) <= 1e-5
    seen = heads_first(p, out).any(-1) if p.hides else np.full(lse.shape, True)
    assert seen.mean() >= 0.5
    assert worst(lse[seen], expected_lse[seen]) <= 1e-5
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    "p",
    [
        Problem(heads=4, queries=128, causal=True),
        Problem(queries=300, depth=64),
        Problem(heads=1, queries=520, depth=128, causal=True),
        Problem(heads=4, kv_heads=2, queries=130, keys=200, depth=96),
        Problem(keys=200, bias=(1, 1, 130, 200), hides=True),
        Problem(keys=700, bias=(1, 1, 130, 700), form="blocks"),
        Problem(heads=4, kv_heads=2, queries=300, depth=128, causal=True, form="segments"),
        Problem(heads=4, queries=300, depth=192, value_depth=128, causal=True),
        Problem(batch=3, heads=4, queries=49, depth=16, value_depth=64),
        Problem(batch=3, heads=12, queries=42, depth=8, form="beside"),
        Problem(heads=4, queries=400, depth=32, causal=True, form="beside"),
    ],
    ids=str,
)
def test_bf16_is_as_right_as_the_format_allows(p, chip):
    """Against exact attention of the same rounded inputs. Each probability is rounded once, by at most u = 2^-8 of
    itself, in the product with V and in the sum that divides it: at most 2u of the largest value. The output is
    rounded once more. lse is the log of a sum whose terms are off by u. Sums and exponentials are fp32.
    """
    p = replace(p, kind="bfloat16", chip=chip)
    (q, k, v, _), bias = tensors(p)
    out, lse = forward(p, q, k, v, bias)
    _, expected, expected_lse = exact(p, q, k, v, bias)
    allowed = BF16_UNIT * (2 * np.abs(v.astype(np.float64)).max() + np.abs(expected)) * 1.01
    assert (np.abs(heads_first(p, out) - expected) <= allowed).all()
    seen = heads_first(p, out).any(-1)
    assert np.abs(lse - expected_lse)[seen].max() <= 1.01 * BF16_UNIT + 1e-5 * np.abs(expected_lse).max()


@pytest.mark.parametrize("form", ["fused", "beside"])
@pytest.mark.parametrize(("kind", "spread"), [("float32", 1e4), ("bfloat16", 1e3)])
def test_scores_in_the_thousands_neither_overflow_nor_vanish(kind, spread, form):
    p = Problem(kind=kind, spread=spread, causal=True, depth=64 if form == "fused" else 16, form=form)
    (q, k, v, _), _ = tensors(p)
    out, lse = forward(p, q, k, v)
    assert np.abs(lse).max() > 1000
    assert np.isfinite(out.astype(np.float32)).all()
    assert np.isfinite(lse).all()


def test_minus_infinity_in_a_bias_removes_keys():
    """As padding does: the result is that of the keys that remain, and zero where none does."""
    p = Problem(batch=2, keys=200, bias=(2, 1, 1, 200))
    (q, k, v, _), _ = tensors(p)
    bias = np.zeros(p.bias, np.float32)
    bias[0, ..., 90:], bias[1] = -np.inf, -np.inf
    out, _ = forward(p, q, k, v, bias)
    short = replace(p, batch=1, keys=90, bias=None)
    _, expected, _ = exact(short, q[:1], k[:1, :90], v[:1, :90], None)
    assert worst(heads_first(p, out)[:1], expected) <= 1e-5
    assert not out[1].any()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_head_beside_others_keeps_what_it_has_to_itself(chip, value):
    """Whatever a head's queries, keys and values hold, and whatever a query of it is, changes no bit elsewhere."""
    p = Problem(batch=2, heads=6, queries=42, depth=8, form="beside", chip=chip, kind="bfloat16")
    (q, k, v, _), _ = tensors(p)
    expected, expected_lse = forward(p, q, k, v)
    for tensor in (q, k, v):
        tensor[1, :, 2] = value
    q[0, 7, 3, 0] = value
    out, lse = forward(p, q, k, v)
    kept = np.full(lse.shape, True)
    kept[1, 2] = kept[0, 3, 7] = False
    assert (lse[kept] == expected_lse[kept]).all()
    one, other = (x.swapaxes(1, 2)[kept].view(np.uint16) for x in (out, expected))
    assert (one == other).all()
    assert np.isnan(out.astype(np.float32)[1, :, 2]).all()


def test_layout_in_memory_changes_no_bit():
    """Slices of one fused [B, T, 3, H, D] and contiguous [B, H, T, D] give the same output."""
    p = Problem(batch=2, heads=4, queries=140, causal=True, kind="bfloat16")
    (q, k, v, _), _ = tensors(p)
    expected, expected_lse = forward(p, q, k, v)
    fused = np.stack([q, k, v], 2)
    apart = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    for arrays in ([fused], apart):
        b = builder(p)
        params = [full(b.param(f"x{i}", a.shape, p.kind)) for i, a in enumerate(arrays)]
        views = [params[0][:, :, i].permute(0, 2, 1, 3) for i in range(3)] if len(arrays) == 1 else params
        out_ap, lse_ap = b.param("out", apart[0].shape, p.kind), b.param("lse", expected_lse.shape, "float32")
        attention_forward(b, *views, full(out_ap), full(lse_ap), causal=True, scale=p.scale)
        out, lse = np.zeros_like(apart[0]), np.zeros_like(expected_lse)
        run(p, b.build(), [*arrays, out, lse])
        assert (out.swapaxes(1, 2).view(np.uint16) == expected.view(np.uint16)).all()
        assert (lse == expected_lse).all()


ORDERED = [
    *(Problem(heads=4, kv_heads=2, queries=300, depth=d, value_depth=e) for d, e in ((64, 64), (192, 128), (16, 64))),
    Problem(heads=10, queries=42, depth=8, form="beside"),
    Problem(heads=10, queries=300, depth=8, form="beside"),
    Problem(heads=4, queries=300, depth=32, form="beside"),
    Problem(heads=9, queries=49, depth=64, form="beside"),
]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("p", ORDERED, ids=str)
def test_the_order_of_the_timeline_gives_the_same_bits(p, chip):
    """Dependencies hold all that program order implies: executed as the clock has it, nothing changes."""
    p = replace(p, batch=3, causal=True, kind="bfloat16", chip=chip)
    (q, k, v, _), _ = tensors(p)
    expected, expected_lse = forward(p, q, k, v)
    routine = forward_routine(p)
    order = np.argsort(time_routine(routine, CHIPS[chip]).start, kind="stable")
    assert (np.diff(order) < 0).any()
    out, lse = np.zeros_like(expected), np.zeros_like(expected_lse)
    Machine(CHIPS[chip]).call(routine, [q, k, v, out, lse], order=order)
    assert (out.view(np.uint16) == expected.view(np.uint16)).all()
    assert (lse == expected_lse).all()


def of(routine, name):
    return routine.opcode == REGISTRY[name].opcode


def test_only_inputs_and_results_pass_through_hbm():
    p = Problem(batch=2, heads=4, queries=600, depth=64, kind="bfloat16")
    routine = forward_routine(p)
    moved = sum(routine.works[i].nbytes for i in routine.work[of(routine, "dma_copy")])
    size = p.batch * p.heads * p.queries
    assert moved == 4 * size * p.depth * 2 + size * 4
    assert routine.scratch_bytes == 0


def test_causal_attention_skips_what_lies_above_the_diagonal():
    """Eight blocks a side: 36 of 64 are computed."""
    p = Problem(heads=4, queries=1024, depth=64, kind="bfloat16")
    work = []
    for routine in (forward_routine(p), forward_routine(replace(p, causal=True))):
        activations = [routine.works[i] for i in routine.work[of(routine, "activation")]]
        work.append(sum(w.n for w in activations if w.m))  # functions, not copies
    assert work[1] <= 0.6 * work[0]


@pytest.mark.parametrize(("chip", "busy"), [("trn1", 0.75), ("trn2", 0.8)])
def test_the_pe_array_is_kept_busy_by_one_head(chip, busy):
    """4096 queries and keys, D = 128, bf16: the share of the time, from the first instruction on, of matmuls."""
    p = Problem(heads=1, queries=4096, depth=128, kind="bfloat16", chip=chip)
    routine = forward_routine(p)
    timeline = time_routine(routine, CHIPS[chip])
    matmuls = of(routine, "nc_matmul")
    assert (timeline.engine[matmuls] == Engine.TENSOR).all()
    active = (timeline.end - timeline.start)[matmuls].sum()
    assert active >= busy * (timeline.done.max() - timeline.startup)


def test_long_sequences_take_as_long_per_key_as_short_ones():
    """In segments, what joins them included."""

    def time_per_pair(kernel, keys):
        b = Builder("attention", CHIPS["trn1"])
        q, k, v, out = (
            full(b.param(n, (1, 1, t, 128), "bfloat16"))
            for n, t in (("q", 1024), ("k", keys), ("v", keys), ("out", 1024))
        )
        lse = full(b.param("lse", (1, 1, 1024), "float32"))
        kernel(b, q, k, v, out, lse, causal=False, scale=0.1)
        return time_routine(b.build(), CHIPS["trn1"]).total / keys

    assert time_per_pair(attention_forward_segments, 16384) <= 1.05 * time_per_pair(attention_forward, 4096)


def test_too_long_for_sbuf_is_said():
    with pytest.raises(CapacityError, match="does not fit in SBUF"):
        forward_routine(Problem(heads=1, queries=40_000, depth=128))


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("p", [*ORDERED[1:], replace(ORDERED[3], heads=5, keys=130)], ids=str)
def test_the_checks_find_nothing(p, chip):
    """Nothing is read that was not written, and no result is left."""
    routine = forward_routine(replace(p, batch=2, kind="bfloat16", chip=chip))
    scene = Scene(filled=frozenset(routine.params[:3]), observed=frozenset(routine.params))
    assert not check_routine(routine, CHIPS[chip], scene)
