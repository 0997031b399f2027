# SPDX-License-Identifier: Apache-2.0
"""Models in the style that people write them, small enough to interpret: GPT-2, Llama, BERT."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool, sdpa: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.sdpa, self.dropout = heads, causal, sdpa, dropout
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q, k, v):
        if self.sdpa:
            p = self.dropout if self.training else 0.0
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=p)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        if self.causal:
            mask = torch.tril(torch.ones(q.shape[2], q.shape[2], device=q.device)) == 0
            scores = scores.masked_fill(mask, float("-inf"))
        return F.dropout(F.softmax(scores, dim=-1), self.dropout, self.training) @ v

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.qkv(self.ln1(x)).split(C, 2)
        )
        y = self.attend(q, k, v).transpose(1, 2).contiguous().view(B, T, C)
        x = x + F.dropout(self.proj(y), self.dropout, self.training)
        return x + F.dropout(self.out(F.gelu(self.fc(self.ln2(x)))), self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, vocab=67, width=32, layers=2, heads=2, context=16, sdpa=True, dropout=0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, causal=True, sdpa=sdpa, dropout=dropout) for _ in range(layers)
        )
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, width=32, heads=4, kv_heads=2, hidden=48, context=16, own_norm=True) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        norm = RMSNorm if own_norm else nn.RMSNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        angles = torch.outer(torch.arange(context).float(), 1e4 ** -(torch.arange(0, self.size, 2) / self.size))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x):
        B, T, C = x.shape
        h = self.norm1(x)
        split = lambda t, n: t.view(B, T, n, self.size).transpose(1, 2)  # noqa: E731
        q = rotate(split(self.q(h), self.heads), self.cos[:T], self.sin[:T])
        k = rotate(split(self.k(h), self.kv_heads), self.cos[:T], self.sin[:T])
        v = split(self.v(h), self.kv_heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, C))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class BERT(nn.Module):
    def __init__(self, vocab=61, width=32, layers=1, heads=2, context=16, dropout=0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width, padding_idx=0), nn.Embedding(context, width)
        self.kinds = nn.Embedding(2, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, causal=False, sdpa=False, dropout=dropout) for _ in range(layers)
        )
        self.ln, self.dense, self.ln2 = nn.LayerNorm(width), nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.pool, self.next = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, ids, targets, follows):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.ln(x + self.kinds(torch.zeros_like(ids)))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln2(F.gelu(self.dense(x))), self.tokens.weight, self.bias)
        masked = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-100)
        return masked + F.cross_entropy(self.next(torch.tanh(self.pool(x[:, 0]))), follows)
