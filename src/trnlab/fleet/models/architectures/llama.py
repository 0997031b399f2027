# SPDX-License-Identifier: Apache-2.0
"""Llama and its like: Mistral, Qwen2 and 3, and with experts Mixtral and Qwen3-MoE."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.fields import ConfigurationFields, wrong
from trnlab.fleet.models.transformer import Block, Model


@architecture("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
def llama(f: ConfigurationFields) -> Model:
    """Llama and its like: RMS norms, rotary positions, gated networks, shared heads of keys."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size = f.head(hidden, heads)
    shared = f.count("num_key_value_heads", heads)
    if heads % shared:
        raise wrong(f.name, f"{shared} heads of keys do not divide {heads} heads")
    kind = f.config["model_type"]
    bias = "qkv" if kind == "qwen2" else "all" if f.flag("attention_bias", False) else "none"
    attention = Attention(heads, shared, size, size, bias=bias, norms=kind.startswith("qwen3"))
    return decoder(f, hidden, ((f.count("num_hidden_layers"), Block(hidden, attention, _network(f))),))


def _network(f: ConfigurationFields) -> Dense | Experts:
    kind = f.config["model_type"]
    if kind not in ("mixtral", "qwen3_moe"):
        return Dense(f.count("intermediate_size"))
    experts, size = (
        ("num_local_experts", "intermediate_size") if kind == "mixtral" else ("num_experts", "moe_intermediate_size")
    )
    count = f.count(experts)
    return Experts(count, f.count("num_experts_per_tok", most=count), f.count(size))


def decoder(f: ConfigurationFields, hidden: int, stacks: tuple[tuple[int, Block], ...]) -> Model:
    """A decoder with rotary positions, in the fields that all of these have."""
    return Model(
        f.name,
        hidden,
        stacks,
        f.count("max_position_embeddings", 2048),
        f.count("vocab_size"),
        tied=f.flag("tie_word_embeddings", False),
        source=f.source,
    )
