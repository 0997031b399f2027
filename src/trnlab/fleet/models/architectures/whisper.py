# SPDX-License-Identifier: Apache-2.0
"""Whisper (arXiv:2212.04356)."""

from __future__ import annotations

from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.layers.training import STRIDE
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.encoder_decoder import DecoderBlock, EncoderDecoderModel
from trnlab.fleet.models.fields import ConfigurationFields, wrong
from trnlab.fleet.models.transformer import Block, Model


@architecture("whisper")
def whisper(f: ConfigurationFields) -> Model:
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
        blocks.append(one if side == "encoder" else DecoderBlock(hidden, masked, network, "layer", cross=plain))
    stacks = tuple((f.count(f"{side}_layers"), block) for side, block in zip(("encoder", "decoder"), blocks))
    return EncoderDecoderModel(
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
