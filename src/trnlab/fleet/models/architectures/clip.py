# SPDX-License-Identifier: Apache-2.0
"""CLIP (arXiv:2103.00020): its tower of text and that of images, each with its projection."""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.fleet.layers.layers import Layers
from trnlab.fleet.layers.sizes import ActivatedMlp, Attention
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.fields import ConfigurationFields, wrong
from trnlab.fleet.models.transformer import Block, Model
from trnlab.graph.ir import Value


@dataclass(frozen=True)
class ClipTower(Model):
    """Its head projects one place into the space that texts and images share; classes: numbers of that space."""

    def embedding(self, layers: Layers) -> Value:
        """What enters the first block: of images behind a norm, the patches without biases."""
        if not self.patch:
            return super().embedding(layers)
        x = layers.positions(self.positions, layers.patches(self.patch, self.hidden, bias=False))
        return layers.norm("embedding", x, "layer")

    def head(self, layers: Layers, x: Value) -> Value:
        """The projection of one place: of the class token, or of the text's last."""
        x = layers.first(x)
        return layers.linear("head", layers.norm("final", x, "layer"), self.classes)


def _tower(f: ConfigurationFields, causal: bool) -> tuple[tuple[int, Block], int]:
    """Blocks, and numbers of the shared space."""
    hidden, heads = (
        f.count("hidden_size", 512 if causal else 768),
        f.count("num_attention_heads", 8 if causal else 12),
    )
    size = f.head(hidden, heads)
    function = f.word("hidden_act", "quick_gelu", ("quick_gelu", "gelu"))
    attention = Attention(heads, heads, size, size, causal=causal, rope=False, bias="all")
    width = f.count("intermediate_size", 4 * hidden)
    block = Block(hidden, attention, ActivatedMlp(width, gated=False, bias=True, function=function), "layer")
    return (f.count("num_hidden_layers", 12), block), f.count("projection_dim", 512)


@architecture("clip_text_model")
def text(f: ConfigurationFields) -> Model:
    """Causal, with learned positions."""
    stack, space = _tower(f, causal=True)
    places, words = f.count("max_position_embeddings", 77), f.count("vocab_size", 49408)
    return ClipTower(f.name, stack[1].hidden, (stack,), places, words, places, classes=space, source=f.source)


@architecture("clip_vision_model")
def vision(f: ConfigurationFields) -> Model:
    """Patches and a class token, with norms before and behind the blocks."""
    stack, space = _tower(f, causal=False)
    side, patch = f.count("image_size", 224), f.count("patch_size", 32)
    tokens = (side // patch) ** 2 + 1
    pixels = patch * patch * f.count("num_channels", 3)
    return ClipTower(
        f.name, stack[1].hidden, (stack,), tokens, 0, tokens, patch=pixels, classes=space, source=f.source
    )


@architecture("clip")
def clip(f: ConfigurationFields) -> Model:
    """Raises UsageError (TRN172): two towers are no stack."""
    raise wrong(f.name, "it has two towers; give its text_config or its vision_config as a file of its own")
