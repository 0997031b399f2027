# SPDX-License-Identifier: Apache-2.0
"""Attention with a bias as models write it (T5, BLOOM, MPT, Swin, BEiT), forward and backward: it is one kernel, and
its numbers are PyTorch's in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import Traced

from trnlab.compiler.passes import FORMS, run_passes

B, H, T, D = 4, 2, 40, 16
WINDOWS, TOKENS = 2, 49
LOWEST = torch.finfo(torch.float32).min


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads(x):
    """[B, T, H D] as [B, H, T, D]."""
    return x.view(x.shape[0], x.shape[1], H, D).transpose(1, 2)


def near(tokens, most):
    """Distances of places, at most `most` to either side, counted from zero."""
    places = torch.arange(tokens)
    return (places[None] - places[:, None]).clamp(-most, most) + most


def t5(q, k, v, table):
    """Scores without a scale, a table by distance, softmax in float32 (modeling_t5, eager)."""
    bias = F.embedding(near(q.shape[1], 7).to(q.device), table).permute(2, 0, 1).unsqueeze(0)
    scores = torch.matmul(heads(q), heads(k).transpose(3, 2)) + bias
    weights = F.softmax(scores.float() if scores.dtype != torch.float64 else scores, dim=-1).type_as(scores)
    return torch.matmul(weights, heads(v))


def t5_decoder(q, k, v, table):
    """The same with its causal mask in the bias, by `scaled_dot_product_attention`."""
    bias = F.embedding(near(q.shape[1], 7).to(q.device), table).permute(2, 0, 1).unsqueeze(0)
    places = torch.arange(q.shape[1], device=q.device)
    bias = torch.where(places[:, None] >= places[None], bias, LOWEST).contiguous()
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v), bias, scale=1.0)


def slopes(device, kind):
    return torch.tensor([2.0 ** -(i + 1) for i in range(H)], dtype=kind, device=device)


def bloom(q, k, v):
    """baddbmm of a bias by keys, then a causal mask of the least number (modeling_bloom)."""
    batch, tokens = q.shape[:2]
    mask = torch.ones(batch, tokens, device=q.device)
    places = ((mask.cumsum(-1) - 1) * mask)[:, None, :]
    alibi = (slopes(q.device, q.dtype)[:, None] * places).reshape(batch * H, 1, tokens).to(q.dtype)
    rows, keys, values = (heads(x).reshape(batch * H, tokens, D) for x in (q, k, v))
    scores = alibi.baddbmm(rows, keys.transpose(1, 2), beta=1.0, alpha=D**-0.5).view(batch, H, tokens, tokens)
    hidden = torch.full((tokens, tokens), LOWEST, device=q.device).triu(1)
    weights = F.softmax(scores + hidden[None, None], dim=-1)
    return torch.bmm(weights.view(batch * H, tokens, tokens), values).view(batch, H, tokens, D)


def mpt(q, k, v):
    """Distances by slopes added to scaled scores, hidden by a mask of truth values (modeling_mpt)."""
    tokens = q.shape[1]
    places = torch.arange(1 - tokens, 1, device=q.device).to(q.dtype)
    alibi = slopes(q.device, q.dtype)[:, None, None] * places
    scores = torch.matmul(heads(q), heads(k).transpose(-1, -2)) * D**-0.5 + alibi
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(hidden, torch.finfo(q.dtype).min)
    return torch.matmul(F.softmax(scores, dim=-1), heads(v))


def windows(q, k, v, table):
    """A table by two distances and a mask of shifted windows, which images share (modeling_swin, before SDPA)."""
    rows = torch.arange(TOKENS, device=q.device)
    index = (rows[:, None] * 3 + rows[None]) % table.shape[0]
    bias = table[index.reshape(-1)].view(TOKENS, TOKENS, H).permute(2, 0, 1).contiguous().unsqueeze(0)
    parts = torch.arange(WINDOWS, device=q.device)[:, None] * (rows[None] > 20)
    mask = torch.where(parts[:, None] == parts[:, :, None], 0.0, -100.0).to(q.dtype)
    scores = (heads(q) * D**-0.5) @ heads(k).transpose(-2, -1) + bias
    scores = scores.view(B // WINDOWS, WINDOWS, H, TOKENS, TOKENS) + mask[None, :, None]
    return F.softmax(scores.view(B, H, TOKENS, TOKENS), dim=-1) @ heads(v)


MODELS = {t5: (T, 15), t5_decoder: (T, 15), bloom: (T, 0), mpt: (T, 0), windows: (TOKENS, 169)}


@pytest.mark.parametrize("model", MODELS, ids=lambda f: f.__name__)
def test_models_attend_with_their_bias(model):
    tokens, rows = MODELS[model]
    given = [normal(B, tokens, H * D, seed=i) for i in range(3)]
    given += [normal(rows, H, seed=3)] if rows else []
    into = normal(B, H, tokens, D, seed=4)

    def function(*args):
        *operands, into = args
        leaves = [x.detach().requires_grad_() for x in operands]
        y = model(*leaves)
        return y, *torch.autograd.grad((y * into).sum(), leaves)

    with torch.enable_grad():
        traced = Traced(function, [*given, into])
        expected = function(*(x.double() for x in (*given, into)))
    graph = traced.graph.copy()
    run_passes(graph, {"precision": "fp32"}, FORMS)
    attention = [op for op in graph.ops if op.name.startswith("trn.attention")]
    assert len(attention) == 2
    assert all(op.attrs["shifted"] for op in attention)
    assert all(op.attrs["causal"] == (model in (t5_decoder, bloom, mpt)) for op in attention)
    for chip in ("trn1", "trn2"):
        for got, wanted in zip(traced.run(chip)[0], expected, strict=True):
            assert (got.double() - wanted).abs().max() <= 3e-5 * wanted.abs().max()
            assert math.isfinite(float(got.abs().sum()))
