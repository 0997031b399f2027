# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3 (arXiv:2412.19437)."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.architectures.llama import decoder
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Block, Model


@architecture("deepseek_v3")
def deepseek(f: ConfigurationFields) -> Model:
    """Multi-head latent attention, a few dense layers, then experts with one that all tokens take."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    plain, rotary = f.count("qk_nope_head_dim"), f.count("qk_rope_head_dim")
    attention = Attention(
        heads,
        heads,
        plain + rotary,
        f.count("v_head_dim"),
        q_rank=f.count("q_lora_rank", 0, least=0),
        kv_rank=f.count("kv_lora_rank"),
        rope_size=rotary,
    )
    size, routed = f.count("moe_intermediate_size"), f.count("n_routed_experts")
    experts = Experts(
        routed,
        f.count("num_experts_per_tok", most=routed),
        size,
        shared=size * f.count("n_shared_experts", 0, least=0),
    )
    layers, dense = f.count("num_hidden_layers"), f.count("first_k_dense_replace", 0, least=0)
    first = Block(hidden, attention, Dense(f.count("intermediate_size")))
    stacks = ((dense, first), (layers - dense, Block(hidden, attention, experts)))
    return decoder(f, hidden, tuple(stack for stack in stacks if stack[0] > 0))
