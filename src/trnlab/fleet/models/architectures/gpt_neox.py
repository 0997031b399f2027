# SPDX-License-Identifier: Apache-2.0
"""GPT-NeoX and Pythia (arXiv:2204.06745)."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.blocks import ParallelBlock
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Block, Model


@architecture("gpt_neox")
def gpt_neox(f: ConfigurationFields) -> Model:
    """Attention and network beside each other, each behind its norm; a quarter of each head carries positions."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size, biased = f.head(hidden, heads), f.flag("attention_bias", True)
    turned = f.part("rotary_pct", 0.25, size)
    attention = Attention(heads, heads, size, size, bias="all" if biased else "none", rope_size=turned)
    network = Dense(f.count("intermediate_size"), gated=False, bias=True)
    block: Block = Block(hidden, attention, network, "layer")
    if f.flag("use_parallel_residual", True):
        block = ParallelBlock(hidden, attention, network, "layer", norms=2)
    return Model(
        f.name,
        hidden,
        ((f.count("num_hidden_layers"), block),),
        f.count("max_position_embeddings", 2048),
        f.count("vocab_size"),
        tied=f.flag("tie_word_embeddings", False),
        source=f.source,
    )
