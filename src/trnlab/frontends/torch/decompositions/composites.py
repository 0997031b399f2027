# SPDX-License-Identifier: Apache-2.0
"""Composites that stay whole on `neuron`: attention, so that the compiler can keep the scores on chip, and dropout.

`scaled_dot_product_attention` becomes `trnlab::attention` with its own derivative `trnlab::attention_backward`; both
run on the host in eager mode (as plain matrix products) and become single graph ops when captured. Where the mask
needs a gradient, the derivative is `trnlab::attention_bias_backward`. Attention with dropout is written out as matrix
products and a softmax, because the weights themselves are then needed.

Shape letters: B batch, H query heads, Hkv key heads (H is a multiple), T queries, S keys, D head size.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.decompositions import grouped
from trnlab.frontends.torch.device.dispatch import implement
from trnlab.frontends.torch.pytorch.dispatcher import modes_off
from trnlab.frontends.torch.pytorch.tensors import safe_softmax

_LIBRARIES: list[torch.library.Library] = []
_SCHEMAS = (
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, bool causal, float scale) -> (Tensor out, Tensor lse)",
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? bias, "
    "bool causal, float scale) -> (Tensor dq, Tensor dk, Tensor dv)",
    "attention_bias_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor bias, "
    "bool causal, float scale) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias)",
)


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    """scale * q k^T + bias in fp32, -inf above the diagonal when causal: [B, H, T, S]."""
    scores = (q.float() @ _repeat_heads(k, q.shape[1]).float().transpose(-2, -1)) * scale
    if bias is not None:
        scores = scores + bias.float()
    return _causal(scores) if causal else scores


def _causal(scores: Tensor) -> Tensor:
    """-inf where a key comes after the query, both counted from zero."""
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return scores.masked_fill(~keep, float("-inf"))


def _forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """A query that sees no key gives zero, and so does its lse."""
    scores = _scores(q, k, bias, causal, scale)
    highest = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).min)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True)
    hidden = total == 0
    total = total.masked_fill(hidden, 1.0)
    lse = (total.log() + highest.masked_fill(hidden, 0.0)).squeeze(-1)
    return (weights / total @ _repeat_heads(v, q.shape[1]).float()).to(q.dtype), lse


def _backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _bias_backward(*given)[:3]


def _bias_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the bias."""
    groups = q.shape[1] // k.shape[1]
    weights = torch.exp(_scores(q, k, bias, causal, scale) - lse.unsqueeze(-1))
    if bias is not None:  # beside a large bias, the log of the sum is lost in lse
        total = weights.sum(-1, keepdim=True)
        weights = weights / total.masked_fill(total == 0, 1.0)
    dout = dout.float()
    dweights = dout @ _repeat_heads(v, q.shape[1]).float().transpose(-2, -1)
    row = (dout * out.float()).sum(-1, keepdim=True)
    unscaled = weights * (dweights - row)
    dbias = unscaled if bias is None else unscaled.sum_to_size(bias.shape).to(bias.dtype)
    dscores = unscaled * scale
    dq = dscores @ _repeat_heads(k, q.shape[1]).float()
    dk, dv = dscores.transpose(-2, -1) @ q.float(), weights.transpose(-2, -1) @ dout
    dk, dv = (g.unflatten(1, (k.shape[1], groups)).sum(2) for g in (dk, dv))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dbias


def _forward_meta(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:3], v.shape[-1])), q.new_empty(q.shape[:3], dtype=torch.float32)


def _backward_meta(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))


def _bias_backward_meta(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, ...]:
    _, _, bias, *_ = given
    return *_backward_meta(dout, q, k, v), torch.empty(bias.shape, dtype=bias.dtype, device=bias.device)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, bias, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, bias)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, dout: Tensor, _dlse: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, bias = ctx.saved_tensors
    if bias is not None and ctx.needs_input_grad[3]:
        given = (dout, q, k, v, out, lse, bias, ctx.causal, ctx.scale)
        return *torch.ops.trnlab.attention_bias_backward(*given), None, None
    grads = torch.ops.trnlab.attention_backward(dout, q, k, v, out, lse, bias, ctx.causal, ctx.scale)
    return *grads, None, None, None


