# SPDX-License-Identifier: Apache-2.0
"""Phi-1, 1.5 and 2 (arXiv:2306.11644), Phi-3 (arXiv:2404.14219)."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.architectures.llama import decoder
from trnlab.fleet.models.blocks import ParallelBlock
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Block, Model


@architecture("phi")
def phi(f: ConfigurationFields) -> Model:
    """Attention and network beside each other behind one norm, biases everywhere, the head's included."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size = f.head(hidden, heads)
    f.one_of("qk_layernorm", (False,))
    turned = f.part("partial_rotary_factor", 0.5, size)
    shared = f.count("num_key_value_heads", heads)
    attention = Attention(heads, shared, size, size, bias="all", rope_size=turned)
    network = Dense(f.count("intermediate_size"), gated=False, bias=True)
    return Model(
        f.name,
        hidden,
        ((f.count("num_hidden_layers"), ParallelBlock(hidden, attention, network, "layer")),),
        f.count("max_position_embeddings", 2048),
        f.count("vocab_size"),
        tied=f.flag("tie_word_embeddings", False),
        head_bias=True,
        source=f.source,
    )


@architecture("phi3")
def phi3(f: ConfigurationFields) -> Model:
    """As Llama, whose projections lie beside each other in one tensor here. Windows count as whole contexts."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size, shared = f.head(hidden, heads), f.count("num_key_value_heads", heads)
    attention = Attention(heads, shared, size, size, rope_size=f.part("partial_rotary_factor", 1.0, size))
    block = Block(hidden, attention, Dense(f.count("intermediate_size")))
    return decoder(f, hidden, ((f.count("num_hidden_layers"), block),))
