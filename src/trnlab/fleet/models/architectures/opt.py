# SPDX-License-Identifier: Apache-2.0
"""OPT (arXiv:2205.01068)."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import ActivatedMlp, Attention
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Block, Model

BEFORE = 2  # rows of the table of positions before that of the first place


@architecture("opt")
def opt(f: ConfigurationFields) -> Model:
    """Learned positions, ReLU, the head tied to the words. Of opt-350m, whose words are narrower than its blocks and
    whose norms follow them, no stage is made (TRN586)."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size, biased = f.head(hidden, heads), f.flag("enable_bias", True)
    f.one_of("word_embed_proj_dim", (hidden, None))
    f.one_of("do_layer_norm_before", (True,))
    f.word("activation_function", "relu", ("relu",))
    attention = Attention(heads, heads, size, size, rope=False, bias="all" if biased else "none")
    network = ActivatedMlp(f.count("ffn_dim"), gated=False, bias=biased, function="relu")
    places = f.count("max_position_embeddings", 2048)
    return Model(
        f.name,
        hidden,
        ((f.count("num_hidden_layers"), Block(hidden, attention, network, "layer")),),
        places,
        f.count("vocab_size"),
        places + BEFORE,
        tied=f.flag("tie_word_embeddings", True),
        source=f.source,
    )
