# SPDX-License-Identifier: Apache-2.0
"""Configurations of encoders and of encoders with decoders, and families of models that are no stacks of blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trnlab.errors import UsageError
from trnlab.fleet.layers.sizes import Acting, Attention, Dense, Relative
from trnlab.fleet.layers.training import STRIDE
from trnlab.fleet.models.encoder_decoder import Crossed, Pair
from trnlab.fleet.models.fields import BY_SCRIPT, Fields, wrong
from trnlab.fleet.models.transformer import Block, Model

READ, DECODED = 512, 128  # tokens of T5's input and output (Megatron-LM v2.5, examples/pretrain_t5.sh: documented)
FAMILIES = {  # what is no stack of blocks, by how its name or model_type begins
    "convolutions": ("convnext", "efficientnet", "mobilenet", "regnet", "densenet", "vgg", "inception"),
    "a U-Net of an unknown form": ("unet", "u-net", "stable-diffusion", "sdxl", "diffusion"),
    "tables of embeddings of an unknown form": ("dlrm", "deepfm", "dcn"),
    "windows of attention": ("swin",),
    "recurrent layers": ("mamba", "rwkv", "recurrent", "falcon_mamba"),
    "an encoder of sound behind seven convolutions": ("wav2vec2", "hubert", "wavlm"),
}


def unread(kind: str, name: str) -> UsageError | None:
    """TRN585 where something begins like a family that is no stack of blocks."""
    for made, names in FAMILIES.items():
        if re.match("|".join(map(re.escape, names)), kind.lower()):
            return UsageError(
                f"{name} is made of {made}, not of a stack of transformer blocks",
                code="TRN585",
                got=kind,
                limit="stacks of transformer blocks",
                remedy=BY_SCRIPT,
            )
    return None


def unknown(kind: str, name: str, known: Sequence[str]) -> UsageError:
    """TRN585, of a model_type that nothing is known of."""
    return UsageError(
        f"nothing is known of the blocks of {name}: its model_type is {kind!r}",
        code="TRN585",
        got=kind,
        limit=f"model_type one of {', '.join(known)}",
        remedy=BY_SCRIPT,
    )


def distilbert(f: Fields) -> Model:
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


def t5(f: Fields) -> Model:
    """T5, and 1.1 and mT5, whose networks are gated and whose head is its own. `decoder_length`, which Hugging Face
    has not: tokens that the decoder writes."""
    hidden, heads, size = f.count("d_model"), f.count("num_heads"), f.count("d_kv")
    buckets = f.count("relative_attention_num_buckets", 32)
    words = ("relu", "gelu", "silu")
    default = "relu" if f.config["model_type"] == "t5" else "gated-gelu"
    word = f.word("feed_forward_proj", default, (*words, *(f"gated-{word}" for word in words)))
    gated, function = word.startswith("gated-"), word.removeprefix("gated-")
    network = Acting(f.count("d_ff"), gated, function=function)
    plain = Attention(heads, heads, size, size, causal=False, rope=False)
    own, masked = (
        Relative(heads, heads, size, size, causal=causal, rope=False, buckets=buckets) for causal in (False, True)
    )
    layers = f.count("num_layers")
    stacks = (
        (layers, Block(hidden, own, network)),
        (f.count("num_decoder_layers", layers), Crossed(hidden, masked, network, cross=plain)),
    )
    return Pair(
        f.name,
        hidden,
        stacks,
        f.count("n_positions", READ),
        f.count("vocab_size"),
        tied=f.flag("tie_word_embeddings", True),
        decoded=f.count("decoder_length", DECODED),
        source=f.source,
    )


def whisper(f: Fields) -> Model:
    """Convolutions of frames of sound, an encoder, a decoder. The encoder's positions are fixed, but a tensor."""
    hidden, mels = f.count("d_model"), f.count("num_mel_bins", 80)
    read, written = f.count("max_source_positions", 1500), f.count("max_target_positions", 448)
    blocks = []
    for side in ("encoder", "decoder"):
        heads = f.count(f"{side}_attention_heads")
        if hidden % heads:
            raise wrong(f.name, f"{heads} heads do not divide a hidden size of {hidden}")
        size, network = hidden // heads, Dense(f.count(f"{side}_ffn_dim"), gated=False, bias=True)
        plain, masked = (
            Attention(heads, heads, size, size, causal=causal, rope=False, bias="unkeyed") for causal in (False, True)
        )
        one = Block(hidden, plain, network, "layer")
        blocks.append(one if side == "encoder" else Crossed(hidden, masked, network, "layer", cross=plain))
    stacks = tuple((f.count(f"{side}_layers"), block) for side, block in zip(("encoder", "decoder"), blocks))
    return Pair(
        f.name,
        hidden,
        stacks,
        read,
        f.count("vocab_size"),
        positions=read,
        tied=True,
        patch=STRIDE * mels,
        decoded=f.count("decoder_length", written),
        written=written,
        mels=mels,
        source=f.source,
    )
