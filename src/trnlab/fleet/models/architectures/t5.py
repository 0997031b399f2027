# SPDX-License-Identifier: Apache-2.0
"""T5 (arXiv:1910.10683)."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import ActivatedMlp, Attention, RelativeAttention
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.encoder_decoder import DecoderBlock, EncoderDecoderModel
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Block, Model

READ, DECODED = 512, 128  # tokens of input and output (Megatron-LM v2.5, examples/pretrain_t5.sh: documented)


@architecture("t5", "mt5")
def t5(f: ConfigurationFields) -> Model:
    """T5, and 1.1 and mT5, whose networks are gated and whose head is its own. `decoder_length`, which Hugging Face
    has not: tokens that the decoder writes."""
    hidden, heads, size = f.count("d_model"), f.count("num_heads"), f.count("d_kv")
    buckets = f.count("relative_attention_num_buckets", 32)
    words = ("relu", "gelu", "silu")
    default = "relu" if f.config["model_type"] == "t5" else "gated-gelu"
    word = f.word("feed_forward_proj", default, (*words, *(f"gated-{word}" for word in words)))
    gated, function = word.startswith("gated-"), word.removeprefix("gated-")
    network = ActivatedMlp(f.count("d_ff"), gated, function=function)
    plain = Attention(heads, heads, size, size, causal=False, rope=False)
    own, masked = (
        RelativeAttention(heads, heads, size, size, causal=causal, rope=False, buckets=buckets)
        for causal in (False, True)
    )
    layers = f.count("num_layers")
    stacks = (
        (layers, Block(hidden, own, network)),
        (f.count("num_decoder_layers", layers), DecoderBlock(hidden, masked, network, cross=plain)),
    )
    return EncoderDecoderModel(
        f.name,
        hidden,
        stacks,
        f.count("n_positions", READ),
        f.count("vocab_size"),
        tied=f.flag("tie_word_embeddings", True),
        decoded=f.count("decoder_length", DECODED),
        source=f.source,
    )
