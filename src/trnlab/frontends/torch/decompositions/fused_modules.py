# SPDX-License-Identifier: Apache-2.0
"""What `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call without gradients, taken apart.

In evaluation these modules call one operator each, on every device that PyTorch knows as fast. Here the operators
become the ones that training uses; a mask of them hides where it is not zero.

Letters: B batch, T tokens, E width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from trnlab.frontends.torch.pytorch.tensors import safe_softmax

SOURCE_MASK, PADDING_MASK = 0, 1  # mask_type: [T, T], [B, T]; else [B, H, T, T]


def decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator."""
    aten = torch.ops.aten
    return {
        aten._native_multi_head_attention.default: multi_head_attention,
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
    }


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Output [B, T, E], and the weights if asked for."""
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases)
    )
    keep = _keep(mask, mask_type)
    mixed = F.scaled_dot_product_attention(q, k, v, keep).transpose(1, 2).flatten(2)
    out = F.linear(mixed, proj_weight, proj_bias)
    if not need_weights:
        return out, query.new_empty(0)
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, float("-inf"))
    shares = safe_softmax(scores, -1)
    return out, shares.mean(1) if average_attn_weights else shares


def _keep(mask: Tensor | None, mask_type: int | None) -> Tensor | None:
    """True where a key is seen; broadcasts to [B, H, T, T]."""
    if mask is None:
        return None
    keep = mask == 0 if mask.dtype != torch.bool else ~mask
    return keep[:, None, None, :] if mask_type == PADDING_MASK else keep


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Attention and a feed-forward network, each added to what it is of, normalised before or after: [B, T, E]."""

    def attended(x: Tensor) -> Tensor:
        return multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )[0]

    def fed(x: Tensor) -> Tensor:
        grown = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(grown) if use_gelu else F.relu(grown), ffn_weight_2, ffn_bias_2)

    def first(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(first(src))
        return x + fed(second(x))
    x = first(src + attended(src))
    return second(x + fed(x))
