# SPDX-License-Identifier: Apache-2.0
"""Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118) and 3 (arXiv:2503.19786).

Windows of attention count as whole contexts, so that their layers' times and caches are bounds. A norm's scale is
kept as what it is more than 1, and a head's scale goes into the weights of queries; neither is an op here.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.fleet.layers.layers import Layers
from trnlab.fleet.layers.sizes import ActivatedMlp, Attention
from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.blocks import SandwichBlock
from trnlab.fleet.models.fields import ConfigurationFields, wrong
from trnlab.fleet.models.transformer import Block, Model
from trnlab.graph.ir import Value


@dataclass(frozen=True)
class GemmaModel(Model):
    """Words are multiplied by the root of their width. softcap: of the logits, 0 without."""

    softcap: float = 0.0

    def embedding(self, layers: Layers) -> Value:
        """What enters the first block."""
        return layers.b.multiply(super().embedding(layers), self.hidden**0.5)

    def head(self, layers: Layers, x: Value) -> Value:
        """Scores of words."""
        return layers.capped(super().head(layers, x), self.softcap)


@architecture("gemma", "gemma2", "gemma3_text")
def gemma(f: ConfigurationFields) -> Model:
    """A gated network of GELU, heads of a size of their own, the head tied to the words."""
    kind = f.config["model_type"]
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    size, shared = f.count("head_dim", 256), f.count("num_key_value_heads", heads)
    biased = "all" if f.flag("attention_bias", False) else "none"
    cap, last = (f.amount(f"{name}_logit_softcapping", 0.0) for name in ("attn", "final"))
    attention = Attention(heads, shared, size, size, bias=biased, norms=kind == "gemma3_text", softcap=cap)
    block = Block if kind == "gemma" else SandwichBlock
    network = ActivatedMlp(f.count("intermediate_size"), gated=True, function="gelu")
    return GemmaModel(
        f.name,
        hidden,
        ((f.count("num_hidden_layers"), block(hidden, attention, network)),),
        f.count("max_position_embeddings", 8192),
        f.count("vocab_size"),
        tied=f.flag("tie_word_embeddings", True),
        source=f.source,
        softcap=last,
    )


@architecture("gemma3")
def gemma3(f: ConfigurationFields) -> Model:
    """The decoder of a configuration that has images, too; the tower that reads these is left out."""
    inner = f.config.get("text_config")
    if not isinstance(inner, dict):
        raise wrong(f.name, f"text_config is {inner!r}, not a configuration")
    return gemma(ConfigurationFields({**inner, "model_type": "gemma3_text"}, f.name))
