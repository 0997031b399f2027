# SPDX-License-Identifier: Apache-2.0
"""Falcon (arXiv:2311.16867)."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.blocks import ParallelBlock
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Block, Model


@architecture("falcon")
def falcon(f: ConfigurationFields) -> Model:
    """All heads share one head of keys, in the newer form several; attention and network are beside each other,
    behind one norm or two. Positions by a bias of scores (alibi, falcon-rw) have no stage (TRN586)."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size, bias = f.head(hidden, heads), f.flag("bias", False)
    f.one_of("alibi", (False,))
    newer, parallel = f.flag("new_decoder_architecture", False), f.flag("parallel_attn", True)
    shared = f.count("num_kv_heads", heads) if newer else 1 if f.flag("multi_query", True) else heads
    attention = Attention(heads, shared, size, size, bias="all" if bias else "none")
    network = Dense(f.count("ffn_hidden_size", 4 * hidden), gated=False, bias=bias)
    block: Block = Block(hidden, attention, network, "layer")
    if newer or parallel:
        norms = f.count("num_ln_in_parallel_attn", 2) if newer else 1
        block = ParallelBlock(hidden, attention, network, "layer", norms=norms)
    return Model(
        f.name,
        hidden,
        ((f.count("num_hidden_layers"), block),),
        f.count("max_position_embeddings", 2048),
        f.count("vocab_size"),
        tied=f.flag("tie_word_embeddings", True),
        source=f.source,
    )
