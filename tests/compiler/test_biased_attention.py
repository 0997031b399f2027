# SPDX-License-Identifier: Apache-2.0
"""Attention with a bias of any values on the chip: against the graph's definition in float64, hostile biases among
them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compiled import build, execute, execute_in_both_orders

from trnlab.compiler.fusing.groups import GroupKind
from trnlab.compiler.lowerings.forms import LOWERINGS
from trnlab.compiler.passes import FORMS, run_passes
from trnlab.graph.interpret import interpret
from trnlab.graph.verify import verify
from trnlab.numerics.dtypes import int32

B, H, T, S, D = 2, 4, 70, 130, 32
LOWEST = float(np.finfo(np.float32).min)
SHAPES = ((1, H, T, S), (B, 1, 1, S), (B, H, T, S), (1, 1, T, S), (1, H, 1, S))
KINDS = ("plain", "large", "hidden", "lowest", "mixed")


def numbers(shape, kind, seed=0, keys=S, key_heads=H, queries=T, heads=H):
    """q, k, v, the bias and dout; of the bias some rows are hidden as a whole."""
    rng = np.random.default_rng(seed)
    shapes = ((B, heads, queries, D), (B, key_heads, keys, D), (B, key_heads, keys, D), shape, (B, heads, queries, D))
    q, k, v, bias, dout = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    holes, whole = rng.random(shape) < 0.3, (0, 0, -1)
    if kind == "large":
        bias *= 3e3
    elif kind == "hidden":
        bias[holes] = bias[whole] = -np.inf
    elif kind == "lowest":
        bias[holes] = bias[whole] = LOWEST
    elif kind == "mixed":
        bias[holes] = -1e4
        bias[rng.random(shape) < 0.2] = LOWEST
        bias[rng.random(shape) < 0.2] = -np.inf
        bias[whole] -= 1e4
    return [q, k, v, bias, dout]


def attention(causal=False, scale=D**-0.5):
    """The op, with its gradients, that of the bias among them."""

    def function(b, q, k, v, bias, dout):
        out, lse = b.attention(q, k, v, bias, causal=causal, scale=scale)
        return out, *b.attention_bias_backward((dout, q, k, v, out, lse, bias), causal=causal, scale=scale)

    return function


def is_shifted(graph, causal=None):
    """Whether all attention of a graph becomes that of a shifted bias."""
    after = graph.copy()
    run_passes(after, {"precision": "bf16"}, FORMS)
    verify(after)
    ops = [op for op in after.ops if op.name.startswith("trn.attention")]
    return bool(ops) and all(op.attrs["shifted"] and causal in (None, op.attrs["causal"]) for op in ops)


def compare(graph, inputs, got, precision, cancels=False):
    """Largest errors as a fraction of the largest number; where a large bias leaves a query one key, of the terms
    that cancel in its gradients, of the size of dout . v."""
    limit, least = 2e-2 if precision == "bf16" else 1e-5, D**0.5 if cancels else 0.0
    for found, expected in zip(got, interpret(graph, inputs, "float64"), strict=True):
        assert np.isfinite(found).all()
        assert np.abs(found - expected).max() <= limit * max(np.abs(expected).max(), least)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_bias_and_its_gradient(shape, kind, precision):
    inputs = numbers(shape, kind)
    graph = build(attention(), *inputs)
    assert is_shifted(graph)
    compare(graph, inputs, execute(graph, inputs, precision=precision), precision, kind == "large")


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, H, 140, 140), (B, 1, 1, 140)], ids=str)
def test_causal_attention_of_shared_heads(shape, kind, chip):
    """A bias of keys alone may have its largest number where causality hides it."""
    inputs = numbers(shape, kind, keys=140, queries=140, key_heads=2)
    inputs[3][..., -1] = 1e9  # which the last query alone sees
    graph = build(attention(causal=True), *inputs)
    assert is_shifted(graph)
    compare(graph, inputs, execute(graph, inputs, chip=chip, precision="bf16"), "bf16", kind == "large")


@pytest.mark.parametrize("hidden", [-math.inf, LOWEST])
def test_a_causal_mask_within_a_bias_is_causality(hidden):
    """A table's numbers by distance, and a mask over them, as T5's decoder has them."""

    def function(b, q, k, v, table, dout):
        pairs = (S, S)
        rows, columns = b.iota(pairs, int32, 0), b.iota(pairs, int32, 1)
        near = b.minimum(b.abs(b.subtract(rows, columns)), b.constant(7, int32, pairs))
        bias = b.reshape(b.transpose(b.take_rows(table, near), (2, 0, 1)), (1, H, *pairs))
        visible = b.broadcast_to(b.compare(rows, "GE", columns), bias.shape)
        bias = b.select(visible, bias, b.constant(hidden, bias.dtype, bias.shape))
        return attention()(b, q, k, v, bias, dout)

    inputs = numbers((8, H), "plain", queries=S)
    graph = build(function, *inputs)
    assert is_shifted(graph, causal=True)
    compare(graph, inputs, execute(graph, inputs, precision="bf16"), "bf16")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_stays_none(value):
    inputs = numbers((1, H, T, S), "plain")
    inputs[3][0, 1, 3, 5] = value
    graph = build(attention(), *inputs)
    out, expected = execute(graph, inputs)[0], interpret(graph, inputs)[0]
    assert (np.isnan(out) == np.isnan(expected)).all()
    assert np.isnan(out).any()


def test_the_order_of_the_timeline_gives_the_same_bits():
    inputs = numbers((1, H, T, S), "mixed")
    graph = build(attention(), *inputs)
    compare(graph, inputs, execute_in_both_orders(graph, inputs, precision="bf16"), "bf16")


def test_gradients_that_do_not_fit_on_chip_are_summed_in_memory():
    inputs = numbers((1, H, 300, 1500), "plain", keys=1500, queries=300)
    graph = build(attention(), *inputs)
    assert is_shifted(graph)
    compare(graph, inputs, execute(graph, inputs, precision="bf16"), "bf16")


def test_a_gradient_without_its_forward_pass_is_written_out():
    """Its lse may have lost the sum beside a large bias."""

    def function(b, q, k, v, bias, dout):
        return b.attention_bias_backward(
            (dout, q, k, v, dout, b.constant(1.0, shape=(B, H, T)), bias), causal=False, scale=1
        )

    inputs = numbers((1, H, T, S), "plain")
    graph = build(function, *inputs)
    assert not is_shifted(graph)
    compare(graph, inputs, execute(graph, inputs, precision="fp32"), "fp32")


def test_many_heads_that_share_keys_have_their_gradients_summed_in_memory():
    inputs = numbers((1, 64, 150, 150), "plain", keys=150, queries=150, key_heads=1, heads=64)
    graph = build(attention(), *inputs)
    after = graph.copy()
    run_passes(after, {"precision": "bf16"}, FORMS)
    assert [op.attrs["dbias"] for op in after.ops if op.name == "trn.attention_backward"] == ["each"]
    compare(graph, inputs, execute(graph, inputs, precision="bf16"), "bf16")


def test_the_kernel_by_blocks_takes_a_shifted_bias_too(monkeypatch):
    """Where no other one has room."""
    monkeypatch.setitem(LOWERINGS, GroupKind.ATTENTION, LOWERINGS[GroupKind.ATTENTION][-1:])
    inputs = numbers((1, H, T, S), "hidden")[:4]
    graph = build(lambda b, *values: b.attention(*values)[0], *inputs)
    assert is_shifted(graph)
    compare(graph, inputs, execute(graph, inputs), "fp32")


def test_a_bias_of_zeros_is_none():
    def function(b, q, k, v, dout):
        zeros = b.constant(0.0, shape=(1, H, T, S))
        out, lse = b.attention(q, k, v, zeros)
        return out, *b.attention_backward(dout, q, k, v, out, lse, zeros)

    q, k, v, _, dout = numbers((1, H, T, S), "plain")
    graph = build(function, q, k, v, dout)
    after = graph.copy()
    run_passes(after, {"precision": "bf16"}, FORMS)
    assert [len(op.operands) for op in after.ops if op.name.startswith("trn.attention")] == [3, 6]
    compare(graph, [q, k, v, dout], execute(graph, [q, k, v, dout]), "fp32")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("tokens", [49, 64])
def test_short_windows_lie_side_by_side(tokens, images, precision):
    """Windows of images, each with a mask of its own beside a bias of heads, of which both have gradients; and
    windows without a mask."""
    windows, batch = 4, 4 * images

    def function(b, q, k, v, table, mask, dout):
        rows = b.reshape(mask, (1, windows, 1, tokens, tokens))
        rows = b.broadcast_to(rows, (images, *rows.shape[1:]))
        rows = b.clamp(-100.0, b.reshape(rows, (batch, 1, tokens, tokens)), 100.0)
        shape = (batch, 2, tokens, tokens)
        found = []
        for bias in (b.add(b.broadcast_to(table, shape), b.broadcast_to(rows, shape)), table):
            out, lse = b.attention(q, k, v, bias)
            operands = (dout, q, k, v, out, lse, bias)
            *grads, dbias = b.attention_bias_backward(operands, causal=False, scale=D**-0.5)
            found += [out, *grads, b.reduce(dbias, [0], keepdims=True)]
        return found

    rng = np.random.default_rng(0)
    q, k, v, dout = (rng.standard_normal((batch, 2, tokens, D)).astype(np.float32) for _ in range(4))
    table = rng.standard_normal((1, 2, tokens, tokens)).astype(np.float32)
    mask = np.where(rng.random((windows, tokens, tokens)) < 0.3, -100, 0).astype(np.float32)
    inputs = [q, k, v, table, mask, dout]
    graph = build(function, *inputs)
    assert is_shifted(graph)
    after = graph.copy()
    run_passes(after, {"precision": precision}, FORMS)
    together = [op for op in after.ops if op.name == "trn.attention"]
    assert [op.operands[0].shape[:3] for op in together] == [(batch // 2, 2, 2 * tokens)] * 2
    assert [op.operands[3].shape[0] for op in together] == [windows // 2, 1]
    sums = [op.attrs["dbias"] for op in after.ops if op.name == "trn.attention_backward"]
    assert sums == ["sum", "sum"]
    compare(graph, inputs, execute(graph, inputs, precision=precision), precision)


def blind_queries_give_nan(b, bias):
    """As attention that is written out has it."""
    top = b.reduce(bias, [3], "maximum", keepdims=True)
    blind = b.broadcast_to(b.compare(top, "EQ", -math.inf), bias.shape)
    return b.select(blind, b.constant(math.nan, bias.dtype, bias.shape), bias)


def test_a_table_asks_nothing_of_queries_and_repeats_itself_along_the_batch():
    """Windows of two kinds, again and again, one query of which sees no key and gives NaN."""
    rng = np.random.default_rng(0)
    windows, tokens, size = 4, 70, 16
    q, k, v = (rng.standard_normal((windows, H, tokens, size)).astype(np.float32) for _ in range(3))
    table, masks = rng.standard_normal((40, H)).astype(np.float32), rng.standard_normal((2, tokens, tokens))
    table[0] = -np.inf
    places = rng.integers(1, 40, (tokens, tokens)).astype(np.int32)
    places[3] = 0
    masks = np.where(masks > 0, 0, -100).astype(np.float32)

    def function(b, q, k, v, table):
        looked = b.reshape(b.transpose(b.take_rows(table, b.constant(places)), (2, 0, 1)), (1, H, tokens, tokens))
        apart = b.broadcast_in_dim(b.constant(masks), (windows // 2, 2, H, tokens, tokens), (1, 3, 4))
        shape = (windows, H, tokens, tokens)
        bias = b.add(b.broadcast_to(looked, shape), b.reshape(apart, shape))
        return b.attention(q, k, v, blind_queries_give_nan(b, bias))[0]

    inputs = [q, k, v, table]
    graph = build(function, *inputs)
    after = graph.copy()
    run_passes(after, {"precision": "fp32"}, FORMS)
    (op,) = (op for op in after.ops if op.name == "trn.attention")
    assert op.attrs["shifted"]
    assert op.operands[3].shape[0] == 2
    assert not any(o.name == "multiply" and o.result.shape == q.shape for o in after.ops)
    (expected,) = interpret(graph, inputs, "float64")
    got = execute_in_both_orders(graph, inputs, precision="fp32")[0]
    assert np.isnan(expected[:, :, 3]).all()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
