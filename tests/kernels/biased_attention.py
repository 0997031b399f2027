# SPDX-License-Identifier: Apache-2.0
"""Attention with a bias of any values, for the tests of its kernels: hostile biases, and what the kernels take."""

import numpy as np
from attention_problem import tensors

LOWEST = float(np.finfo(np.float32).min)


def hostile(p, kind, seed=1):
    """A bias in float32: "plain" normal numbers, "large" ones of thousands, "hidden" with minus infinities and
    queries that see no key, "lowest" with the least finite number, of which some queries see nothing else."""
    rng = np.random.default_rng(seed)
    bias = rng.standard_normal(p.bias, np.float32)
    holes = rng.random(p.bias) < 0.3
    if kind == "large":
        bias *= np.float32(3e3)
    elif kind == "hidden":
        bias[holes] = -np.inf
        bias[0, 0, -1] = -np.inf
    elif kind == "lowest":
        bias[holes] = LOWEST
    return bias


def seen(p, bias):
    """The bias of all pairs, minus infinity where causality hides a key."""
    whole = np.broadcast_to(bias, (p.batch, p.heads, p.queries, p.keys or p.queries))
    return np.where(np.tri(*whole.shape[2:], dtype=bool), whole, -np.inf) if p.causal else whole


def shifted(p, bias):
    """The bias less the largest that each query sees, as the kernels take it; [B or 1, H or 1, T or 1, S]."""
    if p.causal and bias.shape[2] > 1:
        bias_seen = np.where(np.tri(*bias.shape[2:], dtype=bool), bias, -np.inf)
    else:
        bias_seen = bias
    top = bias_seen.max(-1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(top == -np.inf, np.float32(-np.inf), np.minimum(bias - top, 0)).astype(np.float32)


def case(p, kind):
    """q, k, v, dout [B, T, H, D] and the shifted bias."""
    arrays, _ = tensors(p)
    return arrays, shifted(p, hostile(p, kind))
