# SPDX-License-Identifier: Apache-2.0
"""One rank's programs of a model that generates: prefill of one prompt, and one decoding step of a batch.

Both read the same weights and the same cache, see `layers`. A decoding step reads the cache and its own key and
value, and gives these as outputs, which are put at their place in the cache.

B sequences, L places of the cache, P tokens of a prompt, H hidden size, N heads, G of keys, D their size.
"""

from __future__ import annotations

from dataclasses import replace

from trnlab.collectives import Groups
from trnlab.errors import UsageError
from trnlab.fleet.models.architectures.clip import ClipTower
from trnlab.fleet.models.encoder_decoder import DecoderBlock, EncoderDecoderModel
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.serving.encoded import CrossLayers, DecoderLayers, EncodeLayers
from trnlab.fleet.serving.layers import ChunkLayers, DecodeLayers, PrefillLayers, ServingLayers, ServingProgram
from trnlab.graph.ir import Graph, Value

MASKED = -30000.0  # of a place of the cache that holds nothing: its weight is 0 in float32


def supported(model: Model) -> None:
    """Raises UsageError (TRN167) for a model that does not generate text, or whose layers are not made here."""
    why = None
    blocks = [block for _, block in model.stacks]
    if isinstance(model, EncoderDecoderModel):
        if model.mels:
            why = "its encoder reads sound, of which there is no prompt of tokens"
    elif not model.vocabulary or isinstance(model, ClipTower) or any(not b.attention.causal for b in blocks):
        why = "it does not generate tokens"
    elif any(block.attention.kv_rank for block in blocks):
        why = "its keys are compressed (multi-head latent attention)"
    if why is not None:
        raise UsageError(
            f"programs that serve {model.name} cannot be made: {why}",
            code="TRN167",
            got=model.name,
            limit="decoders with keys for each head or group of heads",
            remedy="plan a decoder without it that has as many parameters as a token meets",
        )


def prefill(model: Model, blocks: int, share: ServingProgram, groups: Groups = ()) -> Graph:
    """A prompt of `length` tokens, padded: inputs are ids [P], the place of the last token [1] and weights; outputs
    keys [1, G, D, P] and values [1, G, P, D] of each layer, the largest logit of this rank's words, its number. Of a
    chunk that others precede: the tokens' places [P] and the cache, too."""
    kind = ChunkLayers if share.before else PrefillLayers
    layers = kind(f"{model.name}_prefill", share, groups, max(share.before + share.length, model.sequence))
    x = _through(layers, model, blocks)
    last = layers.b.take_rows(x, layers.b.input("last", (1,), "int32"))
    layers.likeliest(model.head(layers, last))
    return layers.b.build()


def decode(model: Model, blocks: int, share: ServingProgram, groups: Groups = ()) -> Graph:
    """One token of each of `batch` sequences: inputs are ids [B], their places [B], which places of the cache hold
    something, as 0 or MASKED [B, L], the cache and weights; outputs as those of `prefill`, for one place."""
    kind = DecoderLayers if isinstance(model, EncoderDecoderModel) else DecodeLayers
    layers = kind(f"{model.name}_decode", share, groups, max(share.length, model.sequence))
    layers.likeliest(model.head(layers, _through(layers, model, blocks)))
    return layers.b.build()


def encode(model: Model, blocks: int, share: ServingProgram, groups: Groups = ()) -> Graph:
    """What an encoder makes of a prompt of `memory` tokens, padded: inputs are ids [P], the bucket of each distance
    [P, P], which places hold something [P], and weights; output [P, H]."""
    assert isinstance(model, EncoderDecoderModel)
    layers = EncodeLayers(f"{model.name}_encode", replace(share, length=share.memory), groups, share.memory)
    x = model.embedding(layers)
    for i in range(blocks):
        x = model.stacks[0][1].forward(layers, f"encoder_{i}", x)
    model.read(layers, x)
    assert layers.encoded is not None
    layers.b.output(layers.encoded)
    return layers.b.build()


def cross(model: Model, blocks: int, share: ServingProgram, groups: Groups = ()) -> Graph:
    """Keys [1, G, D, P] and values [1, G, P, D] of each of the decoder's layers, of what `encode` gives."""
    block = model.stacks[-1][1]
    assert isinstance(block, DecoderBlock)
    layers = CrossLayers(f"{model.name}_cross", replace(share, length=share.memory), groups, share.memory)
    encoded = layers.b.input("encoded", (share.memory, model.hidden), layers.form)
    for i in range(blocks):
        layers.keep(f"block_{i}_cross", block.cross, encoded)
    return layers.b.build()


def layers_of(kind: str, model: Model) -> int:
    """Layers of a model that a kind of program has."""
    if isinstance(model, EncoderDecoderModel):
        return model.stacks[0][0] if kind == "encode" else model.stacks[1][0]
    return model.layers


def _through(layers: ServingLayers, model: Model, count: int) -> Value:
    """What leaves the last of so many blocks, of the stack that has most, or of a decoder behind an encoder."""
    block: Block = max(model.stacks, key=lambda stack: stack[0])[1]
    if isinstance(model, EncoderDecoderModel):
        x, block = model.begin(layers), model.stacks[1][1]
    else:
        x = model.embedding(layers)
    for i in range(count):
        x = block.forward(layers, f"block_{i}", x)
    return x
