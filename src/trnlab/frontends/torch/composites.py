# SPDX-License-Identifier: Apache-2.0
"""Composites that stay whole on `neuron`: attention, so that the compiler can keep the scores on chip, and dropout.

`scaled_dot_product_attention` becomes `trnlab::attention` with its own derivative `trnlab::attention_backward`; both
run on the host in eager mode (as plain matrix products) and become single graph ops when captured. Attention with
dropout, or whose mask needs a gradient, is written out as matrix products and a softmax, because the weights
themselves are then needed.

Shape letters: B batch, H query heads, Hkv key heads (H is a multiple), T queries, S keys, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.dispatch import implement

_LIBRARIES: list[torch.library.Library] = []
_SCHEMAS = (
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, bool causal, float scale) -> (Tensor out, Tensor lse)",
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? bias, "
    "bool causal, float scale) -> (Tensor dq, Tensor dk, Tensor dv)",
)


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    """scale * q k^T + bias in fp32, -inf above the diagonal when causal: [B, H, T, S]."""
    scores = (q.float() @ _repeat_heads(k, q.shape[1]).float().transpose(-2, -1)) * scale
    if bias is not None:
        scores = scores + bias.float()
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    return scores


def _forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    scores = _scores(q, k, bias, causal, scale)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return (weights @ _repeat_heads(v, q.shape[1]).float()).to(q.dtype), lse


def _backward(dout, q, k, v, out, lse, bias, causal, scale):
    groups = q.shape[1] // k.shape[1]
    weights = torch.exp(_scores(q, k, bias, causal, scale) - lse.unsqueeze(-1))
    dout = dout.float()
    dweights = dout @ _repeat_heads(v, q.shape[1]).float().transpose(-2, -1)
    row = (dout * out.float()).sum(-1, keepdim=True)
    dscores = weights * (dweights - row) * scale
    dq = dscores @ _repeat_heads(k, q.shape[1]).float()
    dk, dv = dscores.transpose(-2, -1) @ q.float(), weights.transpose(-2, -1) @ dout
    dk, dv = (g.unflatten(1, (k.shape[1], groups)).sum(2) for g in (dk, dv))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _forward_meta(q, k, v, bias, causal, scale):
    return q.new_empty((*q.shape[:3], v.shape[-1])), q.new_empty(q.shape[:3], dtype=torch.float32)


def _backward_meta(dout, q, k, v, out, lse, bias, causal, scale):
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, bias, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, bias)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, dout: Tensor, _dlse: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, bias = ctx.saved_tensors
    grads = torch.ops.trnlab.attention_backward(dout, q, k, v, out, lse, bias, ctx.causal, ctx.scale)
    return *grads, None, None, None


def _as_bias(mask: Tensor | None, kind: torch.dtype) -> Tensor | None:
    """A boolean mask (True takes part) becomes 0 or -inf; shapes gain leading ones up to rank four."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=kind, device=mask.device)
        mask = torch.where(mask, zero, torch.full_like(zero, float("-inf")))
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


def _written_out(q, k, v, bias, dropout_p, causal, scale):
    k, v = _repeat_heads(k, q.shape[1]), _repeat_heads(v, q.shape[1])
    scores = (q @ k.transpose(-2, -1)) * scale
    if bias is not None:
        scores = scores + bias
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    weights = torch.softmax(scores, -1).to(q.dtype)
    return torch.dropout(weights, dropout_p, True) @ v


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    """The kernel of `F.scaled_dot_product_attention` on `neuron`; other ranks are brought to four and back."""
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    bias = _as_bias(attn_mask, query.dtype)
    rank = query.dim()
    q, k, v = (x.reshape((1,) * (4 - rank) + tuple(x.shape)) if rank < 4 else x for x in (query, key, value))
    if rank > 4:
        q, k, v = (x.flatten(0, rank - 4) for x in (q, k, v))
    if dropout_p > 0 or (bias is not None and bias.requires_grad) or v.shape[-1] != q.shape[-1]:
        out = _written_out(q, k, v, bias, dropout_p, is_causal, scale)
    else:
        bias = None if bias is None else bias.to(q.dtype).expand(*bias.shape[:3], k.shape[2])
        out = torch.ops.trnlab.attention(q, k, v, bias, is_causal, scale)[0]
    return out.reshape(*query.shape[:-1], value.shape[-1])


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """The kernel of `F.dropout` on `neuron`: one operator, whose backward pass keeps a mask of a byte per element."""
    return torch.native_dropout(x, p, True)[0] if train and p > 0 else x


def register() -> None:
    """Define the two operators and send PyTorch's composites on `neuron` to them. Called once."""
    library = torch.library.Library("trnlab", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("attention", _forward, "CPU")
    library.impl("attention_backward", _backward, "CPU")
    torch.library.register_fake("trnlab::attention", _forward_meta, lib=library)
    torch.library.register_fake("trnlab::attention_backward", _backward_meta, lib=library)
    torch.library.register_autograd("trnlab::attention", _differentiate, setup_context=_save, lib=library)
    aten = torch.library.Library("aten", "IMPL")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        implement(aten, "scaled_dot_product_attention", scaled_dot_product_attention, key)
        implement(aten, "dropout", dropout, key)
    _LIBRARIES.extend((library, aten))