def _written_out(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout_p: float, causal: bool, scale: float
) -> Tensor:
    """By the definition, in [..., H, T, D]; of PyTorch's softmax the one that gives zero where no key is seen."""
    heads = q.shape[-3] if q.dim() > 2 else 1
    k, v = (x.repeat_interleave(heads // x.shape[-3], -3) if _shared(x, heads) else x for x in (k, v))
    scores = (q @ k.transpose(-2, -1)) * scale
    if bias is not None:
        scores = scores + bias
    weights = safe_softmax(_causal(scores) if causal else scores, -1).to(q.dtype)
    return (torch.dropout(weights, dropout_p, True) if dropout_p > 0 else weights) @ v


def _shared(x: Tensor, heads: int) -> bool:
    return x.dim() > 2 and x.shape[-3] not in (1, heads)


def _as_bias(mask: Tensor | None, kind: torch.dtype) -> Tensor | None:
    """A boolean mask (True takes part) becomes 0 or -inf."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.zeros((), dtype=kind, device=mask.device)
    return torch.where(mask, zero, torch.full_like(zero, float("-inf")))


def _refuse_as_pytorch_does(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool
) -> None:
    """Raise what PyTorch raises for operands that do not fit: its own operator, on tensors without data or modes."""
    if any(isinstance(n, torch.SymInt) for x in (q, k, v) for n in x.shape):
        return
    forms = tuple(None if x is None else (tuple(x.shape), x.dtype) for x in (q, k, v, mask))
    _accepted(forms, causal and mask is None, scale, gqa)


@lru_cache(maxsize=1024)
def _accepted(forms: tuple[Any, ...], causal: bool, scale: float | None, gqa: bool) -> None:
    """Raise what PyTorch raises for operands of these shapes and formats. What fits once does so in every layer."""
    with modes_off():
        given = [None if form is None else torch.empty(form[0], dtype=form[1], device="meta") for form in forms]
        torch.ops.aten.scaled_dot_product_attention(*given, 0.0, causal, scale=scale, enable_gqa=gqa)


def _four(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """x [..., n, D] as [B, H, n, D]; all but the last of the dimensions `lead` make B."""
    x = x.expand(*lead, *x.shape[-2:])
    return x.reshape(-1, lead[-1] if lead else 1, *x.shape[-2:]) if x.dim() != 4 else x


def _four_of_bias(bias: Tensor, lead: tuple[int, ...], shape: tuple[int, int]) -> Tensor:
    """As [B or 1, H or 1, T or 1, S]."""
    bias = bias.reshape((1,) * (len(lead) + 2 - bias.dim()) + tuple(bias.shape))
    bias = bias.expand(*bias.shape[:-1], shape[1])
    heads = bias.shape[-3] if lead else 1
    if all(n == 1 for n in bias.shape[:-3]):
        return bias.reshape(1, heads, *bias.shape[-2:])
    return bias.expand(*lead[:-1], *bias.shape[-3:]).reshape(-1, heads, *bias.shape[-2:])


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The kernel of `F.scaled_dot_product_attention` on `neuron`; other ranks are brought to four and back.

    What a query that sees no key gives is zero, as on the CPU. With `is_causal` query t sees keys 0..t, and what
    `attn_mask` leaves of them.
    """
    sharded = _of_dtensors(query)
    if sharded is not None:
        sharded.install()
    _refuse_as_pytorch_does(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    size = query.shape[-1]
    scale = (size**-0.5 if size else float("inf")) if scale is None else float(scale)
    bias = _as_bias(attn_mask, query.dtype)
    lead, key_heads = _leading(query, key, value, enable_gqa)
    plain = (
        dropout_p == 0
        and not (bias is not None and bias.dim() > len(lead or ()) + 2)
        and not (sharded is not None and bias is not None and bias.requires_grad)
        and all(x.numel() for x in (query, key, value))
    )
    if not plain or lead is None:
        if sharded is not None:
            sharded.refuse_in_a_ring(query)
        return _written_out(query, key, value, bias, dropout_p, is_causal, scale)
    key_lead = lead if key_heads is None else (*lead[:-1], key_heads)
    q, k, v = _four(query, lead), _four(key, key_lead), _four(value, key_lead)
    if bias is not None:
        bias = _four_of_bias(bias, lead, (query.shape[-2], key.shape[-2]))
    out = torch.ops.trnlab.attention(q, k, v, bias, is_causal, scale)[0]
    return out.reshape(*lead, query.shape[-2], value.shape[-1])


def _of_dtensors(query: Tensor) -> Any:
    """What DTensor has to know of attention, if it is of a DTensor; else nothing is loaded."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(query, module.DTensor):
        return None
    from trnlab.frontends.torch.parallel import sharded_attention

    return sharded_attention


def _leading(query: Tensor, key: Tensor, value: Tensor, gqa: bool) -> tuple[tuple[int, ...] | None, int | None]:
    """Batch and heads of the result, and how many key heads there are where query heads share them.

    (None, None) where keys and values have different numbers of heads.
    """
    tensors = (query, key, value)
    heads = {x.shape[-3] for x in (key, value)} if all(x.dim() > 2 for x in tensors) else set()
    if gqa and len(heads) > 1:
        return None, None
    if heads and heads != {query.shape[-3]} and (gqa or heads == {1}):
        batch = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors))
        return (*batch, query.shape[-3]), heads.pop()
    return tuple(torch.broadcast_shapes(*(x.shape[:-2] for x in tensors))), None


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
    library.impl("attention_bias_backward", _bias_backward, "CPU")
    torch.library.register_fake("trnlab::attention", _forward_meta, lib=library)
    torch.library.register_fake("trnlab::attention_backward", _backward_meta, lib=library)
    torch.library.register_fake("trnlab::attention_bias_backward", _bias_backward_meta, lib=library)
    torch.library.register_autograd("trnlab::attention", _differentiate, setup_context=_save, lib=library)
    grouped.define(library)
    aten = torch.library.Library("aten", "IMPL")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        implement(aten, "scaled_dot_product_attention", scaled_dot_product_attention, key)
        implement(aten, "dropout", dropout, key)
        implement(aten, "_grouped_mm", grouped.grouped_mm, key)
    _LIBRARIES.extend((library, aten))
