# SPDX-License-Identifier: Apache-2.0
"""Encoders of text: BERT, RoBERTa and their like, DistilBERT."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Block, Model


@architecture("bert", "roberta", "xlm-roberta", "camembert")
def bert(f: ConfigurationFields) -> Model:
    """With learned positions and segments; RoBERTa's positions begin at 2."""
    f.word("position_embedding_type", "absolute", ("absolute",))
    stack, roberta = encoder_block(f), f.config["model_type"] != "bert"
    positions = f.count("max_position_embeddings", least=3 if roberta else 1)
    return Model(
        f.name,
        stack[1].hidden,
        (stack,),
        positions - 2 * roberta,
        f.count("vocab_size"),
        positions,
        tied=True,
        types=f.count("type_vocab_size", 2),
        final_norm=False,
        embedding_norm=True,
        transform=True,
        source=f.source,
    )


def encoder_block(f: ConfigurationFields) -> tuple[int, Block]:
    """How many of which block, in the fields of BERT."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size = f.head(hidden, heads)
    attention = Attention(heads, heads, size, size, causal=False, rope=False, bias="all")
    network = Dense(f.count("intermediate_size"), gated=False, bias=True)
    return f.count("num_hidden_layers"), Block(hidden, attention, network, "layer")


@architecture("distilbert")
def distilbert(f: ConfigurationFields) -> Model:
    """BERT without segments, in names of its own."""
    hidden, heads, positions = f.count("dim"), f.count("n_heads"), f.count("max_position_embeddings")
    size = f.head(hidden, heads)
    attention = Attention(heads, heads, size, size, causal=False, rope=False, bias="all")
    block = Block(hidden, attention, Dense(f.count("hidden_dim"), gated=False, bias=True), "layer")
    return Model(
        f.name,
        hidden,
        ((f.count("n_layers"), block),),
        positions,
        f.count("vocab_size"),
        positions,
        tied=True,
        final_norm=False,
        embedding_norm=True,
        transform=True,
        source=f.source,
    )
